/**
 * The view on disk: one file, `view.journal`, which is appended to, and rewritten from time to time. This page has its
 * format and the order of writes; this file reads it.
 *
 * A start serves guests from the journal, and never a state older than one that a guest has seen: it could give an
 * address to its former owner.
 *
 * ## Format
 *
 * The journal is a sequence of frames:
 *
 *     length of the payload (4 bytes, big-endian)  its complement (4 bytes)  MAC (32 bytes)  payload  one byte
 *
 * The last byte is written after everything before it was flushed, and is flushed with the next frame. The MAC of a
 * frame covers that of the frame before it, and the first frame has a random salt. So frames can be cut off at the end,
 * but not changed, exchanged or left out. With record keys each payload is one encrypted value (record-cipher.ts).
 *
 * The first payload is a header: whose journal it is, and the form of its records. Each other one has lines, which are
 * changes of the view (change.ts):
 *
 *     {"instance": record, "digest", "order", "lost": ranges, "userDataBytes": n}, the user-data, a line feed
 *     {"removed": id, "order": n}
 *     {"freed": ranges}                             that instances had left before the rewrite
 *     {"unconfirmed": ranges}
 *     {"reported": id, "reports"}
 *     {"compared": time, "complete", "floor": n}    when the view was last compared with the store
 *
 * The first lines make the view of some moment, and end with a comparison. Then come the changes since. A start applies
 * all of them as the daemon did.
 *
 * ## Order of writes
 *
 *     change:  append (write, flush) -> view -> guests, firewall, launch gate
 *     rewrite: write the view to view.journal.tmp, beside changes -> append to it the changes since it began (flush)
 *              -> rename -> flush the directory
 *     start:   read (flush) -> flush the directory -> serve; the first write is a rewrite
 *     give up: set the mark (stale-mark.ts) -> delete the journal -> flush the directory
 *
 * A change reaches guests only after its frame was flushed. So a frame that anything follows must be authentic;
 * otherwise the journal was damaged, and nothing is served. Only the last frame may be torn: it is shorter than its
 * length, or not authentic, or ends in zeros, which file systems may leave after a power failure. It was never in the
 * view. A last frame that is authentic is served, also without the byte after it: a power failure may have taken that
 * byte of a frame that was in the view, and a frame that was not has what the store had.
 *
 * persistence.ts says when the journal is rewritten, and when it is given up.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { fdatasyncSync, fstatSync, readSync } from 'node:fs'
import { SLICE_BYTES } from '../../limits/turn-budget.ts'
import { isEncrypted } from '../../store/crypto/record-cipher.ts'
import { objectOf } from './encoding.ts'
import type { StateKeys, StateOwner } from './state-files.ts'
import { malformed, Mismatch, RejectedJournal } from './unserved-journal.ts'

export const FORMAT = 2
const LENGTH_BYTES = 8
const MAC_BYTES = 32
const HEAD_BYTES = LENGTH_BYTES + MAC_BYTES
/** Written after a frame that was flushed. Its presence counts, not its value. */
export const FLUSHED = Buffer.from('\n')
/** What a frame has besides its payload. */
export const FRAME_BYTES = HEAD_BYTES + FLUSHED.length
/** What the MAC of the first frame covers in place of one before it. */
export const NO_MAC: Buffer = Buffer.alloc(MAC_BYTES)

export type MacKey = StateKeys['macKeys'][number]

/** The length of a payload and its complement. */
export function lengthBytes(length: number): Buffer {
  const bytes = Buffer.alloc(LENGTH_BYTES)
  bytes.writeUInt32BE(length)
  bytes.writeUInt32BE(~length >>> 0, 4)
  return bytes
}

/** The first line of a journal. */
export function headerOf({ store, region, hypervisor }: StateOwner): Readonly<Record<string, unknown>> {
  return { imds: 'journal', format: FORMAT, store, region, hypervisor }
}

interface Frame {
  readonly isAuthentic: boolean
  readonly payload: Buffer
}

/** Reads the frames of an open journal, which the caller closes. Its methods throw errors of unserved-journal.ts. */
export class JournalReader {
  readonly #fd: number
  readonly #size: number
  readonly #owner: StateOwner
  readonly #keys: StateKeys
  /** The key of the first frame. */
  #key: MacKey | undefined
  #mac = NO_MAC
  #position = 0

  constructor(fd: number, owner: StateOwner, keys: StateKeys) {
    // a killed daemon may have written more than it has flushed: what is served must be there after a power failure too
    fdatasyncSync(fd)
    this.#fd = fd
    this.#size = fstatSync(fd).size
    this.#owner = owner
    this.#keys = keys
  }

  /** The first payload. Throws a Mismatch if the journal is of another owner, or its keys do not fit. */
  header(): Readonly<Record<string, unknown>> {
    const first = this.#nextFrame()
    if (first?.isAuthentic !== true) throw new Mismatch(this.#whyNotAuthentic(first?.payload))
    const header = objectOf(this.#decrypt(first.payload))
    const expected = headerOf(this.#owner)
    if (header['imds'] !== expected['imds'] || header['format'] !== FORMAT) throw malformed()
    for (const [key, value] of Object.entries(expected)) {
      if (header[key] !== value)
        throw new Mismatch(`its ${key} is ${JSON.stringify(header[key])}, not ${JSON.stringify(value)}`)
    }
    return header
  }

  /** The payload of the next frame; undefined: there is none. Throws a RejectedJournal if it is damaged. */
  next(): Buffer | undefined {
    const frame = this.#nextFrame()
    if (frame === undefined) return undefined
    if (!frame.isAuthentic) throw new RejectedJournal(`it is damaged at byte ${this.#position}`)
    return this.#decrypt(frame.payload)
  }

  /** How many bytes at the end are no frame, when all payloads were read. */
  get lostBytes(): number {
    return this.#size - this.#position
  }

  /** Undefined: the file has no further frame, but perhaps a torn one. */
  #nextFrame(): Frame | undefined {
    const left = this.#size - this.#position
    if (left < HEAD_BYTES) return undefined
    const head = this.#read(this.#position, HEAD_BYTES)
    const length = head.readUInt32BE()
    const bytes = lengthBytes(length)
    if (!head.subarray(0, LENGTH_BYTES).equals(bytes))
      return this.#endsInZeros() ? undefined : { isAuthentic: false, payload: head }
    const leftAfter = left - HEAD_BYTES - length
    if (leftAfter < 0) return undefined
    const payload = this.#read(this.#position + HEAD_BYTES, length)
    const found = head.subarray(LENGTH_BYTES)
    const isFirst = this.#key === undefined
    const key = (this.#key === undefined ? this.#keys.macKeys : [this.#key]).find((macKey) =>
      timingSafeEqual(found, createHmac('sha256', macKey).update(this.#mac).update(bytes).update(payload).digest()),
    )
    if (key === undefined) return leftAfter === 0 && !isFirst ? undefined : { isAuthentic: false, payload }
    this.#key = key
    this.#mac = found
    this.#position += HEAD_BYTES + length + Math.min(FLUSHED.length, leftAfter)
    return { isAuthentic: true, payload }
  }

  #read(at: number, length: number): Buffer {
    const buffer = Buffer.allocUnsafeSlow(length)
    // a file that is shorter than it was: what is missing has zeros
    if (length > 0) buffer.fill(0, readSync(this.#fd, buffer, 0, length, at))
    return buffer
  }

  /** Whether only zeros follow the length, which no MAC is. */
  #endsInZeros(): boolean {
    for (let at = this.#position + LENGTH_BYTES; at < this.#size; at += SLICE_BYTES)
      if (this.#read(at, Math.min(SLICE_BYTES, this.#size - at)).some((byte) => byte !== 0)) return false
    return true
  }

  #decrypt(payload: Buffer): Buffer {
    const { cipher } = this.#keys
    if (cipher === undefined) return payload
    const result = cipher.decrypt('journal', this.#owner.hypervisor ?? '', payload)
    if (result.kind === 'rejected') throw new Mismatch(`it ${result.reason}`)
    return result.bytes
  }

  /** Of the first payload; undefined: it is not there. A kill never tears it: a journal gets its name with a view. */
  #whyNotAuthentic(payload: Buffer | undefined): string {
    const { cipher } = this.#keys
    const isPlain = payload !== undefined && !isEncrypted(payload)
    if (cipher === undefined && payload !== undefined && !isPlain)
      return 'it is encrypted, and there are no keys (IMDS_RECORD_KEYS_FILE)'
    if (cipher !== undefined && isPlain) return 'it is not encrypted, and there are record keys (IMDS_RECORD_KEYS_FILE)'
    if (cipher !== undefined && payload !== undefined) this.#decrypt(payload)
    return 'it is cut off, or was written with another key of this hypervisor (IMDS_TOKEN_KEYS_FILE or token-key)'
  }
}
