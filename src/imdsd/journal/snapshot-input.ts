/**
 * Reads the file of a snapshot, plain or encrypted, one slice at a time. The data of an encrypted file must not be used
 * before `authenticate` has returned, since it may be forged.
 */
import { createHash } from 'node:crypto'
import { closeSync, fstatSync, readSync } from 'node:fs'
import { parseJson } from '../../runtime/json.ts'
import { openRegularFileSync } from '../../runtime/regular-file.ts'
import { SLICE_BYTES } from '../../limits/turn-budget.ts'
import {
  HEAD_BYTES,
  isEncrypted,
  TAG_BYTES,
  type Decryption,
  type Ends,
  type RecordCipher,
} from '../../store/crypto/record-cipher.ts'

const LF = 0x0a

/** Why a file is not served, and never can be. */
export class RejectedFile extends Error {}
/** Why a file is not served by this start. With another configuration or clock it may be the last good state. */
export class Mismatch extends Error {}
/** None of the configured keys decrypts the file: the key is wrong, or the file was changed. */
export class Undecryptable extends Mismatch {}

/** The rejection of a file with a wrong form or digest. */
export function torn(): RejectedFile {
  return new RejectedFile('it is torn or was changed')
}

/** An open file. Its methods throw a RejectedFile, an Undecryptable, or an error of the file system. */
export class SnapshotInput {
  readonly #fd: number
  readonly #buffer = Buffer.allocUnsafeSlow(SLICE_BYTES)
  /** Undefined: the file is plain. */
  readonly #decryption: Decryption | undefined
  readonly #hash = createHash('sha256')
  /** Where the next slice begins in the file, and where the last one ends. */
  #position: number
  readonly #limit: number
  /** The current slice, and how much of it was taken. */
  #slice: Buffer = Buffer.alloc(0)
  #at = 0
  /**
   * Where the last line begins in the current slice (Infinity: bytes came after it), and the parts of it in earlier
   * slices. A line is hashed once it is known not to be the trailer.
   */
  #lineStart = 0
  #earlier: Buffer[] = []

  /** Opens a file; `close` closes it. `hypervisor` is the one that the file was encrypted for. */
  constructor(path: string, hypervisor: string, cipher: RecordCipher | undefined) {
    this.#fd = openRegularFileSync(path, 'refuse')
    try {
      const { size } = fstatSync(this.#fd)
      const head = Buffer.from(this.#read(0, HEAD_BYTES))
      const tag = Buffer.from(this.#read(Math.max(0, size - TAG_BYTES), TAG_BYTES))
      this.#decryption = decryptionOf(hypervisor, cipher, { head, tag, length: size })
      this.#position = this.#decryption?.start ?? 0
      this.#limit = this.#decryption === undefined ? size : size - TAG_BYTES
    } catch (error) {
      this.close()
      throw error
    }
  }

  get isEncrypted(): boolean {
    return this.#decryption !== undefined
  }

  /** The name of the key that the file was encrypted with; undefined: it is plain. */
  get keyName(): string | undefined {
    return this.#decryption?.key
  }

  close(): void {
    closeSync(this.#fd)
  }

  /** The object of the next line. */
  object(): Record<string, unknown> {
    this.#hashEarlier()
    this.#lineStart = this.#at
    for (;;) {
      const end = this.#slice.indexOf(LF, this.#at)
      if (end !== -1) {
        this.#at = end + 1
        break
      }
      this.#fill()
    }
    const rest = this.#slice.subarray(this.#lineStart, this.#at)
    return json(this.#earlier.length === 0 ? rest : Buffer.concat([...this.#earlier, rest]))
  }

  /** The next `count` bytes, which an LF follows. */
  bytes(count: unknown): Buffer {
    const left = this.#slice.length - this.#at + this.#limit - this.#position
    if (typeof count !== 'number' || !Number.isInteger(count) || count < 0 || count > left) throw torn()
    this.#hashEarlier()
    this.#lineStart = Infinity
    const bytes = Buffer.allocUnsafe(count)
    for (let copied = 0; copied < count;) {
      if (this.#at === this.#slice.length) this.#fill()
      const part = this.#slice.copy(bytes, copied, this.#at)
      copied += part
      this.#at += part
    }
    if (this.#at === this.#slice.length) this.#fill()
    if (this.#slice[this.#at] !== LF) throw torn()
    this.#at += 1
    return bytes
  }

  /**
   * The SHA-256, in hexadecimal, of everything before the last line that was read, which must be the file's last line.
   */
  digest(): string {
    if (this.#at < this.#slice.length || this.#position < this.#limit) throw torn()
    return this.#hash.update(this.#slice.subarray(0, this.#lineStart)).digest('hex')
  }

  /** Throws an Undecryptable if the file is encrypted and not authentic. Reads what is left of it. */
  authenticate(): void {
    if (this.#decryption === undefined) return
    while (this.#position < this.#limit) this.#fill()
    const rejected = this.#decryption.end()
    if (rejected !== undefined) throw new Undecryptable(`it ${rejected.reason}`)
  }

  #hashEarlier(): void {
    for (const part of this.#earlier) this.#hash.update(part)
    this.#earlier = []
  }

  #fill(): void {
    this.#hash.update(this.#slice.subarray(0, this.#lineStart))
    const isInLine = this.#lineStart !== Infinity
    if (isInLine) this.#earlier.push(Buffer.from(this.#slice.subarray(this.#lineStart)))
    const read = this.#read(this.#position, Math.min(SLICE_BYTES, this.#limit - this.#position))
    if (read.length === 0) throw torn()
    this.#position += read.length
    this.#slice = this.#decryption?.update(read) ?? read
    this.#at = 0
    if (isInLine) this.#lineStart = 0
  }

  /** Up to `length` bytes, in a buffer that the next read uses again. */
  #read(position: number, length: number): Buffer {
    return this.#buffer.subarray(0, readSync(this.#fd, this.#buffer, 0, length, position))
  }
}

/** Undefined: the file is plain. */
function decryptionOf(hypervisor: string, cipher: RecordCipher | undefined, value: Ends): Decryption | undefined {
  if (!isEncrypted(value.head)) return undefined
  if (cipher === undefined) throw new Undecryptable('it is encrypted, and there are no keys (IMDS_RECORD_KEYS_FILE)')
  const decryption = cipher.decrypting('snapshot', hypervisor, value)
  if (decryption.kind === 'rejected') throw new Undecryptable(`it ${decryption.reason}`)
  return decryption
}

/** The object on a line of a file. */
export function json(line: Buffer): Record<string, unknown> {
  const value = parseJson(line.toString('utf8'))
  if (typeof value !== 'object' || value === null) throw torn()
  return value as Record<string, unknown>
}
