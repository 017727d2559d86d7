/**
 * The write side in a directory of files. Each file is written beside its place and renamed into it; user-data goes first, so that
 * the record that tells of it never stands alone. A lock file keeps writers apart: revisions and addresses are checked under it.
 */
import { randomUUID } from 'node:crypto'
import { watch } from 'node:fs'
import { constants, copyFile, link, mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { overlap } from '../metadata/address.ts'
import { rangesOf, type Instance } from '../metadata/instance.ts'
import { parse, sealOf } from '../metadata/record.ts'
import { idOfFile, loadFiles, RECORD_ENDINGS } from './files.ts'
import {
  changeSeal, publish, type Backend, type Listed, type Publisher, type Published, type PutResult, type RemoveResult, type SealResult,
  type UserDataChange, type Written,
} from './publish.ts'
import type { Loaded } from './source.ts'

const LOCK_WAIT_MS = 5000
/** The lock of whoever removes a lock, beside it. */
const TURN = '.orphan'

/** Opens a directory for writing; the first write makes it where it is missing. */
export function openFilePublisher(directory: string, userDataMaxBytes: number): Promise<Publisher> {
  return Promise.resolve(new FilePublisher(directory, userDataMaxBytes))
}

class FilePublisher implements Publisher, Backend {
  readonly #directory: string
  readonly #userDataMaxBytes: number

  constructor(directory: string, userDataMaxBytes: number) {
    this.#directory = directory
    this.#userDataMaxBytes = userDataMaxBytes
  }

  put(document: unknown, userData: UserDataChange = 'keep'): Promise<PutResult> {
    return this.#locked(() => publish(this, document, userData, this.#userDataMaxBytes))
  }

  async get(id: string): Promise<Published | undefined> {
    const loaded = await loadFiles(this.#directory, id)
    if (loaded.kind === 'unreadable') throw new Error(loaded.reason)
    return loaded.kind === 'record' ? { document: loaded.document, userData: loaded.userData } : undefined
  }

  seal(id: string): Promise<SealResult> {
    return this.#locked(() => changeSeal(this, id, new Date().toISOString()))
  }

  unseal(id: string): Promise<SealResult> {
    return this.#locked(() => changeSeal(this, id, undefined))
  }

  encrypt(): Promise<never> {
    return Promise.reject(new Error('records in files are not encrypted'))
  }

  markEncrypted(): Promise<never> {
    return this.encrypt()
  }

  async write(instance: Instance, unsealed: unknown, userData: UserDataChange, lifts: boolean): Promise<Written> {
    const { id, revision } = instance
    const current = await loadFiles(this.#directory, id)
    const tombstone = await this.#tombstone(id)
    const held = current.kind === 'record' ? parse(current.document) : undefined
    const last = held?.ok === true ? held.instance.revision : tombstone?.revision
    const sealedAt = (lifts ? undefined : heldSeal(current, tombstone)) ?? instance.sealedAt
    const document = sealedAt === undefined ? unsealed : { ...unsealed as object, sealedAt }
    if (last !== undefined && revision < last) return { result: 'stale', revision: last }
    if (revision === last) {
      const same = current.kind === 'record' && JSON.stringify(current.document) === JSON.stringify(document)
        && (userData === 'keep' || sameBytes(current.userData, userData))
      return same ? { result: 'unchanged', sealedAt } : { result: 'stale', revision: last }
    }
    for (const other of await this.#instances()) {
      const taken = other.id === id ? undefined : overlapOf(instance, other)
      if (taken !== undefined) return { result: 'address-owned', network: taken.network, address: taken.range, owner: other.id }
    }
    const record = await this.#prepare(this.#path(id, '.json'), `${JSON.stringify(document, null, 2)}\n`)
    if (userData === 'none') await rm(this.#path(id, '.user-data'), { force: true })
    else if (userData !== 'keep') await rename(await this.#prepare(this.#path(id, '.user-data'), userData), this.#path(id, '.user-data'))
    await rename(record, this.#path(id, '.json')) // right behind its user-data: a watcher hardly sees one without the other
    for (const ending of RECORD_ENDINGS.slice(1)) await rm(this.#path(id, ending), { force: true })
    await rm(this.#path(id, '.removed'), { force: true })
    return { result: 'published', sealedAt }
  }

  remove(id: string, given?: number): Promise<RemoveResult> {
    return this.#locked(async () => {
      const loaded = await loadFiles(this.#directory, id)
      const tombstone = await this.#tombstone(id)
      const held = loaded.kind === 'record' ? parse(loaded.document) : undefined
      const last = held?.ok === true ? held.instance.revision : tombstone?.revision ?? 0
      const there = loaded.kind === 'record' || loaded.kind === 'unreadable'
      if (loaded.kind === 'absent' && given === undefined) return { result: 'absent' }
      const revision = given ?? (there ? last + 1 : Math.max(last, 1))
      if (revision < last) return { result: 'stale', revision: last }
      const sealedAt = heldSeal(loaded, tombstone)
      const text = sealedAt === undefined ? String(revision) : `${String(revision)} ${sealedAt}`
      await rename(await this.#prepare(this.#path(id, '.removed'), `${text}\n`), this.#path(id, '.removed'))
      for (const ending of [...RECORD_ENDINGS, '.user-data']) await rm(this.#path(id, ending), { force: true })
      return { result: there ? 'removed' : 'unchanged', revision }
    })
  }

  async list(): Promise<readonly Listed[]> {
    return (await this.#instances()).map((instance) => ({
      id: instance.id, revision: instance.revision, hypervisors: instance.hypervisors,
      addresses: rangesOf(instance).map(({ network, range }) => `${network} ${range}`),
    }))
  }

  watch(changed: (id: string) => void): Promise<() => Promise<void>> {
    const waiting = new Map<string, NodeJS.Timeout>()
    const watcher = watch(this.#directory, (_event, name) => {
      const id = name === null ? undefined : idOfFile(name)
      if (id === undefined || waiting.has(id)) return
      waiting.set(id, setTimeout(() => {
        waiting.delete(id)
        changed(id)
      }, 50))
    })
    return Promise.resolve(async () => {
      watcher.close()
      for (const timer of waiting.values()) clearTimeout(timer)
      await Promise.resolve()
    })
  }

  async close(): Promise<void> {
    await Promise.resolve()
  }

  /** Every valid record of the directory. A faulty one has no addresses that it could own. */
  async #instances(): Promise<Instance[]> {
    const ids = new Set((await readdir(this.#directory)).map(idOfFile).filter((id) => id !== undefined))
    const instances: Instance[] = []
    for (const id of [...ids].sort()) {
      const loaded = await loadFiles(this.#directory, id)
      const parsed = loaded.kind === 'record' ? parse(loaded.document) : undefined
      if (parsed?.ok === true) instances.push(parsed.instance)
    }
    return instances
  }

  async #tombstone(id: string): Promise<{ revision: number, sealedAt: string | undefined } | undefined> {
    const text = await readFile(this.#path(id, '.removed'), 'utf8').catch(() => '')
    const [revision = '', sealedAt] = text.trim().split(' ')
    return /^\d+$/.test(revision) ? { revision: Number(revision), sealedAt } : undefined
  }

  /** Writes a file beside its place, durably; gives its path, to be renamed. */
  async #prepare(path: string, content: string | Uint8Array): Promise<string> {
    const temporary = `${path}.${String(process.pid)}.tmp`
    await writeFile(temporary, content, { mode: 0o600, flush: true })
    return temporary
  }

  #path(id: string, ending: string): string {
    return join(this.#directory, id + ending)
  }

  async #locked<T>(task: () => Promise<T>): Promise<T> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 })
    const path = join(this.#directory, '.lock')
    const own = `${path}.${randomUUID()}.tmp`
    try {
      await writeFile(own, String(process.pid))
      for (const deadline = performance.now() + LOCK_WAIT_MS; !await taken(own, path);) {
        if (performance.now() > deadline) throw new Error(`another writer holds ${path}, or died as it took it over and left ${path}${TURN}`)
        if (await isOrphan(path)) await removeOrphan(own, path)
        else await sleep(10 + Math.random() * 20)
      }
    } finally {
      await rm(own, { force: true })
    }
    try {
      return await task()
    } finally {
      await rm(path, { force: true })
    }
  }
}

/** What link(2) says on file systems that have no hard links (FAT, some network ones). */
const NO_LINKS = ['EPERM', 'ENOTSUP', 'ENOSYS']

/** Makes a lock of a file that names its writer: there from the first moment on. False where there is one. */
async function taken(own: string, path: string): Promise<boolean> {
  try {
    await link(own, path).catch(async (error: unknown) => {
      if (!NO_LINKS.includes((error as NodeJS.ErrnoException).code ?? '')) throw error
      await copyFile(own, path, constants.COPYFILE_EXCL)
    })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    return false
  }
}

/** Removes the lock of a writer that is gone. One at a time does, and looks again: what it found may be somebody's since. */
async function removeOrphan(own: string, path: string): Promise<void> {
  const turn = path + TURN
  if (!await taken(own, turn)) {
    await sleep(10)
    return
  }
  try {
    if (await isOrphan(path)) await rm(path, { force: true })
  } finally {
    await rm(turn, { force: true })
  }
}

/** A lock whose writer is gone. */
async function isOrphan(path: string): Promise<boolean> {
  const pid = Number.parseInt(await readFile(path, 'utf8').catch(() => ''), 10)
  if (Number.isNaN(pid)) return false
  try {
    process.kill(pid, 0)
    return false
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ESRCH'
  }
}

/** A range of one instance that holds an address of another. */
function overlapOf(instance: Instance, other: Instance): { network: string, range: string } | undefined {
  const theirs = rangesOf(other)
  return rangesOf(instance).find((mine) => theirs.some(({ network, range }) => network === mine.network && overlap(range, mine.range)))
}

/** Since when the directory has an instance's user-data sealed: its record says so, or its tombstone. */
function heldSeal(loaded: Loaded, tombstone: object | undefined): string | undefined {
  return (loaded.kind === 'record' ? sealOf(loaded.document) : undefined) ?? sealOf(tombstone)
}

function sameBytes(a: Uint8Array | null, b: Uint8Array | 'none'): boolean {
  return a === null || b === 'none' ? a === null && b === 'none' : Buffer.compare(a, b) === 0
}
