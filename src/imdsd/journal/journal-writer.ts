/** Writes a journal (journal.ts has the format). */
import { createHmac, randomBytes } from 'node:crypto'
import { RECORD_FORM } from '../../metadata/instance.ts'
import { SLICE_BYTES, slices, TurnBudget } from '../../limits/turn-budget.ts'
import type { Disk, DiskFile } from './disk.ts'
import { encodeChange, lineOf, type JournalChange } from './encoding.ts'
import { FLUSHED, FRAME_BYTES, headerOf, lengthBytes, NO_MAC, type MacKey } from './journal.ts'
import type { StateKeys, StateOwner } from './state-files.ts'

/** A longer frame is written in parts, because copying it would take the time of a turn of the event loop. */
const MAX_WRITE_BYTES = 1024 * 1024
/** What is written before a flush, so that no single flush takes long on a slow disk. */
const FLUSH_BYTES = 8 * 1024 * 1024

/** Changes up to this length are short, however small the view is. */
const SHORT_BYTES = 1024 * 1024

/**
 * What a journal is written with. `changes` are taken while they are written, because a copy of a view would take
 * memory. `progress` is called after each write, and may throw to end it.
 */
export interface JournalContent {
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly changes: Iterable<JournalChange>
  readonly progress: () => void
}

/** Creates a journal with changes, in short turns of the event loop, and flushes it. */
export async function createJournal(disk: Disk, path: string, content: JournalContent): Promise<JournalWriter> {
  const { owner, keys, changes, progress } = content
  const journal = new JournalWriter(await disk.create(path), owner, keys)
  try {
    const salt = randomBytes(16).toString('hex')
    let lines: Uint8Array[] = [lineOf({ ...headerOf(owner), schema: RECORD_FORM, salt })]
    let bytes = Infinity // the header is a frame of its own
    for (const change of changes) {
      if (bytes >= SLICE_BYTES) {
        await journal.write(lines)
        progress()
        lines = []
        bytes = 0
      }
      const encoded = encodeChange(change)
      lines.push(...encoded)
      bytes += lengthOf(encoded)
    }
    await journal.append(lines)
    journal.beginAppending()
    progress()
    return journal
  } catch (error) {
    await journal.close().catch(() => undefined) // the first error says more
    throw error
  }
}

/** An open journal. One append at a time, and none after a failure. */
export class JournalWriter {
  readonly #file: DiskFile
  readonly #keys: StateKeys
  readonly #hypervisor: string
  readonly #budget = new TurnBudget()
  #mac = NO_MAC
  #bytes = 0
  #createdBytes = 0
  #unflushedBytes = 0
  #appending: Promise<void> = Promise.resolve()

  constructor(file: DiskFile, { hypervisor }: StateOwner, keys: StateKeys) {
    this.#file = file
    this.#keys = keys
    this.#hypervisor = hypervisor ?? ''
  }

  /** The length of the file. */
  get bytes(): number {
    return this.#bytes
  }

  /** The length of what was appended since it was created, in multiples of what was written then. */
  get growth(): number {
    return (this.#bytes - this.#createdBytes) / Math.max(SHORT_BYTES, this.#createdBytes)
  }

  /** Ends the snapshot: what is appended since counts as growth. */
  beginAppending(): void {
    this.#createdBytes = this.#bytes
  }

  /** Appends encoded lines as one frame. When it resolves they are on the disk. */
  append(lines: readonly Uint8Array[]): Promise<void> {
    this.#appending = this.#write(lines, 0)
    return this.#appending
  }

  /** Appends encoded lines as one frame, which is flushed with a later frame. */
  write(lines: readonly Uint8Array[]): Promise<void> {
    return this.#write(lines, FLUSH_BYTES)
  }

  /** Closes the file when the last append has ended. */
  async close(): Promise<void> {
    await this.#appending.catch(() => undefined) // the caller of append has it
    await this.#file.close()
  }

  async #write(lines: readonly Uint8Array[], maxUnflushedBytes: number): Promise<void> {
    const payload = await encrypted(this.#keys, this.#hypervisor, lines, this.#budget)
    const mac = await macOf(this.#keys.macKeys[0]!, this.#mac, payload, this.#budget)
    const length = lengthOf(payload)
    const parts = [lengthBytes(length), mac, ...payload]
    if (length <= MAX_WRITE_BYTES) await this.#file.writeFile(Buffer.concat(parts))
    else for (const part of parts) await this.#file.writeFile(part)
    this.#unflushedBytes += length
    if (this.#unflushedBytes > maxUnflushedBytes) {
      await this.#file.datasync()
      this.#unflushedBytes = 0
    }
    await this.#file.writeFile(FLUSHED) // the next flush includes it
    this.#mac = mac
    this.#bytes += FRAME_BYTES + length
  }
}

/** The payload of a frame, in parts. */
async function encrypted(
  { cipher }: StateKeys,
  hypervisor: string,
  parts: readonly Uint8Array[],
  budget: TurnBudget,
): Promise<readonly Uint8Array[]> {
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

async function macOf(key: MacKey, before: Buffer, payload: readonly Uint8Array[], budget: TurnBudget): Promise<Buffer> {
  const hmac = createHmac('sha256', key)
    .update(before)
    .update(lengthBytes(lengthOf(payload)))
  for (const part of payload) {
    for (const slice of slices(part)) {
      hmac.update(slice)
      await budget.spend(slice.length)
    }
  }
  return hmac.digest()
}

function lengthOf(parts: readonly Uint8Array[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0)
}
