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
import { publisherOn } from '../publish.ts'
import type { Listed, Publisher, Removed } from '../publisher.ts'
import { takeLock } from '../../runtime/kernel-lock.ts'
import { ifThere } from '../../runtime/regular-file.ts'
import { buildFileFleet } from './fleet.ts'
import type { FileOperations } from './operations.ts'
import { idOfFile, loadFiles } from './load.ts'
import { buildRecordIndex, loadStored } from './record-index.ts'
import { listFiles } from './stamps.ts'
import { buildFileWriter } from './writer.ts'

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
  return publisherOn(buildBackend(directory, operations, now), userDataMaxBytes)
}

function buildBackend(directory: string, operations: FileOperations, now: () => number): Backend {
  const index = buildRecordIndex(directory, now)
  const newWriter = () => buildFileWriter(directory, operations, index)
  /**
   * The last write of this publisher. Its writes wait for each other here, so that only other publishers compete for
   * the lock.
   */
  let last: Promise<unknown> = Promise.resolve()

  const write = async <T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> => {
    await mkdir(directory, { recursive: true, mode: 0o700 })
    const next = await takeLock(join(directory, QUEUE))
    const lock = await takeLock(join(directory, LOCK)).finally(() => next.close())
    try {
      const writer = newWriter()
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
  const read = async <T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> => {
    await index.refresh((await ifThere(listFiles(directory))) ?? new Map<string, string[]>())
    return task(newWriter())
  }
  const transaction: Backend['transaction'] = (task, dryRun) => {
    const result = last.then(() => (dryRun ? read(task) : write(task)))
    last = result.catch(() => undefined) // the caller has it
    return result
  }

  return {
    region: undefined,
    conversion: undefined,
    noKeysReason: 'records in files are not encrypted',
    fleet: buildFileFleet(directory, operations, now),
    transaction,
    /** Rejects when the instance cannot be read. */
    get: async (id) => {
      const loaded = await loadFiles(directory, id)
      if (loaded.kind === 'unreadable' || loaded.kind === 'user-data') throw new Error(loaded.reason)
      if (loaded.kind !== 'record') return undefined
      return { document: loaded.document, order: loaded.order ?? 0, userData: loaded.userData }
    },
    unannounced: () => Promise.resolve([]),
    /** Daemons only read the directory. */
    reportsOf: () => Promise.resolve(new Map<string, never>()),
    initialise: () => transaction(() => Promise.resolve(false), false),
    hypervisors: () =>
      Promise.reject(new Error('daemons announce themselves only in Redis, not in a directory of files')),
    list: async () => {
      const ids = new Set((await readdir(directory)).map(idOfFile).filter((id) => id !== undefined))
      const all: Listed[] = []
      for (const id of [...ids].sort()) {
        const loaded = await loadFiles(directory, id)
        const parsed = loaded.kind === 'record' ? parseStored(loaded.document) : undefined
        if (parsed?.ok !== true) continue
        const { revision, hypervisors, sealedAt } = parsed.value
        const addresses = rangesOf(parsed.value).map(({ network, range }) => `${network} ${range}`)
        all.push({ id, revision, hypervisors, addresses, ...(sealedAt !== undefined && { sealedAt }) })
      }
      return all
    },
    tombstones: async () => {
      const removed: Removed[] = []
      for (const [id, endings] of await listFiles(directory)) {
        if (!endings.includes('.removed') && !endings.includes('.pending')) continue
        const { isRemoved, revision = 0, sealedAt } = (await loadStored(directory, id)) ?? {}
        if (isRemoved === true) removed.push({ id, revision, ...(sealedAt !== undefined && { sealedAt }) })
      }
      return removed
    },
    close: async () => {
      await last
    },
  }
}
