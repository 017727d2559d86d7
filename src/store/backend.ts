/**
 * What a publisher (publish.ts) needs of a store: Redis, or a directory of files.
 *
 * If records are plain, the store reads them, and applies the rules of seals and user-data itself, atomically. It
 * cannot read encrypted records, so crypto/encrypting-writer.ts applies these rules, and the store compares the facts
 * that it sends with the records.
 */
import type { Instance } from '../metadata/instance.ts'
import type { Seal } from './seal.ts'
import type { DecryptResult, EncryptResult, Publisher, PutRefusal, RemoveOptions, RemoveResult } from './publisher.ts'
import type { UserDataChange } from './user-data.ts'

/** A checked record to write: `document` parses to `instance`. The seal in the store stays unless `liftsSeal`. */
export interface RecordChange {
  readonly instance: Instance
  readonly document: unknown
  readonly userData: UserDataChange
  readonly liftsSeal: boolean
  readonly dryRun: boolean
}

/**
 * The outcome of a write, with its place in the order, and the seal that the record has now. `user-data-changed`: the
 * user-data in the store, which the write was to keep, has changed.
 */
export type Written =
  | { readonly kind: 'published'; readonly order: number; readonly sealedAt: Seal }
  | { readonly kind: 'unchanged'; readonly order: number; readonly sealedAt: Seal }
  | { readonly kind: 'user-data-changed' }
  | PutRefusal

/** Writes checked records: decides by revision, seal and owners of the addresses, atomically. */
export interface RecordWriter {
  write(change: RecordChange): Promise<Written>
  remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult>
}

/** Changes between plain and encrypted records, at the same revision. */
export interface Conversion {
  /** The name of the key that encrypts. */
  readonly key: string
  encrypt(id: string, fromPlain: boolean): Promise<EncryptResult>
  decrypt(id: string): Promise<DecryptResult>
  mark(as: 'plain' | 'encrypted'): Promise<void>
}

/** A store behind a publisher: it gets valid ids only, and hands out the writer. */
export interface Backend extends Pick<
  Publisher,
  'fleet' | 'get' | 'reports' | 'initialise' | 'unannounced' | 'hypervisors' | 'list' | 'tombstones' | 'close'
> {
  /** The region that every record must name; undefined: any. */
  readonly region: string | undefined
  /** Undefined: records are plain. */
  readonly conversion: Conversion | undefined
  /** Why there are no record keys, for messages. */
  readonly noKeysReason: string
  /**
   * Runs a task that may read and then write. A backend with a lock holds it until the task ends. `dryRun`: the task
   * writes nothing, nor may this.
   */
  transaction<T>(task: (writer: RecordWriter) => Promise<T>, dryRun: boolean): Promise<T>
}
