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
import { fillUserData } from '../user-data.ts'
import { parsePending, type PendingChange } from './pending.ts'
import { ifThere, readRegularFile, stampOf } from '../../runtime/regular-file.ts'

/**
 * How often files that change while they are read are read again. The last attempt is used: a notice follows the last
 * change.
 */
const ATTEMPTS = 10

/** The limit of a file. It may be longer than its record as JSON, since it may be indented or have comments. */
export const MAX_FILE_BYTES = 4 * MAX_RECORD_BYTES
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
    if (attempt === ATTEMPTS || after.join() === before.join()) return loaded
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

/** Formats the text of a record's file. */
export function formatRecord(document: unknown): string {
  return `${JSON.stringify(document, undefined, 2)}\n`
}

/**
 * Reads a file of the store; undefined if there is none. Rejects with a FileFault for anything but a regular file of at
 * most `mostBytes`.
 */
async function read(directory: string, name: string, mostBytes: number, instead = ''): Promise<Buffer | undefined> {
  const file = await readRegularFile(join(directory, name), mostBytes, name.endsWith('.pending') ? 'refuse' : 'follow')
  if (file.kind === 'not-regular') throw notRegular(name, file.what)
  if (file.kind === 'too-long')
    throw new FileFault(
      `${name} is ${String(file.length)} bytes, more than the limit of ${String(mostBytes)}${instead}`,
      file.stamp,
    )
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

/** Reads the files that have a stamp. */
async function loadOne(
  directory: string,
  id: string,
  userDataMaxBytes: number,
  [pending, ...records]: readonly (string | undefined)[],
): Promise<Loaded> {
  const change = pending === undefined ? undefined : await readPending(directory, id, userDataMaxBytes)
  if (change !== undefined) return loadFromPending(directory, id, change, pending, userDataMaxBytes)
  const endings = RECORD_ENDINGS.filter((_ending, i) => records[i] !== undefined)
  const [ending] = endings
  const [most, instead] = ending === '.json' ? [MAX_FILE_BYTES, ''] : [MAX_YAML_BYTES, ' for YAML: write it as JSON']
  const record = ending === undefined ? undefined : await read(directory, id + ending, most, instead)
  if (ending === undefined || record === undefined) {
    return {
      kind: (await read(directory, `${id}.removed`, MAX_TOMBSTONE_BYTES)) === undefined ? 'absent' : 'removed',
      id,
    }
  }
  const userData = await readUserData(directory, id, userDataMaxBytes)
  if (userData instanceof TooLong)
    return { kind: 'user-data', id, digest: digestOf(record, userData.stamp), reason: userData.message }
  const userDataSha256 = await sha256Of(userData)
  const digest = digestOf(record, userDataSha256)
  if (endings.length > 1)
    return {
      kind: 'unreadable',
      id,
      digest,
      reason: `more than one record: ${endings.map((one) => id + one).join(', ')}`,
    }
  const format = formatOf(ending)
  const parsed = await parseDocument(record, format)
  if (parsed.ok)
    return {
      kind: 'record',
      id,
      digest,
      document: fillUserData(parsed.value, userData, userDataSha256),
      userData,
      userDataSha256,
    }
  const [{ cause, line }] = parsed.faults // not its message, which would quote the record
  return {
    kind: 'unreadable',
    id,
    digest,
    reason:
      cause === undefined
        ? `${id}${ending} is not ${format}${line === undefined ? '' : ` from line ${String(line)} on`}`
        : `${id}${ending} cannot be read: ${cause}`,
  }
}

/** Interprets a pending change, whose file has a stamp. */
async function loadFromPending(
  directory: string,
  id: string,
  change: PendingChange | 'invalid',
  stamp: string | undefined,
  userDataMaxBytes: number,
): Promise<Loaded> {
  if (change === 'invalid')
    return {
      kind: 'unreadable',
      id,
      digest: digestOf('pending', stamp),
      reason: `${id}.pending is not a valid pending change`,
    }
  if (change.kind === 'remove') return { kind: 'removed', id }
  const record = formatRecord(change.document)
  const userData =
    change.userData === 'keep'
      ? await readUserData(directory, id, userDataMaxBytes)
      : change.userData === 'none'
        ? undefined
        : change.userData
  if (userData instanceof TooLong)
    return { kind: 'user-data', id, digest: digestOf(record, userData.stamp), reason: userData.message }
  const userDataSha256 = await sha256Of(userData)
  return {
    kind: 'record',
    id,
    digest: digestOf(record, userDataSha256),
    document: fillUserData(change.document, userData, userDataSha256),
    userData,
    userDataSha256,
  }
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

async function sha256Of(userData: Uint8Array | undefined): Promise<string | undefined> {
  return userData && sha256InSlices(userData, new TurnBudget())
}

/** `rest`: a text that changes with the user-data, or with a file that was not read. */
function digestOf(record: string | Uint8Array, rest: string | undefined): string {
  return createHash('sha256')
    .update(record)
    .update(rest ?? 'none')
    .digest('hex')
}
