/**
 * The writer of encrypted records: encrypts them before a store gets them.
 *
 * The store cannot read encrypted values, so this does what publish.lua does for plain records: it encrypts user-data
 * that stays again for the new revision, and copies the seal in the store into the record. Beside the values, the store
 * gets the fields that it compares (id, revision, addresses, hypervisors, seal), which daemons do not trust. If the
 * instance changed meanwhile, the store refuses the write, and this repeats it.
 */
import type { Instance } from '../../metadata/instance.ts'
import { parseStored, sealOf } from '../../metadata/record.ts'
import { sha256, userDataFaults } from '../../metadata/user-data.ts'
import type { Conversion, RecordWriter, Written } from '../backend.ts'
import type { RemoveOptions, RemoveResult } from '../publisher.ts'
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

/** Encrypted values to write. The store compares `instance` and `sealedAt`. */
export interface EncryptedValues {
  readonly instance: Instance
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

/**
 * The outcome of a write. `sealed`: the store has a seal, which the record must have too. `changed`: the instance has
 * another digest.
 */
export type EncryptedWritten =
  | Exclude<Written, { kind: 'user-data-changed' }>
  | { readonly kind: 'sealed'; readonly sealedAt: string }
  | { readonly kind: 'changed' }

/** The outcome of a conversion. `invalid` is final; after `refused` another attempt may succeed. */
export type Converted =
  | { readonly kind: 'converted' }
  | { readonly kind: 'invalid' | 'refused'; readonly reason: string }

/** A store of values that it cannot read. */
export interface ValueStore {
  values(id: string): Promise<StoredBytes | undefined>
  writeEncrypted(values: EncryptedValues, options: WriteOptions): Promise<EncryptedWritten>
  remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult>
  /** Replaces the values with encrypted ones of the same contents and revision, if the instance has this digest. */
  convertToEncrypted(values: EncryptedValues, digest: string | undefined): Promise<Converted>
  convertToPlain(document: unknown, userData: Buffer | undefined, digest: string | undefined): Promise<Converted>
  mark(as: 'plain' | 'encrypted'): Promise<void>
}

const MAX_ATTEMPTS = 5

type StoredRecord = Extract<StoredContents, { kind: 'record' }>

/** Builds the writer, which reads only values that the cipher accepts. */
export function buildEncryptingWriter(cipher: RecordCipher, store: ValueStore): RecordWriter & Conversion {
  const encrypted = (instance: Instance, document: unknown, userData: Uint8Array | undefined): EncryptedValues => {
    const { id, revision } = instance
    return {
      instance,
      sealedAt: (document as { sealedAt?: string }).sealedAt,
      record: cipher.encrypt('record', id, revision, Buffer.from(JSON.stringify(document))),
      userData: userData && cipher.encrypt('user-data', id, revision, userData),
    }
  }
  /** Whether the store has exactly these contents. Their ciphertext differs each time. */
  const holds = async (id: string, document: unknown, userData: Uint8Array | undefined): Promise<boolean> => {
    const values = await store.values(id)
    const stored = values && (await read(id, values, cipher))
    if (stored?.kind !== 'record' || JSON.stringify(stored.document) !== JSON.stringify(document)) return false
    return userData === undefined || stored.userData === undefined
      ? userData === stored.userData
      : stored.userData.equals(userData)
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
        const written = await store.writeEncrypted(encrypted(instance, sealed, bytes), { liftsSeal, onlyIf, dryRun })
        if (written.kind === 'changed') return { kind: 'user-data-changed' }
        if (written.kind === 'stale' && written.revision === revision && (await holds(id, sealed, bytes)))
          return { kind: 'unchanged', sealedAt }
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
          : store.convertToEncrypted(encrypted(validInstance(id, stored), stored.document, stored.userData), digest),
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
  const parsed = parseStored(document)
  if (
    !parsed.ok ||
    parsed.value.id !== id ||
    userDataFaults(parsed.value, userData, userData && sha256(userData), Infinity).length > 0
  ) {
    throw new Error(`the store's record of ${id} is faulty: publish a valid one`)
  }
  return parsed.value
}
