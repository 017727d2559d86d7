/**
 * The write side of a store, as the control plane and imdsctl use it.
 *
 * A publish first checks the whole record and its user-data, and reports all faults at once. Then the store decides
 * atomically whether the revision is new and the addresses are free. Refusals are values: union types on `kind`. A
 * Publisher rejects only when it cannot do its work.
 */
import type { Instance } from '../metadata/instance.ts'
import type { Reports } from '../metadata/reports.ts'
import type { Fault } from '../metadata/record.ts'
import type { AnnouncedHypervisor, Fleet } from './fleet.ts'
export type { AnnouncedHypervisor } from './fleet.ts'
import type { UserDataChange } from './user-data.ts'

/**
 * The outcome of a put. `unchanged`: the store had these contents, which have a new place now. `instance.sealedAt` is
 * the seal in the store, even if the document has none. `order`: the place in the order of the region (order.ts), which
 * the launch gate is asked for; 0 for a dry run. `unannounced`: the hypervisors of the record that no daemon has
 * announced, which may be misspelled; always empty for files.
 */
export type PutResult =
  | ({ readonly kind: 'published' } & PutDone)
  | ({ readonly kind: 'unchanged' } & PutDone)
  | PutRefusal
interface PutDone {
  readonly instance: Instance
  readonly order: number
  readonly unannounced: readonly string[]
}

/**
 * Why nothing was written. `stale`: the revision in the store. `incarnation`: the store has another instance with this
 * id, or its tombstone. `address-owned`: the conflict; `address` may be an IPv6
 * prefix.
 */
export type PutRefusal =
  | { readonly kind: 'invalid'; readonly faults: readonly Fault[] }
  | { readonly kind: 'stale'; readonly revision: number }
  | { readonly kind: 'incarnation' }
  | { readonly kind: 'address-owned'; readonly network: string; readonly address: string; readonly owner: string }

/**
 * The outcome of a removal. `unchanged`: there was no such instance; its tombstone is in the store. `absent`: the store
 * has neither an instance nor a tombstone with this id, no revision was given, and nothing was written.
 */
export type RemoveResult =
  | { readonly kind: 'removed'; readonly revision: number; readonly order: number }
  | { readonly kind: 'unchanged'; readonly revision: number; readonly order: number }
  | { readonly kind: 'absent' }
  | { readonly kind: 'stale'; readonly revision: number }
  | { readonly kind: 'incarnation' }

/**
 * The outcome of a seal or an unseal. `sealedAt`: since when the user-data is sealed; undefined: it is not.
 * `unchanged`: nothing had to be done. `absent`: there is no such instance.
 */
export type SealResult =
  | { readonly kind: 'sealed'; readonly revision: number; readonly order: number; readonly sealedAt: string }
  | { readonly kind: 'unsealed'; readonly revision: number; readonly order: number }
  | { readonly kind: 'unchanged'; readonly revision: number; readonly sealedAt: string | undefined }
  | { readonly kind: 'absent' }
  | Extract<PutRefusal, { kind: 'address-owned' }>

/** The outcome of an encryption with the first key. `plain`: the values are plain and `fromPlain` was not given. */
export interface EncryptResult {
  readonly kind: 'encrypted' | 'unchanged' | 'absent' | 'plain'
}
/** The outcome of a decryption. `unchanged`: the values were not encrypted. */
export interface DecryptResult {
  readonly kind: 'decrypted' | 'unchanged' | 'absent'
}

/**
 * One entry of a list. `addresses`: one text `NETWORK ADDRESS` each; IPv6 prefixes with their length. `sealedAt`: since
 * when the user-data is sealed; absent: it is not.
 */
export interface Listed {
  readonly id: string
  readonly revision: number
  readonly hypervisors: readonly string[]
  readonly addresses: readonly string[]
  readonly sealedAt?: string
}

/** An instance that was removed at `revision`. `sealedAt`: since when its user-data was sealed; absent: it was not. */
export interface Removed {
  readonly id: string
  readonly revision: number
  readonly sealedAt?: string
}

/** Options of a change. `dryRun`: report the result and write nothing. */
export interface PutOptions {
  readonly dryRun?: boolean
}

/**
 * Options of a removal. `sealedAt`: the seal that the tombstone gets if the store has none, to restore a tombstone.
 * `incarnation`: that of the instance; another incarnation is refused.
 */
export interface RemoveOptions extends PutOptions {
  readonly incarnation?: string | undefined
  readonly sealedAt?: string | undefined
}

/** A published instance: its document, its place in the order (0: none), and its user-data (undefined: none). */
export interface Published {
  readonly document: unknown
  readonly order: number
  readonly userData: Uint8Array | undefined
}

/** The error of a change that reads the store first, while the region has the mark that it has lost changes. */
export class StoreBehind extends Error {
  /** `by`: who has seen later ones; empty: not known. */
  constructor(by: string) {
    super(
      `the store has lost changes${by === '' ? '' : ` (${by} has seen later ones)`}, and this would ` +
        'publish what it has now, which may be out of date: publish the whole region again first (imdsctl republish; ' +
        'imds-api does it by itself)',
    )
  }
}

/** The error of a Publisher when the store as a whole cannot be reached or used, not just one instance in it. */
export class StoreUnavailable extends Error {}

/**
 * A store open for writing. Every method rejects with an Error when the store cannot be reached or used, and with a
 * TypeError for an invalid id, revision or user-data.
 */
export interface Publisher {
  /** The marks of the region's hypervisors. */
  readonly fleet: Fleet
  /** The name of the record key that encrypts; undefined: records are plain. */
  readonly recordKey: string | undefined
  /**
   * Publishes a record (an untrusted document) with its user-data. Fills in the document's `userData` from the bytes if
   * it is missing. By default the user-data in the store stays.
   */
  put(document: unknown, userData?: UserDataChange, options?: PutOptions): Promise<PutResult>
  /** Returns what the guest of an instance has reported (contract H9): its claims. Undefined: nothing. */
  reports(id: string): Promise<Reports | undefined>
  /** Returns the instance as last published, or undefined. */
  get(id: string): Promise<Published | undefined>
  /**
   * Removes an instance and leaves a tombstone for 7 days. Default revision: the last one plus 1. An unknown id gets a
   * tombstone only with a revision.
   */
  remove(id: string, revision?: number, options?: RemoveOptions): Promise<RemoveResult>
  /**
   * Seals the user-data of an instance with a new revision: no guest gets it from then on. An existing seal keeps its
   * time.
   */
  seal(id: string, options?: PutOptions): Promise<SealResult>
  /** Lifts a seal with a new revision. Nothing else lifts one. */
  unseal(id: string, options?: PutOptions): Promise<SealResult>
  /**
   * Encrypts an instance with the first record key, at the same revision. `fromPlain`: also if it is not encrypted, so that
   * nothing proves that it is authentic. Rejects if this publisher has no record keys.
   */
  encrypt(id: string, fromPlain: boolean): Promise<EncryptResult>
  /**
   * Decrypts an instance at the same revision, to stop the use of record keys. Rejects if no record keys are
   * configured.
   */
  decrypt(id: string): Promise<DecryptResult>
  /**
   * Removes the mark of an encrypted region: publishers without keys are accepted again. Rejects if no record keys are
   * configured.
   */
  markPlain(): Promise<void>
  /**
   * Marks the region as encrypted, as each encrypted publish does: publishers without keys are refused. Rejects if
   * records are not encrypted.
   */
  markEncrypted(): Promise<void>
  /**
   * Initialises an empty region, so that daemons accept it and become ready. False: it was initialised already, or
   * needs none (files).
   */
  initialise(): Promise<boolean>
  /** Returns the names among `names` that no daemon has announced; none if the store cannot say, as one of files. */
  unannounced(names: readonly string[]): Promise<readonly string[]>
  /**
   * Lists every hypervisor that has announced itself, by name, or those among `names`. A connected daemon does so every
   * 30 s. Rejects for files.
   */
  hypervisors(names?: readonly string[]): Promise<readonly AnnouncedHypervisor[]>
  /** Lists every instance by id, from the store's index, which is not authenticated. */
  list(): Promise<readonly Listed[]>
  /** Lists the instances that have a tombstone, by id: they were removed in the last 7 days. */
  tombstones(): Promise<readonly Removed[]>
  close(): Promise<void>
}
