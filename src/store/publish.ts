/**
 * The write side, for the control plane and for imdsctl.
 *
 * A publish is checked whole before anything is written: every fault at once, the size of the user-data, that bytes and record fit.
 * Then the store decides, atomically, whether it is newer than what is there and whether its addresses are free. Its answers are
 * values; only a store that cannot be reached throws.
 */
import { parse, type Fault, type Instance } from '../metadata/instance.ts'
import { sha256, userDataFaults } from './assemble.ts'

/** What becomes of the user-data: these bytes, none, or whatever the store has now. */
export type UserDataChange = Uint8Array | 'none' | 'keep'

/** What a put came to. */
export type PutResult =
  | { readonly result: 'published' | 'unchanged', readonly instance: Instance }
  | PutRefusal

/** Why nothing was written. `stale` and `address-owned` name what stands in the way; `address` may be an IPv6 prefix. */
export type PutRefusal =
  | { readonly result: 'invalid', readonly faults: readonly Fault[] }
  | { readonly result: 'stale', readonly revision: number }
  | { readonly result: 'address-owned', readonly network: string, readonly address: string, readonly owner: string }

/** What a remove came to. `unchanged`: the store held no such instance; its tombstone is there now. */
export type RemoveResult =
  | { readonly result: 'removed' | 'unchanged', readonly revision: number }
  | { readonly result: 'stale', readonly revision: number }

/** One line of a list. `addresses`: `network address` each, IPv6 prefixes among them with their length. */
export interface Listed { readonly id: string, readonly revision: number, readonly hypervisors: readonly string[], readonly addresses: readonly string[] }

/** A published instance: its document as it was published, and its user-data (null: none). */
export interface Published { readonly document: unknown, readonly userData: Uint8Array | null }

/** A store that can be written. Every method rejects with an Error when the store cannot be reached or used. */
export interface Publisher {
  /**
   * Publishes a record (an untrusted document) with its user-data. `userData` of the document is filled in from the bytes where it is
   * missing. The default keeps the user-data that is there.
   */
  put(document: unknown, userData?: UserDataChange): Promise<PutResult>
  /** The instance as it was published last, or undefined. */
  get(id: string): Promise<Published | undefined>
  /** Removes an instance and leaves a tombstone for 7 days. Without `revision`: one more than the last. */
  remove(id: string, revision?: number): Promise<RemoveResult>
  /** Every instance of the store, by id. */
  list(): Promise<readonly Listed[]>
  /** Calls back with the id of everything that changes from now on, until the returned function is called. */
  watch(changed: (id: string) => void): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** What a store must do for `publish`: write one checked record, or say why not. `userDataChanged`: a keep met other bytes than it expected. */
export interface Backend {
  get(id: string): Promise<Published | undefined>
  write(instance: Instance, text: string, userData: UserDataChange): Promise<Written>
}

/** The answer of a write. */
export type Written = 'published' | 'unchanged' | 'user-data-changed' | PutRefusal

const ATTEMPTS = 5

/** The part of a put that is the same for every store. `userDataMaxBytes` bounds the user-data. */
export async function publish(backend: Backend, document: unknown, userData: UserDataChange, userDataMaxBytes: number): Promise<PutResult> {
  for (let attempt = 1; ; attempt++) {
    const id = idOf(document)
    const bytes = userData === 'keep' ? (id === undefined ? undefined : await backend.get(id))?.userData ?? null : userData === 'none' ? null : userData
    const complete = fillUserData(document, bytes)
    const parsed = parse(complete)
    if (!parsed.ok) return { result: 'invalid', faults: parsed.faults }
    const faults = userDataFaults(parsed.instance, bytes, userDataMaxBytes)
    if (faults.length > 0) return { result: 'invalid', faults }
    const written = await backend.write(parsed.instance, JSON.stringify(complete), userData)
    if (written === 'published' || written === 'unchanged') return { result: written, instance: parsed.instance }
    if (written !== 'user-data-changed') return written
    if (attempt === ATTEMPTS) throw new Error('another writer keeps changing the user-data of this instance: try again')
  }
}

function idOf(document: unknown): string | undefined {
  const id = (document as { id?: unknown } | null | undefined)?.id
  return typeof id === 'string' ? id : undefined
}

/** The document with the `userData` that fits the bytes, unless it brings its own. */
export function fillUserData(document: unknown, bytes: Uint8Array | null): unknown {
  if (bytes === null || typeof document !== 'object' || document === null || Array.isArray(document) || 'userData' in document) return document
  return { ...document, userData: { size: bytes.length, sha256: sha256(bytes) } }
}
