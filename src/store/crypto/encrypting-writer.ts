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
import type { Conversion, RecordChange, RecordWriter, Written } from '../backend.ts'
import type { DecryptResult, EncryptResult, RemoveOptions, RemoveResult } from '../publisher.ts'
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

/** Reads only values that the cipher accepts. */
export class EncryptingWriter implements RecordWriter, Conversion {
  readonly #cipher: RecordCipher
  readonly #store: ValueStore

  constructor(cipher: RecordCipher, store: ValueStore) {
    this.#cipher = cipher
    this.#store = store
  }

  get key(): string {
    return this.#cipher.current
  }

  async write({ instance, document, userData, liftsSeal, dryRun }: RecordChange): Promise<Written> {
    const { id, revision } = instance
    const before = await this.#store.values(id)
    const stored = before && (await this.#read(id, before, this.#cipher))
    const current = stored?.kind === 'record' ? stored : undefined
    const bytes = userData === 'keep' ? current?.userData : userData === 'none' ? undefined : userData
    if (userData === 'keep' && (bytes && sha256(bytes)) !== instance.userData?.sha256)
      return { kind: 'user-data-changed' }
    const onlyIf = userData === 'keep' ? { digest: before?.digest } : undefined
    let sealedAt = sealAfter(sealOf(current?.document), instance.sealedAt, liftsSeal)
    for (let attempt = 1; ; attempt++) {
      const sealed = withSeal(document, sealedAt)
      const values = this.#encrypt(instance, sealed, bytes)
      const written = await this.#store.writeEncrypted(values, { liftsSeal, onlyIf, dryRun })
      if (written.kind === 'changed') return { kind: 'user-data-changed' }
      if (written.kind === 'stale' && written.revision === revision && (await this.#holds(id, sealed, bytes)))
        return { kind: 'unchanged', sealedAt }
      if (written.kind !== 'sealed') return written
      if (attempt === MAX_ATTEMPTS)
        throw new Error('another writer keeps changing the seal of this instance: try again')
      sealedAt = written.sealedAt // from a tombstone, or from another writer
    }
  }

  remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult> {
    return this.#store.remove(id, revision, options)
  }

  async encrypt(id: string, fromPlain: boolean): Promise<EncryptResult> {
    for (let attempt = 1; ; attempt++) {
      const before = await this.#store.values(id)
      if (before === undefined) return { kind: 'absent' }
      const isPlain = before.fault === undefined && !isEncrypted(before.record)
      if (isPlain && !fromPlain) return { kind: 'plain' }
      const stored = await this.#read(id, before, isPlain ? undefined : this.#cipher)
      if (stored.kind !== 'record') throw new Error(`${id}: ${stored.reason}`)
      if (!isPlain && stored.keys.every((name) => name === this.#cipher.current)) return { kind: 'unchanged' }
      const values = this.#encrypt(validInstance(id, stored), stored.document, stored.userData)
      const converted = await this.#store.convertToEncrypted(values, before.digest)
      if (converted.kind === 'converted') return { kind: 'encrypted' }
      if (attempt === MAX_ATTEMPTS || converted.kind === 'invalid')
        throw new Error(`the store refused to have ${id} encrypted: ${converted.reason}`)
    }
  }

  async decrypt(id: string): Promise<DecryptResult> {
    for (let attempt = 1; ; attempt++) {
      const before = await this.#store.values(id)
      if (before === undefined) return { kind: 'absent' }
      if (before.fault === undefined && !isEncrypted(before.record)) return { kind: 'unchanged' }
      const stored = await this.#read(id, before, this.#cipher)
      if (stored.kind !== 'record') throw new Error(`${id}: ${stored.reason}`)
      const converted = await this.#store.convertToPlain(stored.document, stored.userData, before.digest)
      if (converted.kind === 'converted') return { kind: 'decrypted' }
      if (attempt === MAX_ATTEMPTS || converted.kind === 'invalid')
        throw new Error(`the store refused to have ${id} decrypted: ${converted.reason}`)
    }
  }

  mark(as: 'plain' | 'encrypted'): Promise<void> {
    return this.#store.mark(as)
  }

  async #read(
    id: string,
    { record, userData, fault }: StoredBytes,
    cipher: RecordCipher | undefined,
  ): Promise<StoredContents> {
    return fault !== undefined
      ? { kind: 'unreadable', reason: fault }
      : readStored(id, record, userData, cipher, new TurnBudget())
  }

  #encrypt(instance: Instance, document: unknown, userData: Uint8Array | undefined): EncryptedValues {
    const { id, revision } = instance
    return {
      instance,
      sealedAt: (document as { sealedAt?: string }).sealedAt,
      record: this.#cipher.encrypt('record', id, revision, Buffer.from(JSON.stringify(document))),
      userData: userData && this.#cipher.encrypt('user-data', id, revision, userData),
    }
  }

  /** Whether the store has exactly these contents. Their ciphertext differs each time. */
  async #holds(id: string, document: unknown, userData: Uint8Array | undefined): Promise<boolean> {
    const values = await this.#store.values(id)
    const stored = values && (await this.#read(id, values, this.#cipher))
    if (stored?.kind !== 'record' || JSON.stringify(stored.document) !== JSON.stringify(document)) return false
    return userData === undefined || stored.userData === undefined
      ? userData === stored.userData
      : stored.userData.equals(userData)
  }
}

function validInstance(id: string, { document, userData }: Extract<StoredContents, { kind: 'record' }>): Instance {
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
