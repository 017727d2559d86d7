/**
 * Authenticated encryption of records, user-data and journals.
 *
 * With keys, the values in Redis and the journal on disk are encrypted. An attacker who can read them learns nothing,
 * and an attacker who can write them can neither forge a value nor exchange one for another. docs/encryption.md has the
 * format of a value, so that publishers in any language can make one. The first key encrypts and every key decrypts, so
 * that keys can be replaced one after the other.
 *
 * It does not protect against replay: an older value of the same instance, with its older revision, is authentic too.
 */
import {
  createCipheriv,
  createDecipheriv,
  createSecretKey,
  hkdfSync,
  randomBytes,
  type DecipherGCM,
  type KeyObject,
} from 'node:crypto'
import type { Parsed } from '../../metadata/parsed.ts'
import { slices, type TurnBudget } from '../../limits/turn-budget.ts'

const ALGORITHM = 'aes-256-gcm'
const NONCE_BYTES = 12
const NAME = '[A-Za-z0-9][A-Za-z0-9._-]{0,62}'
const HEADER = new RegExp(`^imds1 (${NAME}) (0|[1-9]\\d{0,15})\n`)
const MAX_HEADER_LENGTH = 87
const TAG_BYTES = 16
/** An encrypted value is longer than its contents by at most this, in bytes. */
export const MAX_ENCRYPTION_OVERHEAD_BYTES = MAX_HEADER_LENGTH + NONCE_BYTES + TAG_BYTES

/** A key and its name, which every value that it encrypted contains. */
export interface RecordKey {
  readonly name: string
  readonly key: KeyObject
}
/** The keys of a region: the first encrypts, all decrypt. */
export type RecordKeys = readonly [RecordKey, ...RecordKey[]]

/** The kind of a value. The id of a journal is its hypervisor's name. */
export type ValueKind = 'record' | 'user-data' | 'reports' | 'journal'

/** A value that is not accepted. `reason` continues its name (`is not authentic`) and never quotes the contents. */
export interface RejectedValue {
  readonly kind: 'rejected'
  readonly reason: string
}
/** The contents of a value, the revision that it was made for, and the name of its key. */
export interface Decrypted {
  readonly kind: 'decrypted'
  readonly bytes: Buffer
  readonly revision: number
  readonly key: string
}

/**
 * The parts of a value in their order: `head`, the result of `update` for each part of the contents, the result of
 * `end`.
 */
export interface Encryption {
  readonly head: Buffer
  readonly update: (part: Uint8Array) => Buffer
  readonly end: () => Buffer
}

/** A decryption that has begun. Use nothing of it before it is found authentic. */
interface Begun {
  readonly kind: 'begun'
  readonly decipher: DecipherGCM
  readonly ciphertext: Buffer
  readonly revision: number
  readonly key: string
}

/** Parses a file of keys: `NAME:BASE64-OF-32-BYTES`, one per line. A fault names lines and never quotes them. */
export function parseRecordKeys(text: string): Parsed<RecordKeys, string> {
  const keys: RecordKey[] = []
  for (const [i, line] of text
    .split('\n')
    .map((raw) => raw.trim())
    .entries()) {
    if (line === '') continue
    const [, name, base64] = new RegExp(`^(${NAME}):([A-Za-z0-9+/]{43}=)$`).exec(line) ?? []
    if (name === undefined || base64 === undefined)
      return { ok: false, faults: [`has no NAME:BASE64-OF-32-BYTES in line ${i + 1}`] }
    if (keys.some((other) => other.name === name))
      return { ok: false, faults: [`has the name of an earlier key in line ${i + 1}`] }
    keys.push({ name, key: createSecretKey(base64, 'base64') })
  }
  const [first, ...others] = keys
  return first === undefined
    ? { ok: false, faults: ['has no key: NAME:BASE64-OF-32-BYTES, one per line'] }
    : { ok: true, value: [first, ...others] }
}

/** True for a value that begins like an encrypted one. */
export function isEncrypted(value: Buffer): boolean {
  return value.subarray(0, 6).toString('latin1') === 'imds1 '
}

export class RecordCipher {
  readonly #keys: RecordKeys
  readonly #region: string
  readonly #derived = new Map<string, KeyObject>()

  constructor(keys: RecordKeys, region: string) {
    this.#keys = keys
    this.#region = region
  }

  get current(): string {
    return this.#keys[0].name
  }

  /** The names of all keys, the one that encrypts first. */
  get names(): readonly string[] {
    return this.#keys.map(({ name }) => name)
  }

  /**
   * Keys for MACs over the state of a hypervisor, one derived from each record key, that of the first record key first.
   */
  macKeys(hypervisor: string): readonly [KeyObject, ...KeyObject[]] {
    const [first, ...others] = this.#keys
    const derive = (key: RecordKey) => this.#deriveFor(key, `state-mac ${this.#region} ${hypervisor}`)
    return [derive(first), ...others.map(derive)]
  }

  encrypt(kind: ValueKind, id: string, revision: number, bytes: Uint8Array): Buffer {
    const { head, update, end } = this.encrypting(kind, id, revision)
    return Buffer.concat([head, update(bytes), end()])
  }

  encrypting(kind: ValueKind, id: string, revision: number): Encryption {
    const [key] = this.#keys
    const header = `imds1 ${key.name} ${revision}`
    const nonce = randomBytes(NONCE_BYTES)
    const cipher = createCipheriv(ALGORITHM, this.#derive(key, kind, id), nonce).setAAD(this.#bound(header, kind, id))
    return {
      head: Buffer.concat([Buffer.from(`${header}\n`), nonce]),
      update: (part) => cipher.update(part),
      end: () => Buffer.concat([cipher.final(), cipher.getAuthTag()]),
    }
  }

  /** Decrypts a value. Rejects it unless it was made with one of the keys, for this region, kind and id. */
  decrypt(kind: ValueKind, id: string, value: Buffer): Decrypted | RejectedValue {
    const begun = this.#begin(kind, id, value)
    return begun.kind === 'rejected' ? begun : authentic(begun, begun.decipher.update(begun.ciphertext))
  }

  /** `decrypt` for values of any length. */
  async decryptInSlices(
    kind: ValueKind,
    id: string,
    value: Buffer,
    budget: TurnBudget,
  ): Promise<Decrypted | RejectedValue> {
    const begun = this.#begin(kind, id, value)
    if (begun.kind === 'rejected') return begun
    const bytes = Buffer.allocUnsafe(begun.ciphertext.length)
    let at = 0
    for (const slice of slices(begun.ciphertext)) {
      at += begun.decipher.update(slice).copy(bytes, at)
      await budget.spend(slice.length)
    }
    return authentic(begun, bytes)
  }

  #begin(kind: ValueKind, id: string, value: Buffer): Begun | RejectedValue {
    const [header, name, revision] = HEADER.exec(value.subarray(0, MAX_HEADER_LENGTH).toString('latin1')) ?? []
    if (header === undefined) return { kind: 'rejected', reason: 'is not encrypted, or not in the format of imds' }
    const key = this.#keys.find((ours) => ours.name === name)
    if (key === undefined)
      return { kind: 'rejected', reason: `was encrypted with a key that is not configured here: ${name!}` }
    const start = header.length + NONCE_BYTES
    const end = value.length - TAG_BYTES
    if (end < start) return { kind: 'rejected', reason: 'is truncated' }
    const decipher = createDecipheriv(ALGORITHM, this.#derive(key, kind, id), value.subarray(header.length, start), {
      authTagLength: TAG_BYTES,
    })
      .setAAD(this.#bound(header.slice(0, -1), kind, id))
      .setAuthTag(value.subarray(end))
    return {
      kind: 'begun',
      decipher,
      ciphertext: value.subarray(start, end),
      revision: Number(revision),
      key: key.name,
    }
  }

  #bound(header: string, kind: ValueKind, id: string): Buffer {
    return Buffer.from(`${header} ${kind} ${this.#region} ${id}`)
  }

  #derive(key: RecordKey, kind: ValueKind, id: string): KeyObject {
    return this.#deriveFor(key, `${kind} ${this.#region}${kind === 'journal' ? ` ${id}` : ''}`)
  }

  #deriveFor({ name, key }: RecordKey, purpose: string): KeyObject {
    let derived = this.#derived.get(`${name} ${purpose}`)
    if (derived === undefined) {
      derived = createSecretKey(Buffer.from(hkdfSync('sha256', key, Buffer.alloc(0), `imds1 ${purpose}`, 32)))
      this.#derived.set(`${name} ${purpose}`, derived)
    }
    return derived
  }
}

function authentic({ decipher, revision, key }: Begun, bytes: Buffer): Decrypted | RejectedValue {
  try {
    decipher.final()
    return { kind: 'decrypted', bytes, revision, key }
  } catch {
    return {
      kind: 'rejected',
      reason: 'is not authentic: it was changed, or encrypted with another key or for another instance',
    }
  }
}
