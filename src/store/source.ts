/**
 * What does a store give to the daemon?
 *
 * The small interface behind which Redis and a directory of files look the same. A source moves bytes; what they mean is decided
 * once, in `assemble` and `sync`.
 */

/**
 * What a store holds under one id. `document` is not checked yet; `unreadable` says why there is none, `rejected` why it is not believed,
 * `user-data` why its user-data was not even read.
 */
export type Loaded =
  | LoadedRecord
  | { readonly kind: 'unreadable' | 'rejected' | 'user-data', readonly id: string, readonly digest: string, readonly reason: string }
  | { readonly kind: 'removed', readonly id: string }
  | { readonly kind: 'absent', readonly id: string }

/** A record and its user-data, with the SHA-256 of that (lower-case hexadecimal), which a source computes in slices. Null: there is none. */
export interface LoadedRecord {
  readonly kind: 'record'
  readonly id: string
  readonly digest: string
  readonly document: unknown
  readonly userData: Uint8Array | null
  readonly userDataSha256: string | null
}

/** What a store says of this hypervisor's instances, without their records. */
export interface Index {
  /** False: the store was never published to, was emptied, or is another one. Then `digests` says nothing. */
  readonly initialised: boolean
  /** Id -> a text that differs whenever the record or its user-data does. */
  readonly digests: ReadonlyMap<string, string>
}

/** What a source calls. None of them throws. */
export interface SourceEvents {
  /** Something about this instance may have changed: a hint only. */
  readonly notice: (id: string) => void
  /** Notices flow from here on; whatever happened before may have been missed. */
  readonly connected: () => void
  /** The store went away or does not answer; `reason` is for the operator. */
  readonly disconnected: (reason: string) => void
}

/** A store as the daemon reads it. */
export interface Source {
  /** Where it is, for people: never holds a password. */
  readonly description: string
  /** Begins to connect and never gives up; returns at once. */
  start(events: SourceEvents): void
  /** Reads the index. Rejects when the store does not answer. */
  index(): Promise<Index>
  /** Reads some instances, in the order asked, and only a few at a time: as fast as they are taken. Rejects when the store does not answer. */
  load(ids: readonly string[]): AsyncIterable<Loaded>
  /** Who has an address, as the store's index says: a hint like a notice. Null: nobody. Rejects when the store does not answer. */
  owner(network: string, address: string): Promise<string | null>
  stop(): Promise<void>
}
