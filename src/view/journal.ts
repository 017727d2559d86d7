/**
 * An append-only file with the changes of the view since a snapshot was begun, so that a kill or a power failure loses nothing that a guest has seen.
 *
 *     frame:  length of the payload (4 bytes, big-endian)  MAC (32 bytes)  payload
 *
 * The payload of the first frame is a header, that of each other one a group of changes (change.ts) that was written at once; with record keys it is one
 * encrypted value. The MAC of a frame covers the MAC of the frame before it, and the header of a journal names the last MAC of the journal before it. So
 * frames can be cut off at the end, but not changed, exchanged or left out. The first frame that is not complete or not authentic ends a journal.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { closeSync, fstatSync, openSync, readSync } from 'node:fs'
import { open, rename, rm, type FileHandle } from 'node:fs/promises'
import { RECORD_FORM } from '../metadata/instance.ts'
import { slices, TurnBudget } from '../runtime/turn-budget.ts'
import { encodeChange, lineOf, type Change } from './change.ts'
import { json, Mismatch, Rejection, Undecryptable } from './snapshot-input.ts'
import type { JournalStart } from './snapshot.ts'
import { headerOf, syncDirectory, TEMPORARY, type StateKeys, type StateOwner } from './state-files.ts'

const FORMAT = 1
const LENGTH_BYTES = 4
const MAC_BYTES = 32
const FRAME_BYTES = LENGTH_BYTES + MAC_BYTES
const LF = 0x0a
/** A longer frame is written in parts, because copying it would take the time of a turn of the event loop. */
const ONE_WRITE_BYTES = 1024 * 1024
const NO_MAC = Buffer.alloc(MAC_BYTES)

type MacKey = StateKeys['macKeys'][number]

/** What a journal is written with. `after`: the last MAC of the journal that it continues; undefined: it only continues the snapshot that names it. */
export interface JournalFacts { readonly owner: StateOwner, readonly keys: StateKeys, readonly generation: number, readonly after: string | undefined }

/** An open journal. One append at a time. */
export class JournalWriter {
  readonly generation: number
  /** The MAC of the header. */
  readonly start: JournalStart
  readonly #file: FileHandle
  readonly #keys: StateKeys
  readonly #hypervisor: string
  readonly #budget = new TurnBudget()
  #mac: Buffer
  #bytes: number

  private constructor(file: FileHandle, { owner, keys, generation }: JournalFacts, mac: Buffer, bytes: number) {
    this.#file = file
    this.#keys = keys
    this.#hypervisor = owner.hypervisor ?? ''
    this.generation = generation
    this.start = { generation, mac: mac.toString('hex') }
    this.#mac = mac
    this.#bytes = bytes
  }

  /** Creates a journal on the disk: after a power failure it is there. */
  static async create(path: string, facts: JournalFacts): Promise<JournalWriter> {
    const { owner, keys, generation, after } = facts
    const header = { imds: 'journal', format: FORMAT, ...headerOf(owner), schema: RECORD_FORM, generation, after, salt: randomBytes(16).toString('hex') }
    const budget = new TurnBudget()
    const payload = await encrypted(keys, owner.hypervisor ?? '', [lineOf(header)], budget)
    const mac = await macOf(keys.macKeys[0]!, NO_MAC, payload, budget)
    const temporary = path + TEMPORARY
    await rm(temporary, { force: true })
    const file = await open(temporary, 'ax', 0o600)
    try {
      await writeFrame(file, mac, payload)
      await file.sync()
      await rename(temporary, path) // so a journal always has a header
      await syncDirectory(path)
    } catch (error) {
      await file.close()
      throw error
    }
    return new JournalWriter(file, facts, mac, FRAME_BYTES + lengthOf(payload))
  }

  /** The last MAC. */
  get end(): string {
    return this.#mac.toString('hex')
  }

  /** The size of the file. */
  get bytes(): number {
    return this.#bytes
  }

  /** Appends a group of changes. When it resolves they are on the disk. */
  async append(changes: readonly Change[]): Promise<void> {
    const payload = await encrypted(this.#keys, this.#hypervisor, changes.flatMap(encodeChange), this.#budget)
    const mac = await macOf(this.#keys.macKeys[0]!, this.#mac, payload, this.#budget)
    await writeFrame(this.#file, mac, payload)
    await this.#file.datasync()
    this.#mac = mac
    this.#bytes += FRAME_BYTES + lengthOf(payload)
  }

  close(): Promise<void> {
    return this.#file.close()
  }
}

/** The payload of a frame, in parts. */
async function encrypted({ cipher }: StateKeys, hypervisor: string, parts: readonly Uint8Array[], budget: TurnBudget): Promise<readonly Uint8Array[]> {
  if (cipher === undefined) return parts
  const { head, update, end } = cipher.encrypting('journal', hypervisor, 0)
  const value: Uint8Array[] = [head]
  for (const part of parts) {
    for (const slice of slices(part)) {
      value.push(update(slice))
      await budget.spend(slice.length)
    }
  }
  return [...value, end()]
}

function lengthOf(payload: readonly Uint8Array[]): number {
  return payload.reduce((sum, part) => sum + part.length, 0)
}

function lengthBytes(length: number): Buffer {
  const bytes = Buffer.alloc(LENGTH_BYTES)
  bytes.writeUInt32BE(length)
  return bytes
}

async function writeFrame(file: FileHandle, mac: Buffer, payload: readonly Uint8Array[]): Promise<void> {
  const length = lengthOf(payload)
  const parts = [lengthBytes(length), mac, ...payload]
  if (length <= ONE_WRITE_BYTES) return file.writeFile(Buffer.concat(parts))
  for (const part of parts) await file.writeFile(part)
}

async function macOf(key: MacKey, before: Buffer, payload: readonly Uint8Array[], budget: TurnBudget): Promise<Buffer> {
  const hmac = createHmac('sha256', key).update(before).update(lengthBytes(lengthOf(payload)))
  for (const part of payload) {
    for (const slice of slices(part)) {
      hmac.update(slice)
      await budget.spend(slice.length)
    }
  }
  return hmac.digest()
}

/** A journal as it was read: its header, the last MAC, the payloads after the header, and how many bytes at its end are not a frame. */
export interface Journal {
  readonly header: Record<string, unknown>
  readonly start: JournalStart
  readonly end: string
  readonly bytes: number
  readonly groups: readonly Buffer[]
  readonly lostBytes: number
}

/**
 * Reads a journal in one turn. Throws a Mismatch if none of the keys fits, a Rejection if it has another format, an Undecryptable if the keys do not
 * decrypt it, or an error of the file system.
 */
export function readJournal(path: string, hypervisor: string, keys: StateKeys): Journal {
  const fd = openSync(path, 'r')
  try {
    const frames = new Frames(fd, keys)
    const first = frames.next()
    if (first === undefined) throw new Mismatch('its journal is torn, or was written with another key of this hypervisor (IMDS_TOKEN_KEYS_FILE or token-key)')
    const start = frames.mac.toString('hex')
    const header = json(decrypted(keys, hypervisor, first))
    const { imds, format, generation } = header
    if (imds !== 'journal' || format !== FORMAT || typeof generation !== 'number') throw new Rejection('its journal has another format')
    const groups: Buffer[] = []
    for (let payload = frames.next(); payload !== undefined; payload = frames.next()) groups.push(decrypted(keys, hypervisor, payload))
    return { header, start: { generation, mac: start }, end: frames.mac.toString('hex'), bytes: frames.position, groups, lostBytes: frames.left }
  } finally {
    closeSync(fd)
  }
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
      return payload.length === length && timingSafeEqual(mac, createHmac('sha256', one).update(this.mac).update(lengthBytes(length)).update(payload).digest())
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

/** The changes of a group, as they were written. `document` is not checked yet. */
export function* changesOf(group: Buffer): Generator<
  { readonly kind: 'remove', readonly id: string } | { readonly kind: 'replace', readonly document: unknown, readonly digest: unknown, readonly userData: Buffer | undefined }
> {
  for (let at = 0; at < group.length;) {
    const end = group.indexOf(LF, at)
    const { removed, instance: document, digest, userDataBytes } = json(group.subarray(at, end === -1 ? group.length : end))
    at = end + 1
    if (typeof removed === 'string') {
      yield { kind: 'remove', id: removed }
      continue
    }
    const length = typeof userDataBytes === 'number' ? userDataBytes : 0
    // A copy, because a part would keep the whole group in memory.
    yield { kind: 'replace', document, digest, userData: userDataBytes === null ? undefined : Buffer.from(group.subarray(at, at + length)) }
    at += length + 1
  }
}
