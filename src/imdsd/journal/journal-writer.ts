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
export interface JournalWriter {
  readonly generation: number
  readonly start: JournalStart
  /** The last MAC. */
  readonly end: string
  readonly bytes: number
  readonly hasChanges: boolean
  /** Appends encoded changes as one group. When it resolves they are on the disk. */
  append(changes: readonly Uint8Array[]): Promise<void>
  /** Closes the file when the last append has ended. */
  close(): Promise<void>
}

/**
 * Creates a journal on the disk: after a power failure it is there. If that fails, it may be there too: then the caller
 * removes it.
 */
export async function createJournal(disk: Disk, path: string, facts: JournalFacts): Promise<JournalWriter> {
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
  const temporary = path + TEMPORARY
  const file = await disk.create(temporary)
  let mac = NO_MAC
  let bytes = 0
  /** Writes a frame. When it resolves the frame is on the disk. */
  const write = async (parts: readonly Uint8Array[], flush: () => Promise<void>) => {
    const payload = await encrypted(keys, owner.hypervisor ?? '', parts, budget)
    const next = await macOf(keys.macKeys[0]!, mac, payload, budget)
    await writeFrame(file, next, payload)
    await flush()
    await file.writeFile(FLUSHED) // the next flush includes it
    mac = next
    bytes += FRAME_BYTES + lengthOf(payload)
  }
  try {
    await write([lineOf(header)], () => file.sync())
    if (!isWanted()) throw new Error('the journal was given up')
    await disk.rename(temporary, path) // so a journal always has a header
    await disk.syncDirectory(path)
  } catch (error) {
    await file.close().catch(() => undefined) // the first error says more
    await disk.remove(temporary).catch(() => undefined) // the same
    throw error
  }
  const start: JournalStart = { generation, mac: mac.toString('hex') }
  let appending = Promise.resolve()
  return {
    generation,
    start,
    get end() {
      return mac.toString('hex')
    },
    get bytes() {
      return bytes
    },
    get hasChanges() {
      return mac.toString('hex') !== start.mac
    },
    append: (changes) => (appending = write(changes, () => file.datasync())),
    close: async () => {
      await appending.catch(() => undefined) // the caller of append has it
      await file.close()
    },
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
