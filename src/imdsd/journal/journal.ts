/**
 * How the view is kept on disk. This page has the files, their format, their order and their states; the other files
 * of this room do not repeat it. This file reads a journal.
 *
 * A start serves guests from these files, and never a state older than one that a guest has seen: it could give an
 * address to its former owner.
 *
 * ## Files, in the state directory, with mode 0600
 *
 *     view.snapshot             all instances at some moment
 *     view.journal.N            the changes since then; N grows
 *     view.snapshot.previous    a snapshot with its journals that was set aside: of another owner or key, or too old
 *     view.journal.N.previous
 *
 * A snapshot is a header line; for each instance a line of JSON (its record, the order of its publish, the ranges that it
 * has lost or whose rules are not confirmed, and what its guest has reported), the bytes of its user-data and a line feed; and a trailer line with the
 * number of instances, the SHA-256 of everything before and a MAC of that. Its header has what was removed (view.ts), and
 * names the journal that continues it: without that journal it is not served. Its modification time is when the view was last compared with the store; if it never was, when the daemon started.
 *
 * A journal is a sequence of frames:
 *
 *     length of the payload (4 bytes, big-endian)  CRC-32 of the length (4 bytes)  MAC (32 bytes)  payload  one byte
 *
 * The last byte is written after everything before it was flushed, and is flushed with the next frame. The first payload
 * is a header, each other one a group of changes: lines as in a snapshot,
 * `{"removed": id, "order": number}`, or `{"unconfirmed": ranges}` (change.ts). The MAC
 * of a frame covers
 * the MAC of the frame before it, and the header of a journal names the last MAC of the journal before it. So frames can
 * be cut off at the end, but not changed, exchanged or left out.
 *
 * With record keys, a snapshot and each payload is one encrypted value (record-cipher.ts).
 *
 * A start applies the changes as the daemon did: an instance that another one takes a range from is not written again. The
 * files of before there was an order have none: 0.
 *
 * ## Order
 *
 *     change:  journal (write, fdatasync) -> view -> guests, firewall, launch gate
 *     fold:    begin a new journal, unless the last one has no changes -> write the view as a snapshot that names it
 *              -> rename -> flush the directory -> delete the older journals
 *     start:   read -> flush the directory -> delete the older journals, which a fold left
 *     give up: set the mark (stale-mark.ts) -> delete the snapshot -> flush the directory -> delete the journals; so does a start that rejects the files
 *
 * A change reaches guests only after its frame was flushed. So a frame that anything follows must be authentic;
 * otherwise the file was damaged, and nothing is served. Only the last frame may be torn: it is shorter than its length,
 * or not authentic, or ends in zeros, which file systems may leave after a power failure. It was never in the view. A last
 * frame that is authentic is served, also without the byte after it: a power failure may have taken that byte of a
 * frame that was in the view, and a frame that was not has what the store had.
 *
 * A fold runs beside changes: when the journals are longer than the snapshot, soon after a change that removes user-data,
 * at a resync if the snapshot is not as this daemon would write it, and at a clean stop.
 *
 * ## States (persistence.ts)
 *
 *     idle --- first change, or a fold is due ---> kept <--- its journal is there --- opening
 *                                                   |                                 |   ^
 *             an append fails, or the first snapshot|                           fails |   | after 30 s
 *                                                   +-----> clearing <----------------+   |
 *                                                              +--- files are deleted ---> resting
 *
 * `idle`: nothing on the disk is served or written yet (a start with files to serve begins in `kept`). `kept`: each
 * change waits for a chain of journals (journal-chain.ts). If that fails or takes too long, the chain is dropped and the
 * files are deleted: the next start then serves nothing until the store answers, rather than an old state. In the other
 * states, changes are applied without the disk.
 */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { closeSync, fdatasyncSync, fstatSync, readSync } from 'node:fs'
import { openRegularFileSync } from '../../runtime/regular-file.ts'
import { SLICE_BYTES } from '../../limits/turn-budget.ts'
import { objectOf } from './encoding.ts'
import type { JournalStart } from './snapshot.ts'
import type { StateKeys } from './state-files.ts'
import { Mismatch, RejectedFile, Undecryptable } from './unserved-file.ts'

export const FORMAT = 1
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

/** CRC-32, as in Ethernet and gzip. node:zlib has one too, but to load it takes 5 ms of each start. */
function crc32(bytes: Uint8Array): number {
  let crc = -1
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0)
  }
  return ~crc >>> 0
}

/** The length of a payload and its CRC, as a frame has them. */
export function lengthBytes(length: number): Buffer {
  const bytes = Buffer.alloc(LENGTH_BYTES)
  bytes.writeUInt32BE(length)
  bytes.writeUInt32BE(crc32(bytes.subarray(0, 4)), 4)
  return bytes
}

/** A journal that is being read: its header, and where it ends, which is known when all groups were taken. */
export interface Journal {
  readonly header: Readonly<Record<string, unknown>>
  readonly start: JournalStart
  /** The payloads after the header. They can be taken once. */
  readonly groups: Iterable<Buffer>
  /** The last MAC, the bytes of all frames, and how many bytes at the end of the file are not a frame. */
  readonly end: () => { readonly mac: string; readonly bytes: number; readonly lostBytes: number }
}

/**
 * Opens a journal in this turn for `use`, which reads one group after another. Rejects as `use` does, or with a Mismatch
 * if none of the keys fits, a RejectedFile if it is damaged or has another format, an Undecryptable if the keys do not
 * decrypt it, or an error of the file system.
 */
export async function readJournal<T>(
  path: string,
  hypervisor: string,
  keys: StateKeys,
  use: (journal: Journal) => Promise<T>,
): Promise<T> {
  const fd = openRegularFileSync(path, 'refuse')
  try {
    // a killed daemon may have written more than it has flushed: what is served now must be there after a power failure
    // too
    fdatasyncSync(fd)
    const frames = framesOf(fd, keys)
    const decrypt = (payload: Buffer) => decrypted(keys, hypervisor, payload)
    const first = frames.next() // never torn by a kill: a journal appears with it
    if (!(first instanceof Buffer))
      throw new Mismatch(
        'its journal is torn, or was written with another key of this hypervisor (IMDS_TOKEN_KEYS_FILE or token-key)',
      )
    const { mac } = frames.end()
    const header = objectOf(decrypt(first))
    const { imds, format, generation } = header
    if (imds !== 'journal' || format !== FORMAT || typeof generation !== 'number')
      throw new RejectedFile('its journal has another format')
    return await use({ header, start: { generation, mac }, groups: groupsOf(frames, decrypt), end: frames.end })
  } finally {
    closeSync(fd)
  }
}

/** Why there is no further authentic frame. */
type NoFrame = 'torn' | 'damaged'

/** The authentic frames of a file, one after the other. */
function framesOf(fd: number, keys: StateKeys) {
  const { size } = fstatSync(fd)
  /** The key of the first frame. */
  let key: MacKey | undefined
  let mac = NO_MAC
  let position = 0

  const read = (at: number, length: number): Buffer => {
    const buffer = Buffer.allocUnsafeSlow(length)
    // A file that is shorter than it was: what is missing has zeros.
    if (length > 0) buffer.fill(0, readSync(fd, buffer, 0, length, at))
    return buffer
  }
  /** Whether only zeros follow the length, which no MAC is. */
  const endsInZeros = () => {
    for (let at = position + LENGTH_BYTES; at < size; at += SLICE_BYTES)
      if (read(at, Math.min(SLICE_BYTES, size - at)).some((byte) => byte !== 0)) return false
    return true
  }
  return {
    /** The last MAC, the bytes of all frames, and how many bytes follow them. */
    end: () => ({ mac: mac.toString('hex'), bytes: position, lostBytes: size - position }),
    /** The payload of the next frame. */
    next: (): Buffer | NoFrame => {
      const left = size - position
      if (left < HEAD_BYTES) return 'torn'
      const head = read(position, HEAD_BYTES)
      const length = head.readUInt32BE()
      const bytes = lengthBytes(length)
      if (!head.subarray(0, LENGTH_BYTES).equals(bytes)) return endsInZeros() ? 'torn' : 'damaged'
      const leftAfter = left - HEAD_BYTES - length
      if (leftAfter < 0) return 'torn'
      const payload = read(position + HEAD_BYTES, length)
      const found = head.subarray(LENGTH_BYTES)
      const fits = (key === undefined ? keys.macKeys : [key]).find((one) =>
        timingSafeEqual(found, createHmac('sha256', one).update(mac).update(bytes).update(payload).digest()),
      )
      if (fits === undefined) return leftAfter === 0 ? 'torn' : 'damaged'
      key = fits
      mac = found
      position += HEAD_BYTES + length + Math.min(FLUSHED.length, leftAfter)
      return payload
    },
  }
}

/** The decrypted payloads of the frames that follow. Throws a RejectedFile if the file is damaged. */
function* groupsOf(
  { next, end }: ReturnType<typeof framesOf>,
  decrypt: (payload: Buffer) => Buffer,
): Generator<Buffer> {
  for (let payload = next(); payload !== 'torn'; payload = next()) {
    if (payload === 'damaged') throw new RejectedFile(`its journal is damaged at byte ${end().bytes}`)
    yield decrypt(payload)
  }
}

function decrypted({ cipher }: StateKeys, hypervisor: string, payload: Buffer): Buffer {
  if (cipher === undefined) return payload
  const result = cipher.decrypt('journal', hypervisor, payload)
  if (result.kind === 'rejected') throw new Undecryptable(`its journal ${result.reason}`)
  return result.bytes
}
