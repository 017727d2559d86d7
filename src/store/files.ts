/**
 * The store in a directory of files, as the daemon reads it: for a single host, a first look, a lab.
 *
 *   srv-x1y2z.json | srv-x1y2z.yaml | srv-x1y2z.yml   the record
 *   srv-x1y2z.user-data                               its user-data, byte for byte; no file: none
 *   srv-x1y2z.removed                                 the tombstone: the instance is gone (a missing record alone is not)
 *
 * A record may leave `userData` out: then it is taken from the file beside it. Where it is given it must fit.
 */
import { createHash } from 'node:crypto'
import { statSync, watch, type FSWatcher } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parse as parseYaml } from 'yaml'
import { fillUserData } from './publish.ts'
import type { Index, Loaded, Source, SourceEvents } from './source.ts'

/** A writer that puts record and user-data one after the other is given so long to finish. */
const QUIET_MS = 10
const RETRY_MS = 1000

/** The endings of a record's file, in the order in which they are looked for. */
export const RECORD_ENDINGS = ['.json', '.yaml', '.yml'] as const
const OURS = /^(srv-[0-9a-z]{1,32})\.(json|yaml|yml|user-data|removed)$/

/** The id that a file of the store belongs to, or undefined for a file that is not ours. */
export function idOfFile(name: string): string | undefined {
  return OURS.exec(name)?.[1]
}

/** Builds the source; nothing is opened before `start`. */
export function buildFileSource(directory: string): Source {
  return new FileSource(directory)
}

class FileSource implements Source {
  readonly description: string
  readonly #directory: string
  #watcher: FSWatcher | undefined
  #timers = new Map<string, NodeJS.Timeout>()
  #stopped = false
  /** Follows the path anew if it leads elsewhere: inotify follows a directory, and says nothing of the path to it. */
  #look = (): void => { /* not started */ }

  constructor(directory: string) {
    this.#directory = directory
    this.description = `file:${directory}`
  }

  start(events: SourceEvents): void {
    const retry = (reason: string) => {
      events.disconnected(reason)
      this.#watcher?.close()
      this.#after('', RETRY_MS, () => { this.start(events) })
    }
    const watched = identityOf(this.#directory)
    this.#look = () => {
      const now = identityOf(this.#directory)
      if (now !== watched) retry(now === null ? `${this.#directory} is gone` : `${this.#directory} is another directory now`)
    }
    try {
      this.#watcher = watch(this.#directory, (_event, name) => {
        const id = name === null ? undefined : idOfFile(name)
        if (id !== undefined) this.#after(id, QUIET_MS, () => { events.notice(id) })
        else this.#look()
      })
    } catch (error) {
      retry(String(error))
      return
    }
    this.#watcher.on('error', (error) => { retry(String(error)) })
    this.#after('', 0, () => { events.connected() })
  }

  async index(): Promise<Index> {
    this.#look()
    const names = await readdir(this.#directory)
    const ids = new Set(names.filter((name) => !name.endsWith('.user-data')).map(idOfFile).filter((id) => id !== undefined))
    const all = await this.load([...ids])
    return { initialised: true, digests: new Map(all.flatMap((loaded) => 'digest' in loaded ? [[loaded.id, loaded.digest] as const] : [])) }
  }

  async load(ids: readonly string[]): Promise<readonly Loaded[]> {
    const all: Loaded[] = []
    for (const id of ids) all.push(await loadFiles(this.#directory, id).catch((error: unknown) => unreadable(id, error)))
    return all
  }

  /** Nobody whom the view does not know: a resync reads every file. */
  owner(): Promise<null> {
    return Promise.resolve(null)
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

/** Which directory a path leads to, or null. Its number alone is given again as soon as it is free. */
function identityOf(path: string): string | null {
  try {
    const { dev, ino, birthtimeNs } = statSync(path, { bigint: true })
    return [dev, ino, birthtimeNs].join()
  } catch {
    return null
  }
}

/** What a directory holds under one id. Rejects when a file that is there cannot be read. */
export async function loadFiles(directory: string, id: string): Promise<Loaded> {
  const [userData, removed, ...records] = await Promise.all(
    ['.user-data', '.removed', ...RECORD_ENDINGS].map((ending) => readIfThere(join(directory, id + ending))))
  const found = RECORD_ENDINGS.filter((_ending, i) => records[i] != null)
  const record = records.find((bytes) => bytes != null)
  if (record == null) return { kind: removed == null ? 'absent' : 'removed', id }
  const digest = createHash('sha256').update(record).update(userData ?? 'none').digest('hex')
  if (found.length > 1) return { kind: 'unreadable', id, digest, reason: `more than one record: ${found.map((ending) => id + ending).join(', ')}` }
  try {
    const text = record.toString('utf8')
    const document = (found[0] === '.json' ? JSON.parse(text) : parseYaml(text, { logLevel: 'error' })) as unknown
    return { kind: 'record', id, digest, document: fillUserData(document, userData ?? null), userData: userData ?? null }
  } catch (error) {
    return { kind: 'unreadable', id, digest, reason: `${id}${found[0] ?? ''} is not ${found[0] === '.json' ? 'JSON' : 'YAML'}${lineOf(error)}` }
  }
}

/** A file that is there and cannot be read (rights, a directory) is one instance's fault, not the store's. */
function unreadable(id: string, error: unknown): Loaded {
  const { code = 'error' } = error as NodeJS.ErrnoException
  return { kind: 'unreadable', id, digest: code, reason: `a file of ${id} cannot be read: ${code}` }
}

async function readIfThere(path: string): Promise<Buffer | null> {
  try {
    return await readFile(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null
    throw error
  }
}

/** Where a reader met what it cannot read, without its words: they would quote the record. */
function lineOf(error: unknown): string {
  const line = (error as { linePos?: readonly { line: number }[] }).linePos?.[0]?.line
  return line === undefined ? '' : ` from line ${String(line)} on`
}
