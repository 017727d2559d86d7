/**
 * The write side in a directory of files.
 *
 * One writer at a time works in a directory: it holds the lock (kernel-lock.ts), reads what the directory has
 * (record-index.ts), and then checks and writes (writer.ts). Writes of this process that wait share both.
 *
 *   .publisher.lock    the lock: an empty file
 *   .publisher.tmp     a file that is being written
 *   .publisher.imds-api, .publisher.database   that an imds-api publishes here, and its database (fleet.ts)
 */
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { rangesOf } from '../../metadata/instance.ts'
import { parse } from '../../metadata/record.ts'
import type { Backend, RecordWriter } from '../backend.ts'
import { publisherOn } from '../publish.ts'
import type { Listed, Publisher } from '../publisher.ts'
import { takeLock, type Lock } from '../../runtime/kernel-lock.ts'
import { buildFileFleet } from './fleet.ts'
import type { FileOperations } from './operations.ts'
import { listInstances, loadFiles, TOMBSTONE_ENDING } from './load.ts'
import { readRecordIndex } from './record-index.ts'
import { buildFileWriter } from './writer.ts'

const LOCK = '.publisher.lock'
/** The most writes that share the lock, so that other processes get it too. */
const MAX_WRITES_AT_ONCE = 100

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
  const turn = new Turn(async () => {
    await mkdir(directory, { recursive: true, mode: 0o700 })
    const lock = await takeLock(join(directory, LOCK))
    try {
      const remove = (id: string) => operations.remove(join(directory, id + TOMBSTONE_ENDING))
      return { lock, writer: buildFileWriter(directory, operations, await readRecordIndex(directory, now(), remove)) }
    } catch (error) {
      lock.close()
      throw error
    }
  })
  const transaction: Backend['transaction'] = (task, dryRun) =>
    dryRun
      ? // without the lock: what it finds may be outdated by the time the caller has it anyway
        turn.after(async () => task(buildFileWriter(directory, operations, await readRecordIndex(directory, now()))))
      : turn.take(task)

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
    reports: () => Promise.resolve(undefined),
    initialise: () => transaction(() => Promise.resolve(false), false),
    hypervisors: () =>
      Promise.reject(new Error('daemons announce themselves only in Redis, not in a directory of files')),
    list: async () => {
      const all: Listed[] = []
      for (const id of await listInstances(directory)) {
        const loaded = await loadFiles(directory, id)
        const parsed = loaded.kind === 'record' ? parse(loaded.document) : undefined
        if (parsed?.ok !== true) continue
        const { revision, hypervisors, sealedAt } = parsed.value
        const addresses = rangesOf(parsed.value).map(({ network, range }) => `${network} ${range}`)
        all.push({ id, revision, hypervisors, addresses, ...(sealedAt !== undefined && { sealedAt }) })
      }
      return all
    },
    tombstones: async () =>
      [...(await readRecordIndex(directory, now()))].flatMap(([id, { isRemoved, revision, incarnation, sealedAt }]) =>
        isRemoved
          ? {
              id,
              revision,
              ...(incarnation !== undefined && { incarnation }),
              ...(sealedAt !== undefined && { sealedAt }),
            }
          : [],
      ),
    close: () => turn.after(() => Promise.resolve()),
  }
}

/** Runs the tasks of one publisher one after the other. Writes that follow each other share a lock and a writer. */
class Turn {
  readonly #begin: () => Promise<{ readonly lock: Lock; readonly writer: RecordWriter }>
  #last: Promise<unknown> = Promise.resolve()
  #shared: { readonly lock: Lock; readonly writer: RecordWriter } | undefined
  #waiting = 0
  #writes = 0

  constructor(begin: () => Promise<{ readonly lock: Lock; readonly writer: RecordWriter }>) {
    this.#begin = begin
  }

  /** Runs a task that writes nothing. */
  after<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#last.then(task)
    this.#last = result.catch(() => undefined) // the caller has it
    return result
  }

  take<T>(write: (writer: RecordWriter) => Promise<T>): Promise<T> {
    this.#waiting += 1
    return this.after(async () => {
      let isShared = false
      try {
        this.#shared ??= await this.#begin()
        const written = await write(this.#shared.writer)
        isShared = this.#waiting > 1 && ++this.#writes % MAX_WRITES_AT_ONCE !== 0
        return written
      } finally {
        this.#waiting -= 1
        if (!isShared) {
          this.#shared?.lock.close() // after a failure too: the index may be wrong
          this.#shared = undefined
        }
      }
    })
  }
}
