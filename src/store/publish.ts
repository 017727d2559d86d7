/**
 * The write side, for the control plane and for imdsctl.
 *
 * A publish is checked whole before anything is written: every fault at once, the size of the user-data, that bytes and record fit.
 * Then the store decides, atomically, whether it is newer than what is there and whether its addresses are free. Its answers are
 * values; only a store that cannot be reached throws.
 *
 * A seal on user-data stays until `unseal`: the store puts it into every record that is published without one, and a removal leaves it in
 * the tombstone. Sealing and unsealing are changes of the instance like any other, so each has a revision of its own: every host
 * takes it, a writer that comes late is stale, and the launch gate can wait for it.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Instance } from '../metadata/instance.ts'
import { parse, sizeFaults, type Fault } from '../metadata/record.ts'
import { sha256, userDataFaults } from '../metadata/user-data.ts'

/** What becomes of the user-data: these bytes, none, or whatever the store has now. */
export type UserDataChange = Uint8Array | 'none' | 'keep'

/**
 * What a put came to. `instance.sealedAt` is the store's, where it keeps a seal that the document lacks. `unannounced`: those of its hypervisors
 * that no daemon ever announced in the store, which may be spelled wrong. Always empty for files.
 */
export type PutResult =
  | { readonly result: 'published' | 'unchanged', readonly instance: Instance, readonly unannounced: readonly string[] }
  | PutRefusal

/** Why nothing was written. `stale` and `address-owned` name what stands in the way; `address` may be an IPv6 prefix. */
export type PutRefusal =
  | { readonly result: 'invalid', readonly faults: readonly Fault[] }
  | { readonly result: 'stale', readonly revision: number }
  | { readonly result: 'address-owned', readonly network: string, readonly address: string, readonly owner: string }

/**
 * What a remove came to. `unchanged`: the store held no such instance; its tombstone is there now. `absent`: the store knows neither an
 * instance nor a tombstone of this id, and without a revision nothing was written.
 */
export type RemoveResult =
  | { readonly result: 'removed' | 'unchanged', readonly revision: number }
  | { readonly result: 'absent' }
  | { readonly result: 'stale', readonly revision: number }

/**
 * What a seal or an unseal came to, and since when the user-data is sealed (null: it is not). `unchanged`: there was nothing to do;
 * `absent`: there is no such instance.
 */
export type SealResult =
  | { readonly result: 'sealed' | 'unsealed' | 'unchanged', readonly revision: number, readonly sealedAt: string | null }
  | { readonly result: 'absent' }
  | Extract<PutRefusal, { result: 'address-owned' }>

/** What an encryption under the first key came to. `plain`: the values are not encrypted, and were not to be taken as they are. */
export type EncryptResult = 'encrypted' | 'unchanged' | 'absent' | 'plain'
/** What a decryption came to. `unchanged`: it was not encrypted. */
export type DecryptResult = 'decrypted' | 'unchanged' | 'absent'

/** One line of a list. `addresses`: `network address` each, IPv6 prefixes among them with their length. */
export interface Listed { readonly id: string, readonly revision: number, readonly hypervisors: readonly string[], readonly addresses: readonly string[] }

/** How to put. */
export interface PutOptions { readonly dryRun?: boolean }

/** A hypervisor whose daemon has connected to the store: the daemon's version, how many instances it answers for, and when it last said so (RFC 3339). */
export interface AnnouncedHypervisor { readonly name: string, readonly version: string, readonly instances: number, readonly seenAt: string }

/** A published instance: its document as it was published, and its user-data (null: none). */
export interface Published { readonly document: unknown, readonly userData: Uint8Array | null }

/** Why a method of a Publisher rejects where the store as a whole cannot be reached or used, and not one instance in it. */
export class StoreUnavailable extends Error {}

/** A store that can be written. Every method rejects with an Error when the store cannot be reached or used. */
export interface Publisher {
  /**
   * Publishes a record (an untrusted document) with its user-data. `userData` of the document is filled in from the bytes where it is
   * missing. The default keeps the user-data that is there. With `dryRun` the result is what a put would come to now, and nothing is written.
   */
  put(document: unknown, userData?: UserDataChange, options?: PutOptions): Promise<PutResult>
  /** The instance as it was published last, or undefined. */
  get(id: string): Promise<Published | undefined>
  /** Removes an instance and leaves a tombstone for 7 days. Without `revision`: one more than the last; an id that never was stays unknown. */
  remove(id: string, revision?: number): Promise<RemoveResult>
  /**
   * Seals the user-data of an instance: from the next revision on, which this publishes, no guest gets it. What is sealed already stays
   * sealed since its first time.
   */
  seal(id: string): Promise<SealResult>
  /** Lifts a seal, with the next revision. Nothing else does. */
  unseal(id: string): Promise<SealResult>
  /**
   * Encrypts an instance with the first of the record keys where it was with another, at the same revision; a plain one only `fromPlain`,
   * since then whatever the store holds is taken for true. Rejects where records are not encrypted.
   */
  encrypt(id: string, fromPlain: boolean): Promise<EncryptResult>
  /** Decrypts an instance, at the same revision, when record keys go out of use. Rejects where no record keys are configured. */
  decrypt(id: string): Promise<DecryptResult>
  /** Takes the mark of an encrypted region away: publishers without keys are taken again. Rejects where no record keys are configured. */
  markPlain(): Promise<void>
  /**
   * Marks the region as encrypted: publishers without keys are refused, also where it has no instance yet. Every encrypted publish does the
   * same. Rejects where records are not encrypted.
   */
  markEncrypted(): Promise<void>
  /** Makes a region that was never published to one that daemons take for an empty one, and are ready with. False: it is one already. Files need none. */
  initialise(): Promise<boolean>
  /** Every hypervisor that ever announced itself, by name. A daemon says so every 30 s while it is connected. Rejects for files. */
  hypervisors(): Promise<readonly AnnouncedHypervisor[]>
  /** Every instance of the store, by id: what its index says, which is not authenticated. */
  list(): Promise<readonly Listed[]>
  /**
   * Calls back with the id of everything that changes from now on, until the returned function is called. Changes of one instance that
   * follow each other within 50 ms may be one call. The last call for an id comes after its last change: what `get` returns then is its latest
   * state. A call may also be one too many.
   */
  watch(changed: (id: string) => void): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** What a store must do for `publish` and `changeSeal`: write one checked record, or say why not. */
export interface Backend {
  /** The region that every record must name; null: any. */
  readonly region: string | null
  /** Those of some hypervisors that no daemon ever announced. */
  unannounced(names: readonly string[]): Promise<readonly string[]>
  get(id: string): Promise<Published | undefined>
  /** Writes `document`, which parses to `instance`. A seal that is there goes into it, unless this write lifts the seal. */
  write(instance: Instance, document: unknown, userData: UserDataChange, lifts: boolean, options?: PutOptions): Promise<Written>
}

/** The answer of a write, with the seal that the record has now. `user-data-changed`: a keep met other bytes than it expected. */
export type Written =
  | { readonly result: 'published' | 'unchanged', readonly sealedAt: string | undefined }
  | { readonly result: 'user-data-changed' }
  | PutRefusal

const ATTEMPTS = 10
/** A writer that was overtaken waits up to so long, so that two do not keep overtaking each other. */
const APART_MS = 20

/** The part of a put that is the same for every store. `userDataMaxBytes` bounds the user-data. */
export async function publish(
  backend: Backend, document: unknown, userData: UserDataChange, userDataMaxBytes: number, options: PutOptions = {},
): Promise<PutResult> {
  for (let attempt = 1; ; attempt++) {
    const id = idOf(document)
    const bytes = userData === 'keep' ? (id === undefined ? undefined : await backend.get(id))?.userData ?? null : userData === 'none' ? null : userData
    const digest = bytes && sha256(bytes)
    const complete = fillUserData(document, bytes, digest)
    const parsed = parse(complete)
    if (!parsed.ok) return { result: 'invalid', faults: parsed.faults }
    const { instance: checked } = parsed
    const faults = [...regionFaults(checked, backend.region), ...sizeFaults(complete), ...userDataFaults(checked, bytes, digest, userDataMaxBytes)]
    if (faults.length > 0) return { result: 'invalid', faults }
    const written = await backend.write(parsed.instance, complete, userData, false, options)
    if ('sealedAt' in written) {
      const { result, sealedAt } = written
      const instance = sealedAt === undefined ? parsed.instance : Object.freeze({ ...parsed.instance, sealedAt })
      return { result, instance, unannounced: await backend.unannounced(instance.hypervisors) }
    }
    if (written.result !== 'user-data-changed') return written
    if (attempt === ATTEMPTS) throw new Error('another writer keeps changing the user-data of this instance: try again')
  }
}

/** Seals the user-data of an instance since a time, or lifts its seal (undefined): the same for every store. */
export async function changeSeal(backend: Backend, id: string, sealedAt: string | undefined): Promise<SealResult> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const published = await backend.get(id)
    if (published === undefined) return { result: 'absent' }
    const held = parse(published.document)
    if (!held.ok) throw new Error(`the store's record of ${id} is faulty: publish a good one first`)
    const { revision, sealedAt: since } = held.instance
    if ((since === undefined) === (sealedAt === undefined)) return { result: 'unchanged', revision, sealedAt: since ?? null }
    const next: Record<string, unknown> = { ...published.document as object, revision: revision + 1 }
    if (sealedAt === undefined) delete next['sealedAt']
    else next['sealedAt'] = sealedAt
    const parsed = parse(next)
    if (!parsed.ok) throw new Error(`the record of ${id} has no next revision`)
    const written = await backend.write(parsed.instance, next, 'keep', sealedAt === undefined)
    if (written.result === 'published') return { result: sealedAt === undefined ? 'unsealed' : 'sealed', revision: revision + 1, sealedAt: sealedAt ?? null }
    if (written.result === 'address-owned') return written
    if (written.result === 'invalid') throw new Error(`the record of ${id} ${written.faults.map(({ message }) => message).join('; ')}`)
    await sleep(Math.random() * APART_MS)
  }
  throw new Error('another writer keeps changing this instance: try again')
}

function regionFaults({ region: named }: Instance, region: string | null): readonly Fault[] {
  return region === null || named === region ? [] : [{ path: '/region', message: `must be ${region}, the region of this store` }]
}

function idOf(document: unknown): string | undefined {
  const id = (document as { id?: unknown } | null | undefined)?.id
  return typeof id === 'string' ? id : undefined
}

/** The document with the `userData` that fits the bytes, whose SHA-256 is `digest`, unless it brings its own. */
export function fillUserData(document: unknown, bytes: Uint8Array | null, digest: string | null): unknown {
  if (bytes === null || typeof document !== 'object' || document === null || Array.isArray(document) || 'userData' in document) return document
  return { ...document, userData: { size: bytes.length, sha256: digest } }
}
