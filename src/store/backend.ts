/**
 * The two parts of a Publisher. A Backend stores records: in Redis, or in a directory of files. A Codec determines the
 * form of stored records: plain or encrypted.
 *
 * If records are plain, the store reads them, and applies the rules of seals and user-data itself, atomically. It
 * cannot read encrypted records, so the codec applies these rules, and the store compares the facts that the codec
 * sends with the records.
 */
import type { Instance } from '../metadata/instance.ts'
import type { Fault } from '../metadata/record.ts'
import type { Reports } from '../metadata/reports.ts'
import type { Fleet } from './fleet.ts'
import type { Seal } from './seal.ts'
import type {
  AnnouncedHypervisor,
  DecryptResult,
  EncryptResult,
  Listed,
  Published,
  PutRefusal,
  RemoveOptions,
  Removed,
  RemoveResult,
} from './publisher.ts'
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
 * The outcome of a write, with the seal that the record has now. `user-data-changed`: the user-data in the store, which
 * the write was to keep, has changed.
 */
export type Written =
  | { readonly kind: 'published'; readonly sealedAt: Seal }
  | { readonly kind: 'unchanged'; readonly sealedAt: Seal }
  | { readonly kind: 'user-data-changed' }
  | PutRefusal

/** A place that stores records. Each codec declares the `Writer` that it needs. */
export interface Backend<Writer> {
  /** The region that every record must name; undefined: any. */
  readonly region: string | undefined
  readonly fleet: Fleet
  /** Why the plain codec of this backend has no record keys, for messages. */
  readonly noKeysReason: string
  /**
   * Runs a task that may read and then write. A backend with a lock holds it until the task ends. `dryRun`: the task
   * writes nothing, nor may this.
   */
  transaction<T>(task: (writer: Writer) => Promise<T>, dryRun?: boolean): Promise<T>
  /** Returns the names among `names` that no daemon has announced. */
  unannounced(names: readonly string[]): Promise<readonly string[]>
  initialise(): Promise<boolean>
  reports(ids: readonly string[]): Promise<ReadonlyMap<string, Reports>>
  hypervisors(names?: readonly string[]): Promise<readonly AnnouncedHypervisor[]>
  list(): Promise<readonly Listed[]>
  tombstones(): Promise<readonly Removed[]>
  watch(changed: (id: string) => void): Promise<() => Promise<void>>
  close(): Promise<void>
}

/** The form in which records are stored. */
export interface Codec<Reader, Writer extends Reader> {
  get(reader: Reader, id: string): Promise<Published | undefined>
  write(writer: Writer, change: RecordChange): Promise<Written>
  remove(writer: Writer, id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult>
  /** Undefined: this codec has no keys. */
  readonly conversion: Conversion<Writer> | undefined
}

/** Changes between plain and encrypted records, at the same revision. */
export interface Conversion<Writer> {
  encrypt(writer: Writer, id: string, fromPlain: boolean): Promise<EncryptResult>
  decrypt(writer: Writer, id: string): Promise<DecryptResult>
  mark(writer: Writer, as: 'plain' | 'encrypted'): Promise<void>
}

/** A store whose records are plain. */
export interface PlainReader {
  get(id: string): Promise<Published | undefined>
}

/** A store that can read the records that it writes. */
export interface PlainWriter extends PlainReader {
  write(change: RecordChange): Promise<Written>
  remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult>
}

const KEYS_IN_PLAIN: Fault = {
  path: '/identity/keys',
  message: 'must be empty in a store of plain records, since others could read the private key: use record keys',
}

/** The plain codec: the store applies all rules, but that no private key may be readable. */
export const PLAIN: Codec<PlainReader, PlainWriter> = {
  get: (reader, id) => reader.get(id),
  write: async (writer, change) =>
    (change.instance.identity?.keys.length ?? 0) > 0
      ? { kind: 'invalid', faults: [KEYS_IN_PLAIN] }
      : writer.write(change),
  remove: (writer, id, revision, options) => writer.remove(id, revision, options),
  conversion: undefined,
}
