/**
 * The read side of a store: the interface that makes Redis and a directory of files look the same to the daemon. A
 * source reads bytes; the view checks them (validate.ts, sync.ts).
 */
import type { Reports } from '../metadata/reports.ts'

/**
 * One instance as loaded. The `document` is not checked yet. `unreadable`: there is no document. `rejected`: the cipher
 * does not accept the values. `user-data`: the user-data is too long to read. `digest`: that of the record, as `index`
 * has it; undefined if the store has none.
 */
export type Loaded =
  | LoadedRecord
  | {
      readonly kind: 'unreadable' | 'rejected' | 'user-data'
      readonly id: string
      readonly digest: string | undefined
      readonly reason: string
    }
  | { readonly kind: 'removed'; readonly id: string; readonly order?: number | undefined }
  | { readonly kind: 'absent'; readonly id: string }

/**
 * A record and its user-data with its SHA-256 (lower-case hexadecimal), which a source computes in slices; undefined:
 * no user-data.
 */
export interface LoadedRecord {
  readonly kind: 'record'
  readonly id: string
  readonly digest: string | undefined
  /** The place of its publish in the order of the region; undefined: it has none. */
  readonly order?: number | undefined
  readonly document: unknown
  readonly userData: Uint8Array | undefined
  readonly userDataSha256: string | undefined
}

/** The index of this hypervisor's instances, without their records. */
export interface Index {
  /**
   * False: nothing was ever published to this store, it was emptied, or it is the wrong one. `digests` has no meaning
   * then.
   */
  readonly initialised: boolean
  /** Id -> a text that differs whenever the record, its user-data, or its place in the order does. */
  readonly digests: ReadonlyMap<string, string>
  /**
   * The last place in the order of the region that was given, no later than the digests were read; 0: nothing has a
   * place yet. Undefined: the store does not know, since people may write its files.
   */
  readonly last?: number | undefined
  /**
   * Whether the region has the mark "behind": somebody saw that the store has lost changes, and the region was not
   * published again since.
   */
  readonly isBehind?: boolean | undefined
}

/** The callbacks of a source. None may throw. */
export interface SourceEvents {
  /** This instance may have changed: only a hint. */
  readonly notice: (id: string) => void
  /** Notices arrive from now on; earlier changes may have been missed. */
  readonly connected: () => void
  /** The store may have another content: the region was emptied, or initialised again. */
  readonly replaced: () => void
  /** The store is lost or does not answer; `reason` is for the operator. */
  readonly disconnected: (reason: string) => void
}

/**
 * What guests have reported (contract H9), as one hypervisor writes it. Each method rejects if the store does not answer
 * or refuses.
 */
export interface ReportStore {
  /** Reads the reports of an instance that some hypervisors have written. Those that are not valid are left out. */
  load(id: string, hypervisors: readonly string[]): Promise<readonly Reports[]>
  /** Writes those of this hypervisor. */
  save(id: string, reports: Reports): Promise<void>
  /** Deletes those of this hypervisor. */
  remove(id: string): Promise<void>
}

export interface Source {
  /** The address of the store, for logs. Never contains a password. */
  readonly description: string
  /** Starts to connect, and returns at once. Retries until `stop`. */
  start(events: SourceEvents): void
  /** Reads the index. Rejects when the store does not answer. */
  index(): Promise<Index>
  /**
   * Loads instances in the given order, a few at a time, as fast as the caller takes them. Rejects when the store does
   * not answer.
   */
  load(ids: readonly string[]): AsyncIterable<Loaded>
  /**
   * Returns the owner of an address by the store's index, which is only a hint; undefined: none. Rejects when the store
   * does not answer.
   */
  owner(network: string, address: string): Promise<string | undefined>
  /**
   * Notes the highest place in the order that this hypervisor knows: of anything that it has served, or that was removed
   * from it. Announcements have it, and publishers give it later places only. Call it before `start` with what the disk
   * had, and whenever it rises. Undefined: the store has no announcements.
   */
  readonly noteOrder?: (order: number) => void
  /**
   * Sets the mark "behind" of the region: this hypervisor has seen a later state (`noteOrder`) than the store has. Until
   * the region is published again, whatever reads the store before it writes is refused. Call it once in each resync
   * that finds an earlier state. Rejects if the store does not answer or refuses. Undefined: the store has no marks.
   */
  readonly reportBehind?: () => Promise<void>
  /** Announces the daemon now, and not only from time to time. Undefined: this store has no announcements. */
  readonly announce?: () => void
  /** When the certificate of the store ends, in seconds since 1970; 0: not known, or there is none. */
  certificateEndSeconds?(): number
  /** Undefined: this store keeps no reports. */
  readonly reports: ReportStore | undefined
  stop(): Promise<void>
}
