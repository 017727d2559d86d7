/**
 * A directory of files has no marks of hypervisors, since daemons do not announce themselves there. It knows the imds-api
 * that publishes to it:
 *
 *   .publisher.imds-api   when an imds-api last published to this directory
 */
import { join } from 'node:path'
import { parseControlPlane, type ControlPlane, type Fleet } from '../fleet.ts'
import type { FileOperations } from './operations.ts'
import { readRegularFile } from './regular-file.ts'

const FILE = '.publisher.imds-api'
const TEMPORARY = `${FILE}.tmp`
const MAX_BYTES = 1024
const KEPT_MS = 30 * 24 * 3_600_000

export class FileFleet implements Fleet {
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #now: () => number

  constructor(directory: string, operations: FileOperations, now: () => number) {
    this.#directory = directory
    this.#operations = operations
    this.#now = now
  }

  drained(): Promise<ReadonlyMap<string, string>> {
    return Promise.resolve(new Map())
  }

  drain(): Promise<never> {
    return noMarks()
  }

  undrain(): Promise<never> {
    return noMarks()
  }

  forget(): Promise<never> {
    return noMarks()
  }

  async controlPlane(): Promise<ControlPlane | undefined> {
    const read = await readRegularFile(join(this.#directory, FILE), MAX_BYTES, 'refuse')
    if (read.kind === 'absent') return undefined
    const found = parseControlPlane(read.kind === 'read' ? read.bytes.toString() : '')
    return this.#now() - Date.parse(found.seenAt) > KEPT_MS ? undefined : found
  }

  async announceControlPlane(controlPlane: ControlPlane): Promise<void> {
    const [temporary, path] = [join(this.#directory, TEMPORARY), join(this.#directory, FILE)]
    await this.#operations.remove(temporary)
    await this.#operations.create(temporary, `${JSON.stringify(controlPlane)}\n`)
    await this.#operations.rename(temporary, path)
  }
}

function noMarks(): Promise<never> {
  return Promise.reject(new Error('hypervisors are drained and forgotten only in Redis, not in a directory of files'))
}
