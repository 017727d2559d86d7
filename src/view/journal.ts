/**
 * An append-only file with the changes of the view since a snapshot was begun, so that a kill or a power failure loses
 * nothing that a guest has seen.
 *
 *     frame:  length of the payload (4 bytes, big-endian)  MAC (32 bytes)  payload
 *
 * The payload of the first frame is a header, that of each other one a group of changes (change.ts) that was written at
 * once; with record keys it is one encrypted value. The MAC of a frame covers the MAC of the frame before it, and the
 * header of a journal names the last MAC of the journal before it. So frames can be cut off at the end, but not
 * changed, exchanged or left out. The first frame that is not complete or not authentic ends a journal.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { closeSync, fdatasyncSync, fstatSync, openSync, readSync } from 'node:fs'
import { json, Mismatch, Rejection, torn, Undecryptable } from './snapshot-input.ts'
import type { JournalStart } from './snapshot.ts'
import type { StateKeys } from './state-files.ts'

export const FORMAT = 1
const LENGTH_BYTES = 4
const MAC_BYTES = 32
/** What a frame has besides its payload. */
export const FRAME_BYTES = LENGTH_BYTES + MAC_BYTES
const LF = 0x0a
/** What the MAC of the first frame covers in place of one before it. */
export const NO_MAC = Buffer.alloc(MAC_BYTES)

export type MacKey = StateKeys['macKeys'][number]

/** The length of a payload, as a frame has it. */
export function lengthBytes(length: number): Buffer {
  const bytes = Buffer.alloc(LENGTH_BYTES)
  bytes.writeUInt32BE(length)
  return bytes
}

/** A journal that is being read: its header, and where it ends, which is known when all groups were taken. */
export interface Journal {
  readonly header: Record<string, unknown>
  readonly start: JournalStart
  /** The payloads after the header. They can be taken once. */
  readonly groups: Iterable<Buffer>
  /** The last MAC, the bytes of all frames, and how many bytes at the end of the file are not a frame. */
  readonly end: () => { readonly mac: string; readonly bytes: number; readonly lostBytes: number }
}

/**
 * Opens a journal for `use`, which reads one group after another. Rejects as `use` does, or with a Mismatch if none of
 * the keys fits, a Rejection if it has another format, an Undecryptable if the keys do not decrypt it, or an error of
 * the file system.
 */
export async function readJournal<T>(
  path: string,
  hypervisor: string,
  keys: StateKeys,
  use: (journal: Journal) => Promise<T>,
): Promise<T> {
  const fd = openSync(path, 'r')
  try {
    // a killed daemon may have written more than it has flushed: what is served now must be there after a power failure
    // too
    fdatasyncSync(fd)
    const frames = new Frames(fd, keys)
    const first = frames.next()
    if (first === undefined)
      throw new Mismatch(
        'its journal is torn, or was written with another key of this hypervisor (IMDS_TOKEN_KEYS_FILE or token-key)',
      )
    const start = frames.mac.toString('hex')
    const header = json(decrypted(keys, hypervisor, first))
    const { imds, format, generation } = header
    if (imds !== 'journal' || format !== FORMAT || typeof generation !== 'number')
      throw new Rejection('its journal has another format')
    const end = () => ({ mac: frames.mac.toString('hex'), bytes: frames.position, lostBytes: frames.left })
    return await use({ header, start: { generation, mac: start }, groups: groupsOf(frames, hypervisor, keys), end })
  } finally {
    closeSync(fd)
  }
}

function* groupsOf(frames: Frames, hypervisor: string, keys: StateKeys): Generator<Buffer> {
  for (let payload = frames.next(); payload !== undefined; payload = frames.next())
    yield decrypted(keys, hypervisor, payload)
}

/** The authentic frames of a file, one after the other. */
class Frames {
  readonly #fd: number
  readonly #size: number
  readonly #keys: StateKeys
  /** The key of the first frame. */
  #key: MacKey | undefined
  mac: Buffer = NO_MAC
  position = 0

  constructor(fd: number, keys: StateKeys) {
    this.#fd = fd
    this.#size = fstatSync(fd).size
    this.#keys = keys
  }

  get left(): number {
    return this.#size - this.position
  }

  /** The payload of the next frame; undefined if there is no further one that is complete and authentic. */
  next(): Buffer | undefined {
    const head = this.#read(this.position, Math.min(FRAME_BYTES, this.left))
    if (head.length < FRAME_BYTES) return undefined
    const length = head.readUInt32BE()
    if (length > this.left - FRAME_BYTES) return undefined
    const payload = this.#read(this.position + FRAME_BYTES, length)
    const mac = head.subarray(LENGTH_BYTES)
    const key = (this.#key === undefined ? this.#keys.macKeys : [this.#key]).find((one) => {
      return (
        payload.length === length &&
        timingSafeEqual(
          mac,
          createHmac('sha256', one).update(this.mac).update(lengthBytes(length)).update(payload).digest(),
        )
      )
    })
    if (key === undefined) return undefined
    this.#key = key
    this.mac = mac
    this.position += FRAME_BYTES + length
    return payload
  }

  #read(position: number, length: number): Buffer {
    const buffer = Buffer.allocUnsafeSlow(length)
    return buffer.subarray(0, length === 0 ? 0 : readSync(this.#fd, buffer, 0, length, position))
  }
}

function decrypted({ cipher }: StateKeys, hypervisor: string, payload: Buffer): Buffer {
  if (cipher === undefined) return payload
  const result = cipher.decrypt('journal', hypervisor, payload)
  if (result.kind === 'rejected') throw new Undecryptable(`its journal ${result.reason}`)
  return result.bytes
}

/**
 * The changes of a group, as they were written. `document` is not checked yet. Throws a Rejection if it has another
 * form.
 */
export function* changesOf(group: Buffer): Generator<
  | { readonly kind: 'remove'; readonly id: string }
  | {
      readonly kind: 'replace'
      readonly document: unknown
      readonly digest: unknown
      readonly userData: Buffer | undefined
    }
> {
  for (let at = 0; at < group.length;) {
    const end = group.indexOf(LF, at)
    if (end === -1) throw torn()
    const { removed, instance: document, digest, userDataBytes } = json(group.subarray(at, end))
    at = end + 1
    if (typeof removed === 'string') {
      yield { kind: 'remove', id: removed }
      continue
    }
    const length = userDataBytes ?? 0
    if (typeof length !== 'number' || !Number.isInteger(length) || length < 0 || group[at + length] !== LF) throw torn()
    // A copy, because a part would keep the whole group in memory.
    yield {
      kind: 'replace',
      document,
      digest,
      userData: userDataBytes === null ? undefined : Buffer.from(group.subarray(at, at + length)),
    }
    at += length + 1
  }
}
