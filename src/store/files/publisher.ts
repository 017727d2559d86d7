/**
 * The write side in a directory of files.
 *
 * One writer at a time works in a directory: it holds the lock (lock.ts), first finishes what an earlier writer left
 * pending, and then checks and writes (writer.ts). A writer that waits for the lock holds the queue, so it is next,
 * however many writes another process has.
 *
 *   .publisher.lock    the lock: an empty file
 *   .publisher.queue   the lock of the writer that is next: an empty file
 *   .publisher.tmp     a file that is being written
 *   .publisher.imds-api, .publisher.database   that an imds-api publishes here, and its database (fleet.ts)
 */
import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { rangesOf } from '../../metadata/instance.ts'
import { parseStored } from '../../metadata/record.ts'
import type { Backend, RecordWriter } from '../backend.ts'
import { StorePublisher } from '../publish.ts'
import type { Fleet } from '../fleet.ts'
import type { Listed, Published, Publisher, Removed } from '../publisher.ts'
import { takeLock } from '../../runtime/kernel-lock.ts'
import { ifThere } from '../../runtime/regular-file.ts'
import { FileFleet } from './fleet.ts'
import type { FileOperations } from './operations.ts'
import { idOfFile, loadFiles } from './load.ts'
import { loadStored, RecordIndex } from './record-index.ts'
import { listFiles } from './stamps.ts'
import { FileWriter } from './writer.ts'

const LOCK = '.publisher.lock'
const QUEUE = '.publisher.queue'

/**
 * Opens a directory for writing. The first write creates the directory if it is missing. `now`: Unix time in
 * milliseconds.
 */
export function openFilePublisher(
  directory: string,
  userDataMaxBytes: number,
  operations: FileOperations,
  now: () => number,
): Publisher {
  return new StorePublisher(new FileBackend(directory, operations, now), userDataMaxBytes)
}

class FileBackend implements Backend {
  readonly region = undefined
  readonly conversion = undefined
  readonly noKeysReason = 'records in files are not encrypted'
  readonly fleet: Fleet
  readonly #directory: string
  readonly #operations: FileOperations
  readonly #index: RecordIndex
  /**
   * The last write of this publisher. Its writes wait for each other here, so that only other publishers compete for
   * the lock.
   */
  #last: Promise<unknown> = Promise.resolve()

  constructor(directory: string, operations: FileOperations, now: () => number) {
    this.#directory = directory
    this.#operations = operations
    this.fleet = new FileFleet(directory, operations, now)
    this.#index = new RecordIndex(directory, now)
  }

  transaction<T>(task: (writer: RecordWriter) => Promise<T>, dryRun: boolean): Promise<T> {
    const result = this.#last.then(() => (dryRun ? this.#read(task) : this.#write(task)))
    this.#last = result.catch(() => undefined) // the caller has it
    return result
  }

  async #write<T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 })
    const next = await takeLock(join(this.#directory, QUEUE))
    const lock = await takeLock(join(this.#directory, LOCK)).finally(() => {
      next.close()
    })
    try {
      const writer = new FileWriter(this.#directory, this.#operations, this.#index)
      await writer.recover()
      return await task(writer)
    } finally {
      lock.close()
    }
  }

  /**
   * Runs a task that writes nothing. It needs no lock, since what it finds may be outdated by the time the caller has
   * it anyway.
   */
  async #read<T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> {
    await this.#index.refresh((await ifThere(listFiles(this.#directory))) ?? new Map<string, string[]>())
    return task(new FileWriter(this.#directory, this.#operations, this.#index))
  }

  /** Rejects when the instance cannot be read. */
  async get(id: string): Promise<Published | undefined> {
    const loaded = await loadFiles(this.#directory, id)
    if (loaded.kind === 'unreadable' || loaded.kind === 'user-data') throw new Error(loaded.reason)
    return loaded.kind === 'record' ? { document: loaded.document, userData: loaded.userData } : undefined
  }

  unannounced(): Promise<readonly string[]> {
    return Promise.resolve([])
  }

  /** Daemons only read the directory. */
  reportsOf(): Promise<ReadonlyMap<string, never>> {
    return Promise.resolve(new Map<string, never>())
  }

  initialise(): Promise<boolean> {
    return this.transaction(() => Promise.resolve(false), false)
  }

  hypervisors(): Promise<never> {
    return Promise.reject(new Error('daemons announce themselves only in Redis, not in a directory of files'))
  }

  async list(): Promise<readonly Listed[]> {
    const ids = new Set((await readdir(this.#directory)).map(idOfFile).filter((id) => id !== undefined))
    const all: Listed[] = []
    for (const id of [...ids].sort()) {
      const loaded = await loadFiles(this.#directory, id)
      const parsed = loaded.kind === 'record' ? parseStored(loaded.document) : undefined
      if (parsed?.ok !== true) continue
      const { revision, hypervisors, sealedAt } = parsed.value
      all.push({
        id,
        revision,
        hypervisors,
        addresses: rangesOf(parsed.value).map(({ network, range }) => `${network} ${range}`),
        ...(sealedAt !== undefined && { sealedAt }),
      })
    }
    return all
  }

  async tombstones(): Promise<readonly Removed[]> {
    const removed: Removed[] = []
    for (const [id, endings] of await listFiles(this.#directory)) {
      if (!endings.includes('.removed') && !endings.includes('.pending')) continue
      const { isRemoved, revision = 0, sealedAt } = (await loadStored(this.#directory, id)) ?? {}
      if (isRemoved === true) removed.push({ id, revision, ...(sealedAt !== undefined && { sealedAt }) })
    }
    return removed
  }

  async close(): Promise<void> {
    await this.#last
  }
}
