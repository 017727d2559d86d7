/**
 * A directory of files has no marks of hypervisors, since daemons do not announce themselves there. It knows the
 * imds-api that publishes to it:
 *
 *   .publisher.imds-api   when an imds-api last published to this directory
 *   .publisher.database   the id of its database
 */
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { parseControlPlane, type ControlPlane, type Fleet, type StoreState } from '../fleet.ts'
import type { FileOperations } from './operations.ts'
import { readRegularFile } from '../../runtime/regular-file.ts'

const ANNOUNCEMENT_FILE = '.publisher.imds-api'
const DATABASE_FILE = '.publisher.database'
const HISTORY = 'files'
const MAX_FILE_BYTES = 1024
const ANNOUNCEMENT_RETENTION_MS = 30 * 24 * 3_600_000

export class FileFleet implements Fleet {
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #now: () => number
  readonly drain = noMarks
  readonly undrain = noMarks
  readonly forget = noMarks

  constructor(directory: string, operations: FileOperations, now: () => number) {
    this.#directory = directory
    this.#operations = operations
    this.#now = now
  }

  drained(): Promise<ReadonlyMap<string, string>> {
    return Promise.resolve(new Map())
  }

  async controlPlane(): Promise<ControlPlane | undefined> {
    const text = await this.#read(ANNOUNCEMENT_FILE)
    if (text === undefined) return undefined
    const found = parseControlPlane(text)
    return this.#now() - Date.parse(found.seenAt) > ANNOUNCEMENT_RETENTION_MS ? undefined : found
  }

  async announceControlPlane(controlPlane: ControlPlane): Promise<void> {
    await this.#replace(ANNOUNCEMENT_FILE, `${JSON.stringify(controlPlane)}\n`)
  }

  database(): Promise<string | undefined> {
    return this.#read(DATABASE_FILE)
  }

  async setDatabase(database: string, replaces: boolean): Promise<string> {
    const before = await this.database()
    if (before !== undefined && !replaces) return before
    await mkdir(this.#directory, { recursive: true, mode: 0o700 }) // as the first write does
    await this.#replace(DATABASE_FILE, `${database}\n`)
    return database
  }

  /** A directory loses nothing unless it is emptied, with the id of the database in it. */
  async state(): Promise<StoreState> {
    const database = await this.database()
    return { database, history: HISTORY, complete: database === undefined ? undefined : HISTORY }
  }

  markComplete(): Promise<void> {
    return Promise.resolve()
  }

  /** Empty for a file that is not regular, or too long. */
  async #read(name: string): Promise<string | undefined> {
    const read = await readRegularFile(join(this.#directory, name), MAX_FILE_BYTES, 'refuse')
    return read.kind === 'absent' ? undefined : read.kind === 'read' ? read.bytes.toString().trim() : ''
  }

  async #replace(name: string, text: string): Promise<void> {
    const [temporary, path] = [join(this.#directory, `${name}.tmp`), join(this.#directory, name)]
    await this.#operations.remove(temporary)
    await this.#operations.create(temporary, text)
    await this.#operations.rename(temporary, path)
  }
}

function noMarks(): Promise<never> {
  return Promise.reject(new Error('hypervisors are drained and forgotten only in Redis, not in a directory of files'))
}
