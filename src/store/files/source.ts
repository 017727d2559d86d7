/**
 * The store in a directory of files, as the daemon reads it: for a single hypervisor, a trial or a lab.
 *
 *   srv-x1y2z.json | srv-x1y2z.yaml | srv-x1y2z.yml   the record
 *   srv-x1y2z.user-data                               its user-data, byte for byte; no file: none
 *   srv-x1y2z.removed                                 the tombstone: the instance was removed (a missing record alone is no removal)
 *   srv-x1y2z.pending                                 a change that a writer has not finished (pending.ts): overrides the other files
 *
 * A record may omit `userData`: then it is computed from the file of the user-data. If the record has it, it must match that file. Other files are
 * ignored.
 */
import { createHash } from 'node:crypto'
import { statSync, watch, type FSWatcher } from 'node:fs'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { isId } from '../../metadata/identifiers.ts'
import { RECORD_MAX_BYTES } from '../../metadata/instance.ts'
import { sizeFaults } from '../../metadata/record.ts'
import { formatTooLong } from '../../metadata/user-data.ts'
import { formatOf, parseDocument, RECORD_ENDINGS } from '../document.ts'
import { parsePending } from './pending.ts'
import type { Index, Loaded, Source, SourceEvents } from '../source.ts'
import { fillUserData } from '../user-data.ts'
import { sha256InSlices, TurnBudget } from '../../runtime/turn-budget.ts'

/** How long to wait for more changes: a writer may write record and user-data one after the other. */
const QUIET_MS = 10
const RETRY_MS = 1000
/** How often files that change while they are read are read again. The last attempt is used: a notice follows the last change. */
const ATTEMPTS = 10

/** The limit of a file. It may be longer than its record as JSON, since it may be indented or have comments. */
const FILE_MAX_BYTES = 4 * RECORD_MAX_BYTES
/** The limit for YAML is lower, because it is parsed in one turn of the event loop and much slower than JSON. */
const YAML_MAX_BYTES = 64 * 1024

const ENDINGS = [...RECORD_ENDINGS, '.user-data', '.removed', '.pending']

/** The id that a file of the store belongs to; undefined for a file that does not belong to the store. */
export function idOfFile(name: string): string | undefined {
  const ending = ENDINGS.find((one) => name.endsWith(one))
  const id = ending === undefined ? '' : name.slice(0, -ending.length)
  return isId(id) ? id : undefined
}

/** Builds the source; nothing is opened before `start`. User-data longer than `userDataMaxBytes` is not read. */
export function buildFileSource(directory: string, userDataMaxBytes: number): Source {
  return new FileSource(directory, userDataMaxBytes)
}

class FileSource implements Source {
  readonly description: string
  readonly #directory: string
  readonly #userDataMaxBytes: number
  #watcher: FSWatcher | undefined
  #timers = new Map<string, NodeJS.Timeout>()
  #stopped = false
  /** Watches the path again if it now leads to another directory. inotify does not report that. */
  #checkPath = (): void => { /* not started */ }

  constructor(directory: string, userDataMaxBytes: number) {
    this.#directory = directory
    this.#userDataMaxBytes = userDataMaxBytes
    this.description = `file:${directory}`
  }

  start(events: SourceEvents): void {
    const retry = (reason: string) => {
      events.disconnected(reason)
      this.#watcher?.close()
      this.#after('', RETRY_MS, () => { this.start(events) })
    }
    const watched = identityOf(this.#directory)
    this.#checkPath = () => {
      const now = identityOf(this.#directory)
      if (now !== watched) retry(now === undefined ? `${this.#directory} no longer exists` : `${this.#directory} was replaced by another directory`)
    }
    try {
      this.#watcher = watch(this.#directory, (_event, name) => {
        const id = name ? idOfFile(name) : undefined
        if (id !== undefined) this.#after(id, QUIET_MS, () => { events.notice(id) })
        else this.#checkPath()
      })
    } catch (error) {
      retry(String(error))
      return
    }
    this.#watcher.on('error', (error) => { retry(String(error)) })
    this.#after('', 0, () => { events.connected() })
  }

  async index(): Promise<Index> {
    this.#checkPath()
    const names = await readdir(this.#directory)
    const ids = new Set(names.filter((name) => !name.endsWith('.user-data')).map(idOfFile).filter((id) => id !== undefined))
    const digests = new Map<string, string>()
    for await (const loaded of this.load([...ids])) {
      if (loaded.kind !== 'absent' && loaded.kind !== 'removed' && loaded.digest !== undefined) digests.set(loaded.id, loaded.digest)
    }
    return { initialised: true, digests }
  }

  async* load(ids: readonly string[]): AsyncIterable<Loaded> {
    for (const id of ids) yield await loadFiles(this.#directory, id, this.#userDataMaxBytes).then(bounded, (error: unknown) => unreadable(id, error))
  }

  /** Always finds no owner: a resync reads every file, so the view has all owners. */
  owner(): Promise<undefined> {
    return Promise.resolve(undefined)
  }

  stop(): Promise<void> {
    this.#stopped = true
    for (const timer of this.#timers.values()) clearTimeout(timer)
    this.#watcher?.close()
    return Promise.resolve()
  }

  #after(key: string, delayMs: number, task: () => void): void {
    clearTimeout(this.#timers.get(key))
    this.#timers.set(key, setTimeout(() => {
      this.#timers.delete(key)
      if (!this.#stopped) task()
    }, delayMs))
  }
}

/** Identifies the directory that a path leads to; undefined if there is none. An inode number alone is not enough: free numbers are reused at once. */
function identityOf(path: string): string | undefined {
  try {
    const { dev, ino, birthtimeNs } = statSync(path, { bigint: true })
    return [dev, ino, birthtimeNs].join()
  } catch {
    return undefined
  }
}

/**
 * Loads one instance from a directory: one consistent state, even while a writer changes its files. Rejects when a file exists and cannot be read. Does
 * not read user-data longer than `userDataMaxBytes`, except in a pending change.
 */
export async function loadFiles(directory: string, id: string, userDataMaxBytes = Infinity): Promise<Loaded> {
  let before = await stampsOf(directory, id)
  for (let attempt = 1; ; attempt++) {
    const loaded = await load(directory, id, userDataMaxBytes, before)
    const after = await stampsOf(directory, id)
    if (attempt === ATTEMPTS || after.join() === before.join()) return loaded
    before = after
  }
}

/**
 * Returns a stamp for the pending file and for each possible record file: a text that changes with the file, undefined if the file does not exist. Every
 * change by a writer changes a stamp: it begins with a pending file, and ends with another record file or none.
 */
function stampsOf(directory: string, id: string): Promise<(string | undefined)[]> {
  return Promise.all(['.pending', ...RECORD_ENDINGS].map(async (ending) => {
    const stats = await ifThere(stat(join(directory, id + ending), { bigint: true }))
    return stats && `${String(stats.ino)}:${String(stats.mtimeNs)}`
  }))
}

/** Formats the text of a record's file. */
export function formatRecord(document: unknown): string {
  return `${JSON.stringify(document, undefined, 2)}\n`
}

/** Reads the files that have a stamp. */
async function load(directory: string, id: string, userDataMaxBytes: number, [pending, ...records]: readonly (string | undefined)[]): Promise<Loaded> {
  const read = (ending: string) => ifThere(readFile(join(directory, id + ending)))
  const change = pending === undefined ? undefined : await read('.pending')
  if (change !== undefined) return loadPending(id, change, () => read('.user-data'))
  const endings = RECORD_ENDINGS.filter((_ending, i) => records[i] !== undefined)
  const [ending] = endings
  const stats = ending === undefined ? undefined : await ifThere(stat(join(directory, `${id}.user-data`)))
  const isTooLong = stats !== undefined && stats.size > userDataMaxBytes
  const [record, userData] = ending === undefined ? [] : await Promise.all([read(ending), isTooLong ? undefined : read('.user-data')])
  if (ending === undefined || record === undefined) return { kind: await read('.removed') === undefined ? 'absent' : 'removed', id }
  if (isTooLong) return { kind: 'user-data', id, digest: digestOf(record, `${String(stats.size)} ${String(stats.mtimeMs)}`), reason: `the user-data is ${formatTooLong(stats.size, userDataMaxBytes)}` }
  const userDataSha256 = await sha256Of(userData)
  const digest = digestOf(record, userDataSha256)
  if (endings.length > 1) return { kind: 'unreadable', id, digest, reason: `more than one record: ${endings.map((one) => id + one).join(', ')}` }
  const most = ending === '.json' ? FILE_MAX_BYTES : YAML_MAX_BYTES
  if (record.length > most) {
    const instead = ending === '.json' ? '' : ' for YAML: write it as JSON'
    return { kind: 'unreadable', id, digest, reason: `${id}${ending} is ${String(record.length)} bytes, more than the limit of ${String(most)}${instead}` }
  }
  const format = formatOf(ending)
  const parsed = await parseDocument(record.toString('utf8'), format)
  if (parsed.ok) return { kind: 'record', id, digest, document: fillUserData(parsed.value, userData, userDataSha256), userData, userDataSha256 }
  const [{ line }] = parsed.faults // not its message, which would quote the record
  return { kind: 'unreadable', id, digest, reason: `${id}${ending} is not ${format}${line === undefined ? '' : ` from line ${String(line)} on`}` }
}

async function loadPending(id: string, bytes: Buffer, readUserData: () => Promise<Buffer | undefined>): Promise<Loaded> {
  const change = parsePending(bytes)
  if (change === undefined) return { kind: 'unreadable', id, digest: digestOf(bytes, undefined), reason: `${id}.pending is not a valid pending change` }
  if (change.kind === 'remove') return { kind: 'removed', id }
  const userData = change.userData === 'keep' ? await readUserData() : change.userData === 'none' ? undefined : change.userData
  const userDataSha256 = await sha256Of(userData)
  const digest = digestOf(formatRecord(change.document), userDataSha256)
  return { kind: 'record', id, digest, document: fillUserData(change.document, userData, userDataSha256), userData, userDataSha256 }
}

async function sha256Of(userData: Uint8Array | undefined): Promise<string | undefined> {
  return userData && sha256InSlices(userData, new TurnBudget())
}

/** `userData`: a text that differs with the contents of the user-data's file; undefined: there is no file. */
function digestOf(record: string | Uint8Array, userData: string | undefined): string {
  return createHash('sha256').update(record).update(userData ?? 'none').digest('hex')
}

/** Makes a record that is too large unreadable, for the daemon only: a publisher that replaces it may keep its user-data. */
function bounded(loaded: Loaded): Loaded {
  const [fault] = loaded.kind === 'record' ? sizeFaults(loaded.document) : []
  return loaded.kind === 'record' && fault !== undefined ? { kind: 'unreadable', id: loaded.id, digest: loaded.digest, reason: `the record ${fault.message}` } : loaded
}

/** The fault of one instance: one of its files exists and cannot be read (missing rights, a directory). */
function unreadable(id: string, error: unknown): Loaded {
  const { code = 'error' } = error as NodeJS.ErrnoException
  return { kind: 'unreadable', id, digest: code, reason: `a file of ${id} cannot be read: ${code}` }
}

/** Resolves as the operation on a file does, or with undefined if there is no such file. */
async function ifThere<T>(operation: Promise<T>): Promise<T | undefined> {
  try {
    return await operation
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}
