/**
 * The writer of encrypted records: encrypts them before a store gets them.
 *
 * The store cannot read encrypted values, so this does what publish.lua does for plain records: it encrypts user-data
 * that stays again for the new revision, and copies the seal in the store into the record. Beside the values, the store
 * gets the fields that it compares (id, revision, order, addresses, hypervisors, seal), which daemons do not trust. If
 * the instance changed meanwhile, the store refuses the write, and this repeats it.
 *
 * This also chooses the place in the order, and encrypts it with the record: a store that is not trusted could give an
 * old record a new place. The store refuses a place that is not above its last one, and this repeats the write with a
 * later one.
 */
import type { Instance } from '../../metadata/instance.ts'
import { parse, sealOf } from '../../metadata/record.ts'
import { sha256, userDataFaults } from '../../metadata/user-data.ts'
import type { Conversion, RecordWriter, Written } from '../backend.ts'
import type { RemoveOptions, RemoveResult } from '../publisher.ts'
import { MAX_PLACE_AHEAD_MS } from '../order.ts'
import { sealAfter, withSeal, type Seal } from '../seal.ts'
import { isEncrypted, type RecordCipher } from './record-cipher.ts'
import { readStored, type StoredContents } from './stored.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'

/**
 * The stored values of an instance. `userData` and `digest` are undefined if the store has none. `fault`: why they were
 * not read.
 */
export interface StoredBytes {
  readonly record: Buffer
  readonly userData: Buffer | undefined
  readonly digest: string | undefined
  readonly fault?: string
}

/**
 * Encrypted values to write. The store compares `instance`, `order` and `sealedAt`. `isFromStore`: the contents were read
 * from the store, which refuses them while it has lost changes.
 */
export interface EncryptedValues {
  readonly instance: Instance
  readonly order: number
  readonly isFromStore: boolean
  readonly sealedAt: Seal
  readonly record: Buffer
  readonly userData: Buffer | undefined
}

/**
 * `onlyIf`: write only if the instance has this digest in the store (undefined: only if the store has no such
 * instance). Without `onlyIf`: always.
 */
export interface WriteOptions {
  readonly liftsSeal: boolean
  readonly onlyIf: { readonly digest: string | undefined } | undefined
  readonly dryRun: boolean
}

/** The last place that is known in the region, when the given one was not above it. */
export interface NotAbove {
  readonly kind: 'order'
  readonly last: number
}

/**
 * The outcome of a write. `sealed`: the store has a seal, which the record must have too. `changed`: the instance has
 * another digest.
 */
export type EncryptedWritten =
  | Exclude<Written, { kind: 'user-data-changed' }>
  | NotAbove
  | { readonly kind: 'sealed'; readonly sealedAt: string }
  | { readonly kind: 'changed' }

/** The outcome of a conversion. `invalid` is final; after `refused` another attempt may succeed. */
export type Converted =
  | { readonly kind: 'converted'; readonly order: number }
  | { readonly kind: 'invalid' | 'refused'; readonly reason: string }

/** A store of values that it cannot read. */
export interface ValueStore {
  values(id: string): Promise<StoredBytes | undefined>
  writeEncrypted(values: EncryptedValues, options: WriteOptions): Promise<EncryptedWritten>
  remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult>
  /** Replaces the values with encrypted ones of the same contents and revision, if the instance has this digest. */
  convertToEncrypted(values: EncryptedValues, digest: string | undefined): Promise<Converted | NotAbove>
  convertToPlain(document: unknown, userData: Buffer | undefined, digest: string | undefined): Promise<Converted>
  mark(as: 'plain' | 'encrypted'): Promise<void>
}

const MAX_ATTEMPTS = 5
/** How often a place is chosen again. Each time it is further ahead, so that writers with faster clocks do not win for ever. */
const MAX_PLACES = 12
const FIRST_LEAP_MICROSECONDS = 1_000

/** Contents to encrypt. `document` has no place yet. */
interface ToEncrypt {
  readonly instance: Instance
  readonly document: unknown
  readonly userData: Uint8Array | undefined
  readonly isFromStore: boolean
}

type StoredRecord = Extract<StoredContents, { kind: 'record' }>

/** Builds the writer, which reads only values that the cipher accepts. `now`: Unix time in milliseconds. */
export function buildEncryptingWriter(
  cipher: RecordCipher,
  store: ValueStore,
  now: () => number,
): RecordWriter & Conversion {
  /** The last place that this writer has chosen. */
  let last = 0
  /** Encrypts contents with a place, and writes them; again with a later place while the store asks for one. */
  const place = async <T extends { readonly kind: string }>(
    { instance, document, userData, isFromStore }: ToEncrypt,
    write: (values: EncryptedValues) => Promise<T>,
  ): Promise<Exclude<T, NotAbove>> => {
    const { id, revision } = instance
    const encryptedUserData = userData && cipher.encrypt('user-data', id, revision, userData)
    let above = 0
    for (let attempt = 0; attempt < MAX_PLACES; attempt++) {
      const order = Math.max(last + 1, above, Math.floor(now() * 1_000))
      if (order > (now() + MAX_PLACE_AHEAD_MS) * 1_000) break // the store is not trusted
      last = order
      const text = JSON.stringify({ ...(document as object), order })
      const written = await write({
        instance,
        order,
        isFromStore,
        sealedAt: (document as { sealedAt?: string }).sealedAt,
        record: cipher.encrypt('record', id, revision, Buffer.from(text)),
        userData: encryptedUserData,
      })
      if (written.kind !== 'order') return written as Exclude<T, NotAbove>
      above = (written as NotAbove & T).last + FIRST_LEAP_MICROSECONDS * 2 ** attempt
    }
    throw new Error(
      'the store takes no place in the order that this publisher gives: compare its clock with that of Redis ' +
        '(docs/redis-layout.md#order)',
    )
  }
  /** The values in the store if they have exactly these contents. Their ciphertext differs each time. */
  const holds = async (
    id: string,
    document: unknown,
    userData: Uint8Array | undefined,
  ): Promise<StoredBytes | undefined> => {
    const values = await store.values(id)
    const stored = values && (await read(id, values, cipher))
    if (stored?.kind !== 'record' || JSON.stringify(stored.document) !== JSON.stringify(document)) return undefined
    const isSame =
      userData === undefined || stored.userData === undefined
        ? userData === stored.userData
        : stored.userData.equals(userData)
    return isSame ? values : undefined
  }
  /**
   * Converts an instance; again if it changes meanwhile. `ifPlain`: the result for plain values, which are then not
   * read. `write` returns undefined if there is nothing to do.
   */
  const convert = async <Kind extends string>(
    id: string,
    done: Kind,
    ifPlain: Kind | undefined,
    write: (stored: StoredRecord, digest: string | undefined) => Promise<Converted> | undefined,
  ): Promise<{ readonly kind: Kind | 'absent' | 'unchanged' }> => {
    for (let attempt = 1; ; attempt++) {
      const before = await store.values(id)
      if (before === undefined) return { kind: 'absent' }
      const isPlain = before.fault === undefined && !isEncrypted(before.record)
      if (isPlain && ifPlain !== undefined) return { kind: ifPlain }
      const stored = await read(id, before, isPlain ? undefined : cipher)
      if (stored.kind !== 'record') throw new Error(`${id}: ${stored.reason}`)
      const converted = await write(stored, before.digest)
      if (converted === undefined) return { kind: 'unchanged' }
      if (converted.kind === 'converted') return { kind: done }
      if (attempt === MAX_ATTEMPTS || converted.kind === 'invalid')
        throw new Error(`the store refused to have ${id} ${done}: ${converted.reason}`)
    }
  }

  return {
    key: cipher.current,
    write: async ({ instance, document, userData, liftsSeal, dryRun }) => {
      const { id, revision } = instance
      const before = await store.values(id)
      const stored = before && (await read(id, before, cipher))
      const current = stored?.kind === 'record' ? stored : undefined
      const bytes = userData === 'keep' ? current?.userData : userData === 'none' ? undefined : userData
      if (userData === 'keep' && (bytes && sha256(bytes)) !== instance.userData?.sha256)
        return { kind: 'user-data-changed' }
      const onlyIf = userData === 'keep' ? { digest: before?.digest } : undefined
      let sealedAt = sealAfter(sealOf(current?.document), instance.sealedAt, liftsSeal)
      for (let attempt = 1; ; attempt++) {
        const sealed = withSeal(document, sealedAt)
        const isFromStore = userData === 'keep'
        const contents = { instance, document: sealed, userData: bytes, isFromStore }
        const written = await place(contents, (values) => store.writeEncrypted(values, { liftsSeal, onlyIf, dryRun }))
        if (written.kind === 'changed') return { kind: 'user-data-changed' }
        if (written.kind === 'stale' && written.revision === revision) {
          const held = await holds(id, sealed, bytes)
          if (held === undefined) return written
          if (dryRun) return { kind: 'unchanged', order: 0, sealedAt }
          const again = await place(contents, (values) => store.convertToEncrypted(values, held.digest))
          if (again.kind === 'converted') return { kind: 'unchanged', order: again.order, sealedAt }
          if (again.kind === 'invalid') throw new Error(`the store refused ${id}: ${again.reason}`)
          return { kind: 'user-data-changed' } // another writer has changed the instance
        }
        if (written.kind !== 'sealed') return written
        if (attempt === MAX_ATTEMPTS)
          throw new Error('another writer keeps changing the seal of this instance: try again')
        sealedAt = written.sealedAt // from a tombstone, or from another writer
      }
    },
    remove: (id, revision, options) => store.remove(id, revision, options),
    encrypt: (id, fromPlain) =>
      convert<'encrypted' | 'plain'>(id, 'encrypted', fromPlain ? undefined : 'plain', (stored, digest) =>
        stored.keys.length > 0 && stored.keys.every((name) => name === cipher.current)
          ? undefined
          : place(
              {
                instance: validInstance(id, stored),
                document: stored.document,
                userData: stored.userData,
                isFromStore: true,
              },
              (values) => store.convertToEncrypted(values, digest),
            ),
      ),
    decrypt: (id) =>
      convert<'decrypted' | 'unchanged'>(id, 'decrypted', 'unchanged', ({ document, userData }, digest) =>
        store.convertToPlain(document, userData, digest),
      ),
    mark: (as) => store.mark(as),
  }
}

async function read(
  id: string,
  { record, userData, fault }: StoredBytes,
  cipher: RecordCipher | undefined,
): Promise<StoredContents> {
  return fault !== undefined
    ? { kind: 'unreadable', reason: fault }
    : readStored(id, record, userData, cipher, new TurnBudget())
}

function validInstance(id: string, { document, userData }: StoredRecord): Instance {
  const parsed = parse(document)
  if (
    !parsed.ok ||
    parsed.value.id !== id ||
    userDataFaults(parsed.value, userData, userData && sha256(userData), Infinity).length > 0
  ) {
    throw new Error(`the store's record of ${id} is faulty: publish a valid one`)
  }
  return parsed.value
}
