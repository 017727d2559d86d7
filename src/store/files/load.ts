/**
 * Loads an instance from a directory of files: one consistent state, even while a writer changes its files. source.ts
 * describes the files. Reads regular files of allowed length only (regular-file.ts); anything else is a fault of its
 * instance.
 */
import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { isId } from '../../metadata/identifiers.ts'
import { MAX_RECORD_BYTES } from '../../metadata/instance.ts'
import { formatTooLong } from '../../metadata/user-data.ts'
import { sha256InSlices, TurnBudget } from '../../limits/turn-budget.ts'
import { formatOf, parseDocument, RECORD_ENDINGS } from '../document.ts'
import { MAX_USER_DATA_BYTES } from '../settings.ts'
import type { Loaded } from '../source.ts'
import { fillUserData, type UserDataChange } from '../user-data.ts'
import { parsePending, type PendingChange } from './pending.ts'
import { ifThere, readRegularFile, stampOf } from '../../runtime/regular-file.ts'

/**
 * How often files that change while they are read are read again. The last attempt is used: a notice follows the last
 * change.
 */
const MAX_ATTEMPTS = 10

/** The limit of a file. It may be longer than its record as JSON, since it may be indented or have comments. */
const MAX_FILE_BYTES = 4 * MAX_RECORD_BYTES
/** The limit for YAML is lower, because it is parsed in one turn of the event loop and much slower than JSON. */
const MAX_YAML_BYTES = 64 * 1024
export const MAX_TOMBSTONE_BYTES = 1024
const ENDINGS = [...RECORD_ENDINGS, '.user-data', '.removed', '.pending']

/** The id that a file of the store belongs to; undefined for a file that does not belong to the store. */
export function idOfFile(name: string): string | undefined {
  const ending = ENDINGS.find((one) => name.endsWith(one))
  const id = ending === undefined ? '' : name.slice(0, -ending.length)
  return isId(id) ? id : undefined
}

/** True for a file that does not belong to the store, although its name ends as if it did. */
export function isMisnamed(name: string): boolean {
  return (
    !name.startsWith('.') && idOfFile(name) === undefined && ENDINGS.some((one) => name.toLowerCase().endsWith(one))
  )
}

/** A file that is not regular or too long: a fault of its instance only. The message is for operators. */
export class FileFault extends Error {
  /** Differs when the file does. */
  readonly stamp: string

  constructor(message: string, stamp: string) {
    super(message)
    this.stamp = stamp
  }
}

/**
 * Loads an instance. Rejects when a file exists and cannot be read. User-data longer than `userDataMaxBytes` is a
 * fault, and is not read.
 */
export async function loadFiles(
  directory: string,
  id: string,
  userDataMaxBytes = MAX_USER_DATA_BYTES,
): Promise<Loaded> {
  let before = await stampsOf(directory, id)
  for (let attempt = 1; ; attempt++) {
    const loaded = await loadOne(directory, id, userDataMaxBytes, before).catch((error: unknown): Loaded => {
      if (!(error instanceof FileFault)) throw error
      return { kind: 'unreadable', id, digest: digestOf(error.message, error.stamp), reason: error.message }
    })
    const after = await stampsOf(directory, id)
    if (attempt === MAX_ATTEMPTS || after.join() === before.join()) return loaded
    before = after
  }
}

/**
 * Returns a stamp for the pending file and for each possible record file: a text that changes with the file, undefined
 * if the file does not exist. Every change by a writer changes a stamp: it begins with a pending file, and ends with
 * another record file or none.
 */
function stampsOf(directory: string, id: string): Promise<(string | undefined)[]> {
  return Promise.all(
    ['.pending', ...RECORD_ENDINGS].map(async (ending) => {
      const stats = await ifThere(stat(join(directory, id + ending), { bigint: true }))
      return stats && stampOf(stats)
    }),
  )
}

export function formatRecord(document: unknown): string {
  return `${JSON.stringify(document, undefined, 2)}\n`
}

/**
 * Reads a file of the store; undefined if there is none. Rejects with a FileFault for anything but a regular file of at
 * most `maxBytes`.
 */
async function read(directory: string, name: string, maxBytes: number, instead = ''): Promise<Buffer | undefined> {
  const file = await readRegularFile(join(directory, name), maxBytes, name.endsWith('.pending') ? 'refuse' : 'follow')
  if (file.kind === 'not-regular') throw notRegular(name, file.what)
  if (file.kind === 'too-long')
    throw new FileFault(`${name} is ${file.length} bytes, more than the limit of ${maxBytes}${instead}`, file.stamp)
  return file.kind === 'absent' ? undefined : file.bytes
}

/**
 * Reads the pending change of an instance; undefined if there is none. `invalid`: imds did not write it. Rejects with a
 * FileFault as `loadFiles` does not.
 */
export async function readPending(
  directory: string,
  id: string,
  userDataMaxBytes = MAX_USER_DATA_BYTES,
): Promise<PendingChange | 'invalid' | undefined> {
  const bytes = await read(directory, `${id}.pending`, MAX_FILE_BYTES + userDataMaxBytes)
  return bytes && (parsePending(bytes) ?? 'invalid')
}

async function loadOne(
  directory: string,
  id: string,
  userDataMaxBytes: number,
  [pending, ...records]: readonly (string | undefined)[],
): Promise<Loaded> {
  const withUserData = (record: Buffer, change: UserDataChange, parse: () => Promise<ParsedRecord>) =>
    loadWithUserData(directory, id, record, change, userDataMaxBytes, parse)
  const change = pending === undefined ? undefined : await readPending(directory, id, userDataMaxBytes)
  if (change === 'invalid') throw new FileFault(`${id}.pending is not a valid pending change`, pending ?? '')
  if (change?.kind === 'remove') return { kind: 'removed', id }
  if (change?.kind === 'put') {
    const { document, userData } = change
    return withUserData(Buffer.from(formatRecord(document)), userData, () => Promise.resolve({ ok: true, document }))
  }
  const endings = RECORD_ENDINGS.filter((_ending, i) => records[i] !== undefined)
  const [ending] = endings
  const [most, instead] = ending === '.json' ? [MAX_FILE_BYTES, ''] : [MAX_YAML_BYTES, ' for YAML: write it as JSON']
  const record = ending === undefined ? undefined : await read(directory, id + ending, most, instead)
  if (ending === undefined || record === undefined) {
    const tombstone = await read(directory, `${id}.removed`, MAX_TOMBSTONE_BYTES)
    return { kind: tombstone === undefined ? 'absent' : 'removed', id }
  }
  return withUserData(record, 'keep', async () => {
    if (endings.length > 1)
      return { ok: false, reason: `more than one record: ${endings.map((one) => id + one).join(', ')}` }
    const format = formatOf(ending)
    const parsed = await parseDocument(record, format)
    if (parsed.ok) return { ok: true, document: parsed.value }
    const [{ cause, line }] = parsed.faults // not its message, which would quote the record
    const place = line === undefined ? '' : ` from line ${line} on`
    const fault = cause === undefined ? `is not ${format}${place}` : `cannot be read${place}: ${cause}`
    return { ok: false, reason: `${id}${ending} ${fault}` }
  })
}

type ParsedRecord = { readonly ok: true; readonly document: unknown } | { readonly ok: false; readonly reason: string }

/** Loads the user-data of a record, and parses the record. */
async function loadWithUserData(
  directory: string,
  id: string,
  record: Buffer,
  change: UserDataChange,
  userDataMaxBytes: number,
  parse: () => Promise<ParsedRecord>,
): Promise<Loaded> {
  const userData =
    change === 'keep' ? await readUserData(directory, id, userDataMaxBytes) : change === 'none' ? undefined : change
  if (userData instanceof TooLong)
    return { kind: 'user-data', id, digest: digestOf(record, userData.stamp), reason: userData.message }
  const userDataSha256 = userData && (await sha256InSlices(userData, new TurnBudget()))
  const digest = digestOf(record, userDataSha256)
  const parsed = await parse()
  if (!parsed.ok) return { kind: 'unreadable', id, digest, reason: parsed.reason }
  const document = fillUserData(parsed.document, userData, userDataSha256)
  return { kind: 'record', id, digest, document, userData, userDataSha256 }
}

/** User-data that is longer than the limit, and was not read. */
class TooLong extends FileFault {}

async function readUserData(
  directory: string,
  id: string,
  userDataMaxBytes: number,
): Promise<Buffer | TooLong | undefined> {
  const file = await readRegularFile(join(directory, `${id}.user-data`), userDataMaxBytes, 'follow')
  if (file.kind === 'not-regular') throw notRegular(`${id}.user-data`, file.what)
  if (file.kind === 'too-long')
    return new TooLong(`the user-data is ${formatTooLong(file.length, userDataMaxBytes)}`, file.stamp)
  return file.kind === 'absent' ? undefined : file.bytes
}

function notRegular(name: string, what: string): FileFault {
  return new FileFault(`${name} is ${what}, not a regular file: delete it`, '')
}

/** `rest`: a text that changes with the user-data, or with a file that was not read. */
function digestOf(record: string | Uint8Array, rest: string | undefined): string {
  return createHash('sha256')
    .update(record)
    .update(rest ?? 'none')
    .digest('hex')
}
