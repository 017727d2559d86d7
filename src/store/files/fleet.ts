/**
 * A directory of files has no marks of hypervisors, since daemons do not announce themselves there. It knows the
 * imds-api that publishes to it:
 *
 *   .publisher.imds-api   when an imds-api last published to this directory
 *   .publisher.database   the id of its database
 *   .publisher.numbers    the last numbers that the sequences of its database have given, as JSON
 */
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { parseControlPlane, parseFields, type Fleet } from '../fleet.ts'
import { placeOf } from '../order.ts'
import { replaceFile, type FileOperations } from './operations.ts'
import { readRegularFile } from '../../runtime/regular-file.ts'

const ANNOUNCEMENT_FILE = '.publisher.imds-api'
const DATABASE_FILE = '.publisher.database'
const NUMBERS_FILE = '.publisher.numbers'
const HISTORY = 'files'
const MAX_FILE_BYTES = 4096
const ANNOUNCEMENT_RETENTION_MS = 30 * 24 * 3_600_000

export function buildFileFleet(directory: string, operations: FileOperations, now: () => number): Fleet {
  /** Empty for a file that is not regular, or too long. */
  const read = async (name: string): Promise<string | undefined> => {
    const file = await readRegularFile(join(directory, name), MAX_FILE_BYTES, 'refuse')
    return file.kind === 'absent' ? undefined : file.kind === 'read' ? file.bytes.toString().trim() : ''
  }
  const replace = (name: string, text: string) => replaceFile(operations, directory, name, text, `${name}.tmp`)
  const database = () => read(DATABASE_FILE)
  const numbers = async () => {
    const found = Object.entries(parseFields((await read(NUMBERS_FILE)) ?? ''))
    return new Map(found.map(([name, number]) => [name, placeOf(number)]))
  }
  return {
    drained: () => Promise.resolve(new Map()),
    drain: noMarks,
    undrain: noMarks,
    forget: noMarks,
    controlPlane: async () => {
      const text = await read(ANNOUNCEMENT_FILE)
      if (text === undefined) return undefined
      const found = parseControlPlane(text)
      return now() - Date.parse(found.seenAt) > ANNOUNCEMENT_RETENTION_MS ? undefined : found
    },
    announceControlPlane: (controlPlane) => replace(ANNOUNCEMENT_FILE, `${JSON.stringify(controlPlane)}\n`),
    database,
    setDatabase: async (id, replaces) => {
      const before = await database()
      if (before !== undefined && !replaces) return before
      await mkdir(directory, { recursive: true, mode: 0o700 }) // as the first write does
      await replace(DATABASE_FILE, `${id}\n`)
      return id
    },
    /** A directory loses nothing unless it is emptied, with the id of the database in it. */
    state: async () => {
      const id = await database()
      const complete = id === undefined ? undefined : HISTORY
      return { database: id, history: HISTORY, complete, last: undefined, behind: undefined }
    },
    numbers,
    noteNumbers: async (given) => {
      if (given.size === 0) return
      const all = Object.fromEntries([...(await numbers()), ...given])
      await mkdir(directory, { recursive: true, mode: 0o700 })
      await replace(NUMBERS_FILE, `${JSON.stringify(all)}\n`)
    },
    markComplete: () => Promise.resolve(),
    markBehind: () => Promise.resolve(),
    clearBehind: () => Promise.resolve(),
  }
}

function noMarks(): Promise<never> {
  return Promise.reject(new Error('hypervisors are drained and forgotten only in Redis, not in a directory of files'))
}
