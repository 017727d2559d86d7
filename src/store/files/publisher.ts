/**
 * The write side in a directory of files.
 *
 * One writer at a time works in a directory: it holds the lock (lock.ts), first finishes what an earlier writer left pending, and then
 * checks and writes (writer.ts).
 *
 *   .publisher.lock   the lock: an empty file
 *   .publisher.json   the ledger (ledger.ts)
 *   .publisher.tmp    a file that is being written
 */
import { watch } from 'node:fs'
import { mkdir, readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { rangesOf } from '../../metadata/instance.ts'
import { parseStored } from '../../metadata/record.ts'
import { PLAIN, type Backend, type PlainReader, type PlainWriter } from '../backend.ts'
import { buildPublisher } from '../publish.ts'
import type { Listed, Published, Publisher } from '../publisher.ts'
import { takeLock } from './lock.ts'
import type { FileOperations } from './operations.ts'
import { idOfFile, loadFiles } from './source.ts'
import { FileWriter, loadPublished } from './writer.ts'

const LOCK = '.publisher.lock'
/** Changes of one instance within this time become one report to a watcher. */
const REPORT_INTERVAL_MS = 50

/** Opens a directory for writing. The first write creates the directory if it is missing. */
export function openFilePublisher(directory: string, userDataMaxBytes: number, operations: FileOperations): Publisher {
  return buildPublisher(new FileBackend(directory, operations), PLAIN, userDataMaxBytes)
}

class FileBackend implements Backend<PlainWriter>, PlainReader {
  readonly region = undefined
  readonly whyPlain = 'records in files are not encrypted'
  readonly #directory: string
  readonly #operations: FileOperations
  /** The last write of this publisher. Its writes wait for each other here, so that only other publishers compete for the lock. */
  #last: Promise<unknown> = Promise.resolve()

  constructor(directory: string, operations: FileOperations) {
    this.#directory = directory
    this.#operations = operations
  }

  transaction<T>(task: (writer: PlainWriter) => Promise<T>): Promise<T> {
    const result = this.#last.then(async () => {
      await mkdir(this.#directory, { recursive: true, mode: 0o700 })
      const lock = await takeLock(join(this.#directory, LOCK))
      try {
        const writer = new FileWriter(this.#directory, this.#operations)
        await writer.recover()
        return await task(writer)
      } finally {
        lock.close()
      }
    })
    this.#last = result.catch(() => { /* the caller has it */ })
    return result
  }

  get(id: string): Promise<Published | undefined> {
    return loadPublished(this.#directory, id)
  }

  unannounced(): Promise<readonly string[]> {
    return Promise.resolve([])
  }

  initialise(): Promise<boolean> {
    return this.transaction(() => Promise.resolve(false))
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
      const { revision, hypervisors } = parsed.value
      all.push({ id, revision, hypervisors, addresses: rangesOf(parsed.value).map(({ network, range }) => `${network} ${range}`) })
    }
    return all
  }

  watch(changed: (id: string) => void): Promise<() => Promise<void>> {
    const pending = new Map<string, NodeJS.Timeout>()
    const watcher = watch(this.#directory, (_event, name) => {
      const id = name ? idOfFile(name) : undefined
      if (id === undefined || pending.has(id)) return
      pending.set(id, setTimeout(() => { // reports all changes until then, so the last one is never missed
        pending.delete(id)
        changed(id)
      }, REPORT_INTERVAL_MS))
    })
    return Promise.resolve(async () => {
      watcher.close()
      for (const timer of pending.values()) clearTimeout(timer)
      await Promise.resolve()
    })
  }

  async close(): Promise<void> {
    await this.#last
  }
}
