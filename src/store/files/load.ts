/**
 * Loads an instance from a directory of files: one consistent state, even while a writer changes it. source.ts
 * describes the files. Reads regular files of allowed length only (regular-file.ts); anything else is a fault of its
 * instance.
 *
 * A writer renames the file of the new state first, and then removes what that replaces (writer.ts). So these files are
 * read in the opposite order: what may be removed first, `ID.json` last.
 */
import { createHash } from 'node:crypto'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { isId } from '../../metadata/identifiers.ts'
import { MAX_RECORD_BYTES } from '../../metadata/instance.ts'
import { formatTooLong } from '../../metadata/user-data.ts'
import { sha256InSlices, TurnBudget } from '../../limits/turn-budget.ts'
import { readRegularFile } from '../../runtime/regular-file.ts'
import { formatOf, parseDocument, parseRecordWithUserData, RECORD_ENDINGS } from '../document.ts'
import { MAX_USER_DATA_BYTES } from '../settings.ts'
import type { Loaded } from '../source.ts'
import { fillUserData } from '../user-data.ts'

/** The limit of a record. It may be longer than as JSON, since it may be indented or have comments. */
const MAX_FILE_BYTES = 4 * MAX_RECORD_BYTES
/** The limit for YAML is lower, because it is parsed in one turn of the event loop and much slower than JSON. */
const MAX_YAML_BYTES = 64 * 1024
export const MAX_TOMBSTONE_BYTES = 1024
/** Instances whose files are read at the same time: a bound on memory, since each may have the longest user-data. */
export const MAX_CONCURRENT_READS = 4
export const USER_DATA_ENDING = '.user-data'
export const TOMBSTONE_ENDING = '.removed'
const ENDINGS = [...RECORD_ENDINGS, USER_DATA_ENDING, TOMBSTONE_ENDING]

/** The id that a file of the store belongs to; undefined for a file that does not belong to the store. */
export function idOfFile(name: string): string | undefined {
  const ending = ENDINGS.find((suffix) => name.endsWith(suffix))
  const id = ending === undefined ? '' : name.slice(0, -ending.length)
  return isId(id) ? id : undefined
}

/** The ids of the instances of a directory, in order. */
export async function listInstances(directory: string): Promise<readonly string[]> {
  const ids = (await readdir(directory)).map(idOfFile).filter((id) => id !== undefined)
  return [...new Set(ids)].sort()
}

/**
 * The files of an instance. `records`: those of a record that are there, `ID.json` last. `digest`: differs when a file
 * does.
 */
export type InstanceFiles =
  | {
      readonly kind: 'files'
      readonly digest: string
      readonly records: readonly [RecordFile, ...RecordFile[]]
      readonly userData: Buffer | undefined
    }
  | {
      readonly kind: 'faulty'
      readonly digest: string
      readonly fault: 'unreadable' | 'user-data'
      readonly reason: string
    }
  | { readonly kind: 'removed' }
  | { readonly kind: 'absent' }

interface RecordFile {
  readonly ending: (typeof RECORD_ENDINGS)[number]
  readonly bytes: Buffer
}

/** A file that is not regular or too long: a fault of its instance only. The message is for operators. */
class FileFault extends Error {
  readonly fault: 'unreadable' | 'user-data'
  /** Differs when the file does. */
  readonly stamp: string

  constructor(message: string, stamp: string, fault: 'unreadable' | 'user-data' = 'unreadable') {
    super(message)
    this.stamp = stamp
    this.fault = fault
  }
}

/**
 * Reads the files of an instance. Rejects when a file exists and cannot be read. User-data longer than
 * `userDataMaxBytes` is a fault, and is not read.
 */
export async function readFiles(
  directory: string,
  id: string,
  userDataMaxBytes: number,
  budget: TurnBudget,
): Promise<InstanceFiles> {
  try {
    return await readAll(directory, id, userDataMaxBytes, budget)
  } catch (error) {
    if (!(error instanceof FileFault)) throw error
    const { message: reason, stamp, fault } = error
    return { kind: 'faulty', digest: digestOf([reason, stamp]), fault, reason }
  }
}

async function readAll(
  directory: string,
  id: string,
  userDataMaxBytes: number,
  budget: TurnBudget,
): Promise<InstanceFiles> {
  const readRecord = async (ending: RecordFile['ending']): Promise<RecordFile[]> => {
    const name = id + ending
    const bytes =
      ending === '.json'
        ? await read(directory, name, MAX_FILE_BYTES + base64Length(userDataMaxBytes))
        : await read(
            directory,
            name,
            MAX_YAML_BYTES,
            (length) =>
              `${name} is ${length} bytes, more than the limit of ${MAX_YAML_BYTES} for YAML: write it as JSON`,
          )
    return bytes === undefined ? [] : [{ ending, bytes }]
  }
  const formatLong = (length: number) => formatLongUserData(length, userDataMaxBytes)
  const userData = await read(directory, id + USER_DATA_ENDING, userDataMaxBytes, formatLong, 'user-data').catch(
    (error: unknown) => error as Error,
  )
  const found = [...(await readRecord('.yml')), ...(await readRecord('.yaml')), ...(await readRecord('.json'))]
  if (found.length === 0) {
    const isRemoved = (await read(directory, id + TOMBSTONE_ENDING, MAX_TOMBSTONE_BYTES)) !== undefined
    if (isRemoved) return { kind: 'removed' }
    // it may have taken the place of a tombstone meanwhile
    found.push(...(await readRecord('.json')))
  }
  const [first, ...others] = found
  if (first === undefined) return { kind: 'absent' }
  if (userData instanceof Error) throw userData
  const parts: string[] = []
  for (const bytes of [...found.map((file) => file.bytes), ...(userData === undefined ? [] : [userData])])
    parts.push(await sha256InSlices(bytes, budget))
  return {
    kind: 'files',
    digest: digestOf([userData === undefined ? 'none' : '', ...parts]),
    records: [first, ...others],
    userData,
  }
}

/**
 * Reads a file of the store; undefined if there is none. Rejects with a FileFault for anything but a regular file of at
 * most `maxBytes`.
 */
async function read(
  directory: string,
  name: string,
  maxBytes: number,
  describe: (length: number) => string = (length) => `${name} is ${length} bytes, more than the limit of ${maxBytes}`,
  fault: 'unreadable' | 'user-data' = 'unreadable',
): Promise<Buffer | undefined> {
  const file = await readRegularFile(join(directory, name), maxBytes, 'follow')
  if (file.kind === 'not-regular') throw new FileFault(`${name} is ${file.what}, not a regular file: delete it`, '')
  if (file.kind === 'too-long') throw new FileFault(describe(file.length), file.stamp, fault)
  return file.kind === 'absent' ? undefined : file.bytes
}

/** Loads an instance. Rejects as `readFiles`. */
export async function loadFiles(
  directory: string,
  id: string,
  userDataMaxBytes = MAX_USER_DATA_BYTES,
): Promise<Loaded> {
  const budget = new TurnBudget()
  const files = await readFiles(directory, id, userDataMaxBytes, budget)
  if (files.kind === 'removed' || files.kind === 'absent') return { kind: files.kind, id }
  const { digest } = files
  if (files.kind === 'faulty') return { kind: files.fault, id, digest, reason: files.reason }
  const parsed = await parseFiles(id, files.records)
  if (!parsed.ok) return { kind: 'unreadable', id, digest, reason: parsed.faults.join() }
  const { document, userData = files.userData ?? 'none' } = parsed.value
  if (typeof userData === 'string')
    return { kind: 'record', id, digest, document, userData: undefined, userDataSha256: undefined }
  if (userData.length > userDataMaxBytes)
    return { kind: 'user-data', id, digest, reason: formatLongUserData(userData.length, userDataMaxBytes) }
  const userDataSha256 = await sha256InSlices(userData, budget)
  return {
    kind: 'record',
    id,
    digest,
    document: fillUserData(document, userData, userDataSha256),
    userData,
    userDataSha256,
  }
}

/** Parses the record of an instance. One with its user-data in it is of a writer, and replaces every other file. */
async function parseFiles(
  id: string,
  records: readonly [RecordFile, ...RecordFile[]],
): Promise<ReturnType<typeof parseRecordWithUserData>> {
  const { ending, bytes } = records.at(-1)!
  const format = formatOf(ending)
  const parsed = await parseDocument(bytes, format)
  const form = parsed.ok ? parseRecordWithUserData(parsed.value) : undefined
  const isWhole = form?.ok === true && form.value.userData !== undefined
  if (records.length > 1 && !isWhole)
    return {
      ok: false,
      faults: [
        `more than one record: ${records
          .map((file) => id + file.ending)
          .reverse()
          .join(', ')}`,
      ],
    }
  if (form?.ok === true) return form
  // not the fault, which would quote the record
  if (parsed.ok) return { ok: false, faults: [`${id}${ending} is no record with its user-data: publish it again`] }
  const [{ cause, line }] = parsed.faults // not its message, which would quote the record
  const place = line === undefined ? '' : ` from line ${line} on`
  const fault = cause === undefined ? `is not ${format}${place}` : `cannot be read${place}: ${cause}`
  return { ok: false, faults: [`${id}${ending} ${fault}`] }
}

function digestOf(parts: readonly string[]): string {
  return createHash('sha256').update(parts.join()).digest('hex')
}

function formatLongUserData(length: number, maxBytes: number): string {
  return `the user-data is ${formatTooLong(length, maxBytes)}`
}

function base64Length(bytes: number): number {
  return Math.ceil(bytes / 3) * 4
}
