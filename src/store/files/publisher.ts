/**
 * The write side in a directory of files.
 *
 * A change is committed by one rename, of `ID.pending`; the other files of its instance follow, and then it is removed. A writer that ends
 * between any two steps, even by a power cut, leaves the old state or the new one as a daemon reads it, and the next writer finishes
 * its change. One writer at a time works in a directory (files-lock.ts). Revisions, seals and the owners of addresses are checked against
 * the records, and against a ledger (files-ledger.ts) for records that cannot be read.
 *
 *   .publisher.lock   the lock: an empty file
 *   .publisher.json   the ledger
 *   .publisher.tmp    a file that is being written
 */
import { watch } from 'node:fs'
import { mkdir, readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { overlap } from '../../metadata/address.ts'
import { rangesOf, type Instance } from '../../metadata/instance.ts'
import { parse, sizeFaults } from '../../metadata/record.ts'
import { formatRecord, idOfFile, loadFiles, RECORD_ENDINGS } from './source.ts'
import { formatLedger, formatTombstone, publishedAs, readLedger, removedAt, survey, type Protection, type Protections } from './ledger.ts'
import { takeLock } from './lock.ts'
import type { FileOperations } from './operations.ts'
import { formatPending, parsePending, type Change } from './pending.ts'
import {
  changeSeal, publish, type Backend, type Listed, type Publisher, type Published, type PutOptions, type PutResult, type RemoveResult, type SealResult,
  type UserDataChange, type Written,
} from '../publish.ts'

const LOCK = '.publisher.lock'
const LEDGER = '.publisher.json'
const TEMPORARY = '.publisher.tmp'
/** Notices of one instance are put together for so long. */
const NOTICE_MS = 50

/** Opens a directory for writing; the first write makes it where it is missing. */
export function openFilePublisher(directory: string, userDataMaxBytes: number, operations: FileOperations): Publisher {
  return new FilePublisher(directory, userDataMaxBytes, operations)
}

class FilePublisher implements Publisher {
  readonly #directory: string
  readonly #userDataMaxBytes: number
  readonly #operations: FileOperations
  /** The last of the writes of this publisher: they take turns here, and wait for the lock of other publishers alone. */
  #last: Promise<unknown> = Promise.resolve()

  constructor(directory: string, userDataMaxBytes: number, operations: FileOperations) {
    this.#directory = directory
    this.#userDataMaxBytes = userDataMaxBytes
    this.#operations = operations
  }

  put(document: unknown, userData: UserDataChange = 'keep', options?: PutOptions): Promise<PutResult> {
    return this.#locked((writer) => publish(writer, document, userData, this.#userDataMaxBytes, options))
  }

  get(id: string): Promise<Published | undefined> {
    return loadPublished(this.#directory, id)
  }

  remove(id: string, revision?: number): Promise<RemoveResult> {
    return this.#locked((writer) => writer.remove(id, revision))
  }

  seal(id: string): Promise<SealResult> {
    return this.#locked((writer) => changeSeal(writer, id, new Date().toISOString()))
  }

  unseal(id: string): Promise<SealResult> {
    return this.#locked((writer) => changeSeal(writer, id, undefined))
  }

  encrypt(): Promise<never> {
    return Promise.reject(new Error('records in files are not encrypted'))
  }

  decrypt(): Promise<never> {
    return this.encrypt()
  }

  markEncrypted(): Promise<never> {
    return this.encrypt()
  }

  markPlain(): Promise<never> {
    return this.encrypt()
  }

  initialise(): Promise<boolean> {
    return this.#locked(() => Promise.resolve(false))
  }

  hypervisors(): Promise<never> {
    return Promise.reject(new Error('daemons announce themselves in Redis, and not in files'))
  }

  async list(): Promise<readonly Listed[]> {
    const ids = new Set((await readdir(this.#directory)).map(idOfFile).filter((id) => id !== undefined))
    const all: Listed[] = []
    for (const id of [...ids].sort()) {
      const loaded = await loadFiles(this.#directory, id)
      const parsed = loaded.kind === 'record' ? parse(loaded.document) : undefined
      if (parsed?.ok !== true) continue
      const { revision, hypervisors } = parsed.instance
      all.push({ id, revision, hypervisors, addresses: rangesOf(parsed.instance).map(({ network, range }) => `${network} ${range}`) })
    }
    return all
  }

  watch(changed: (id: string) => void): Promise<() => Promise<void>> {
    const waiting = new Map<string, NodeJS.Timeout>()
    const watcher = watch(this.#directory, (_event, name) => {
      const id = name === null ? undefined : idOfFile(name)
      if (id === undefined || waiting.has(id)) return
      waiting.set(id, setTimeout(() => { // behind the first change and all that come until then: the last one is never left out
        waiting.delete(id)
        changed(id)
      }, NOTICE_MS))
    })
    return Promise.resolve(async () => {
      watcher.close()
      for (const timer of waiting.values()) clearTimeout(timer)
      await Promise.resolve()
    })
  }

  async close(): Promise<void> {
    await this.#last
  }

  #locked<T>(task: (writer: Writer) => Promise<T>): Promise<T> {
    const result = this.#last.then(async () => {
      await mkdir(this.#directory, { recursive: true, mode: 0o700 })
      const lock = await takeLock(join(this.#directory, LOCK))
      try {
        const writer = new Writer(this.#directory, this.#operations)
        await writer.recover()
        return await task(writer)
      } finally {
        lock.close()
      }
    })
    this.#last = result.catch(() => { /* the caller has it */ })
    return result
  }
}

/** The one writer of a directory, while it has the lock. */
class Writer implements Backend {
  readonly region = null
  readonly #directory: string
  readonly #operations: FileOperations
  #protections: Protections = new Map()

  constructor(directory: string, operations: FileOperations) {
    this.#directory = directory
    this.#operations = operations
  }

  /** Finishes what an earlier writer left pending, and brings the ledger in line with the records. */
  async recover(): Promise<void> {
    await this.#remove(TEMPORARY) // may be half of a file
    const unfinished: string[] = []
    for (const name of (await readdir(this.#directory)).filter((name) => name.endsWith('.pending'))) {
      const id = idOfFile(name)
      const change = id === undefined ? undefined : parsePending(await readFile(join(this.#directory, name)))
      if (id === undefined || change === undefined) continue // a file of somebody else's: its instance is reported as faulty
      await this.#apply(id, change)
      unfinished.push(id)
    }
    const remembered = await readLedger(join(this.#directory, LEDGER))
    this.#protections = await survey(this.#directory, remembered)
    if (formatLedger(remembered) !== formatLedger(this.#protections)) await this.#saveLedger()
    for (const id of unfinished) await this.#finish(id)
  }

  get(id: string): Promise<Published | undefined> {
    return loadPublished(this.#directory, id)
  }

  unannounced(): Promise<readonly string[]> {
    return Promise.resolve([])
  }

  async write(instance: Instance, unsealed: unknown, userData: UserDataChange, lifts: boolean, { dryRun = false }: PutOptions = {}): Promise<Written> {
    const { id, revision } = instance
    const current = await loadFiles(this.#directory, id)
    const known = this.#protections.get(id)
    const sealedAt = (lifts ? undefined : known?.sealedAt) ?? instance.sealedAt
    const document = sealedAt === undefined ? unsealed : { ...unsealed as object, sealedAt }
    const faults = sizeFaults(document) // with the seal that it keeps
    if (faults.length > 0) return { result: 'invalid', faults }
    if (known !== undefined && revision < known.revision) return { result: 'stale', revision: known.revision }
    if (revision === known?.revision) {
      const same = current.kind === 'record' && JSON.stringify(current.document) === JSON.stringify(document)
        && (userData === 'keep' || sameBytes(current.userData, userData))
      return same ? { result: 'unchanged', sealedAt } : { result: 'stale', revision }
    }
    for (const [owner, { ranges }] of this.#protections) {
      const taken = owner === id ? undefined : overlapOf(instance, ranges)
      if (taken !== undefined) return { result: 'address-owned', network: taken.network, address: taken.range, owner }
    }
    if (dryRun) return { result: 'published', sealedAt }
    await this.#commit(id, { kind: 'put', document, userData }, publishedAs(instance, sealedAt))
    return { result: 'published', sealedAt }
  }

  async remove(id: string, given: number | undefined): Promise<RemoveResult> {
    const loaded = await loadFiles(this.#directory, id)
    const known = this.#protections.get(id)
    const isThere = loaded.kind === 'record' || loaded.kind === 'unreadable' || known?.isRemoved === false
    if (!isThere && loaded.kind === 'absent' && given === undefined) return { result: 'absent' }
    const last = known?.revision ?? 0
    const revision = given ?? (isThere ? last + 1 : Math.max(last, 1))
    if (revision < last) return { result: 'stale', revision: last }
    const removed = removedAt(revision, known?.sealedAt)
    await this.#commit(id, { kind: 'remove', tombstone: formatTombstone(removed) }, removed)
    return { result: isThere ? 'removed' : 'unchanged', revision }
  }

  async #commit(id: string, change: Change, protection: Protection): Promise<void> {
    await this.#replace(`${id}.pending`, formatPending(change))
    await this.#operations.sync(this.#directory)
    await this.#apply(id, change)
    this.#protections.set(id, protection)
    await this.#saveLedger()
    await this.#finish(id)
  }

  /** Brings the files of an instance in line with a change. Can be done any number of times. */
  async #apply(id: string, change: Change): Promise<void> {
    if (change.kind === 'remove') {
      await this.#replace(`${id}.removed`, `${change.tombstone}\n`)
      for (const ending of [...RECORD_ENDINGS, '.user-data']) await this.#remove(id + ending)
      return
    }
    const { document, userData } = change
    if (userData === 'none') await this.#remove(`${id}.user-data`)
    else if (userData !== 'keep') await this.#replace(`${id}.user-data`, userData)
    await this.#replace(`${id}.json`, formatRecord(document))
    for (const ending of ['.yaml', '.yml', '.removed']) await this.#remove(id + ending)
  }

  async #finish(id: string): Promise<void> {
    await this.#operations.sync(this.#directory)
    await this.#remove(`${id}.pending`)
  }

  async #saveLedger(): Promise<void> {
    await this.#replace(LEDGER, formatLedger(this.#protections))
  }

  async #replace(name: string, content: string | Uint8Array): Promise<void> {
    const temporary = join(this.#directory, TEMPORARY)
    await this.#operations.create(temporary, content)
    await this.#operations.rename(temporary, join(this.#directory, name))
  }

  async #remove(name: string): Promise<void> {
    await this.#operations.remove(join(this.#directory, name))
  }
}

async function loadPublished(directory: string, id: string): Promise<Published | undefined> {
  const loaded = await loadFiles(directory, id)
  if (loaded.kind === 'unreadable') throw new Error(loaded.reason)
  return loaded.kind === 'record' ? { document: loaded.document, userData: loaded.userData } : undefined
}

/** A range of an instance that holds an address of others. */
function overlapOf(instance: Instance, others: Protection['ranges']): { network: string, range: string } | undefined {
  return rangesOf(instance).find((mine) => others.some(({ network, range }) => network === mine.network && overlap(range, mine.range)))
}

function sameBytes(a: Uint8Array | null, b: Uint8Array | 'none'): boolean {
  return a === null || b === 'none' ? a === null && b === 'none' : Buffer.compare(a, b) === 0
}
