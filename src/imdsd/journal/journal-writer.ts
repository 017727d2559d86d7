/** Writes a journal (journal.ts). */
import { createHmac, randomBytes } from 'node:crypto'
import { RECORD_FORM } from '../../metadata/instance.ts'
import { slices, TurnBudget } from '../../limits/turn-budget.ts'
import { lineOf } from './encoding.ts'
import type { Disk, DiskFile } from './disk.ts'
import { FLUSHED, FORMAT, FRAME_BYTES, lengthBytes, NO_MAC, type MacKey } from './journal.ts'
import type { JournalStart } from './snapshot.ts'
import { headerOf, TEMPORARY, type StateKeys, type StateOwner } from './state-files.ts'

/** A longer frame is written in parts, because copying it would take the time of a turn of the event loop. */
const MAX_WRITE_BYTES = 1024 * 1024

/**
 * What a journal is written with. `after`: the last MAC of the journal that it continues; undefined: it only continues
 * the snapshot that names it. `isWanted`: asked before the journal appears under its name.
 */
export interface JournalFacts {
  readonly owner: StateOwner
  readonly keys: StateKeys
  readonly generation: number
  readonly after: string | undefined
  readonly isWanted: () => boolean
}

/** An open journal. One append at a time, and none after one that has failed. */
export class JournalWriter {
  readonly generation: number
  readonly start: JournalStart
  readonly #file: DiskFile
  readonly #keys: StateKeys
  readonly #hypervisor: string
  readonly #budget = new TurnBudget()
  #mac: Buffer
  #bytes: number
  #appending: Promise<void> = Promise.resolve()

  private constructor(file: DiskFile, { owner, keys, generation }: JournalFacts, mac: Buffer, bytes: number) {
    this.#file = file
    this.#keys = keys
    this.#hypervisor = owner.hypervisor ?? ''
    this.generation = generation
    this.start = { generation, mac: mac.toString('hex') }
    this.#mac = mac
    this.#bytes = bytes
  }

  /**
   * Creates a journal on the disk: after a power failure it is there. If that fails, it may be there too: then the
   * caller removes it.
   */
  static async create(disk: Disk, path: string, facts: JournalFacts): Promise<JournalWriter> {
    const { owner, keys, generation, after, isWanted } = facts
    const header = {
      imds: 'journal',
      format: FORMAT,
      ...headerOf(owner),
      schema: RECORD_FORM,
      generation,
      after,
      salt: randomBytes(16).toString('hex'),
    }
    const budget = new TurnBudget()
    const payload = await encrypted(keys, owner.hypervisor ?? '', [lineOf(header)], budget)
    const mac = await macOf(keys.macKeys[0]!, NO_MAC, payload, budget)
    const temporary = path + TEMPORARY
    const file = await disk.create(temporary)
    try {
      await writeFrame(file, mac, payload)
      await file.sync()
      await file.writeFile(FLUSHED)
      if (!isWanted()) throw new Error('the journal was given up')
      await disk.rename(temporary, path) // so a journal always has a header
      await disk.syncDirectory(path)
    } catch (error) {
      await file.close().catch(() => undefined) // the first error says more
      await disk.remove(temporary).catch(() => undefined) // the same
      throw error
    }
    return new JournalWriter(file, facts, mac, FRAME_BYTES + lengthOf(payload))
  }

  get end(): string {
    return this.#mac.toString('hex')
  }

  get bytes(): number {
    return this.#bytes
  }

  get hasChanges(): boolean {
    return this.end !== this.start.mac
  }

  /** Appends encoded changes as one group. When it resolves they are on the disk. */
  append(changes: readonly Uint8Array[]): Promise<void> {
    this.#appending = this.#append(changes)
    return this.#appending
  }

  async #append(changes: readonly Uint8Array[]): Promise<void> {
    const payload = await encrypted(this.#keys, this.#hypervisor, changes, this.#budget)
    const mac = await macOf(this.#keys.macKeys[0]!, this.#mac, payload, this.#budget)
    await writeFrame(this.#file, mac, payload)
    await this.#file.datasync()
    await this.#file.writeFile(FLUSHED) // the next flush includes it
    this.#mac = mac
    this.#bytes += FRAME_BYTES + lengthOf(payload)
  }

  /** Closes the file when the last append has ended. */
  async close(): Promise<void> {
    await this.#appending.catch(() => undefined) // the caller of append has it
    await this.#file.close()
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

function lengthOf(payload: readonly Uint8Array[]): number {
  return payload.reduce((sum, part) => sum + part.length, 0)
}

async function writeFrame(file: DiskFile, mac: Buffer, payload: readonly Uint8Array[]): Promise<void> {
  const length = lengthOf(payload)
  const parts = [lengthBytes(length), mac, ...payload]
  if (length <= MAX_WRITE_BYTES) return file.writeFile(Buffer.concat(parts))
  for (const part of parts) await file.writeFile(part)
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
