/**
 * Watches a directory for changes of instances' files, also after another directory took its place. inotify reports the
 * changes of the directory that it was given, and nothing when the path leads to another one. So the directories of the
 * symbolic links on the way to it, and to files that are links, are watched too: Kubernetes, git-sync and Nix replace
 * such a link to replace all files. A directory on the way that was itself replaced is found by `check`.
 */
import { statSync, watch, type FSWatcher } from 'node:fs'
import { readdir, readlink } from 'node:fs/promises'
import { dirname, isAbsolute, join } from 'node:path'
import { forEachOf } from '../../limits/for-each-of.ts'
import { findDistrustOfDirectory } from '../../runtime/trusted-path.ts'
import { idOfFile } from './load.ts'
import { LOOK_UPS_AT_ONCE } from './stamps.ts'

const RETRY_MS = 1000
/** The most directories that files are linked to and that are followed, and the most that are watched for links. */
const MAX_TARGETS = 16
/** As many links as the kernel follows. */
const MAX_LINKS = 40

/** Instead of a target: there is no such link, but it may come back. */
const MISSING = ''

/**
 * The callbacks of a watch. None may throw. `changed`: a file of this instance changed. `watching`: changes are
 * reported from now on, earlier ones may have been missed.
 */
export interface WatchEvents {
  readonly changed: (id: string) => void
  readonly watching: () => void
  /** Changes are not reported until the next `watching`. */
  readonly lost: (reason: string) => void
}

export class DirectoryWatch {
  readonly #directory: string
  readonly #events: WatchEvents
  #watcher: FSWatcher | undefined
  #watched: string | undefined
  /** By their directory: the watch of it, and the names in it that are links or missing. */
  readonly #links = new Map<string, { readonly watcher: FSWatcher; readonly names: Set<string> }>()
  readonly #targets = new Set<string>()
  #retry: NodeJS.Timeout | undefined

  constructor(directory: string, events: WatchEvents) {
    this.#directory = directory
    this.#events = events
  }

  /** Begins to watch, and tries again until `close`. */
  start(): void {
    this.#watched = identityOf(this.#directory)
    try {
      const watcher = watch(this.#directory, (_event, name) => {
        const id = name ? idOfFile(name) : undefined
        if (id === undefined) this.check()
        else
          void this.#followFile(name!).then(() => {
            if (this.#watcher === watcher) this.#events.changed(id)
          })
      }).on('error', (error) => {
        this.#lose(String(error))
      })
      this.#watcher = watcher
      void this.#followAll().then(() => {
        if (this.#watcher === watcher) this.#events.watching()
      })
    } catch (error) {
      this.#lose(String(error))
    }
  }

  /** Watches the path again if it leads to another directory now. */
  check(): void {
    if (this.#watcher === undefined) return
    const now = identityOf(this.#directory)
    if (now !== this.#watched)
      this.#lose(
        now === undefined
          ? `${this.#directory} no longer exists`
          : `${this.#directory} was replaced by another directory`,
      )
  }

  close(): void {
    clearTimeout(this.#retry)
    this.#unwatch()
  }

  #lose(reason: string): void {
    this.#unwatch()
    this.#events.lost(reason)
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => {
      this.start()
    }, RETRY_MS)
  }

  #unwatch(): void {
    this.#watcher?.close()
    this.#watcher = undefined
    for (const { watcher } of this.#links.values()) watcher.close()
    this.#links.clear()
    this.#targets.clear()
  }

  /** Watches the links on the way to the directory and to its files. */
  async #followAll(): Promise<void> {
    await this.#follow(this.#directory)
    const names = await readdir(this.#directory).catch(() => [])
    await forEachOf(names, (name) => this.#followFile(name), LOOK_UPS_AT_ONCE)
  }

  /** Watches the links on the way to the target of a file, if that is a link. */
  async #followFile(name: string): Promise<void> {
    const target = await readlink(join(this.#directory, name)).catch(() => undefined)
    if (target !== undefined)
      await this.#follow(isAbsolute(target) ? dirname(target) : `${this.#directory}/${dirname(target)}`)
  }

  /** Watches the links on the way to a path, within the bounds: those beyond are found by the next comparison. */
  async #follow(path: string): Promise<void> {
    if (this.#targets.has(path) || this.#targets.size === MAX_TARGETS) return
    this.#targets.add(path)
    const parts = path.split('/')
    let directory = isAbsolute(path) ? '/' : process.cwd()
    for (let links = 0; parts.length > 0 && links < MAX_LINKS;) {
      const name = parts.shift()!
      const target = await readlink(join(directory, name)).catch((error: unknown) =>
        (error as NodeJS.ErrnoException).code === 'ENOENT' ? MISSING : undefined,
      )
      if (target === undefined) directory = join(directory, name)
      else {
        links += 1
        this.#watchLink(directory, name)
        if (target === MISSING) return
        parts.unshift(...target.split('/'))
        if (isAbsolute(target)) directory = '/'
      }
    }
  }

  #watchLink(directory: string, name: string): void {
    const known = this.#links.get(directory)
    known?.names.add(name)
    if (known !== undefined || this.#links.size === MAX_TARGETS || this.#watcher === undefined) return
    const names = new Set([name])
    try {
      if (process.getuid?.() === 0 && findDistrustOfDirectory(directory) !== undefined) return
      const watcher = watch(directory, (_event, changed) => {
        if (changed && names.has(changed)) this.#restart()
      })
      watcher.on('error', () => {
        watcher.close()
      })
      this.#links.set(directory, { watcher, names })
    } catch {
      /* the next comparison finds what this watch would have reported */
    }
  }

  /** A link leads elsewhere: watches anew, and has everything compared. */
  #restart(): void {
    this.#unwatch()
    this.start()
  }
}

/**
 * Identifies the directory that a path leads to; undefined if there is none. An inode number alone is not enough: free
 * numbers are reused at once.
 */
function identityOf(path: string): string | undefined {
  try {
    const { dev, ino, birthtimeNs } = statSync(path, { bigint: true })
    return [dev, ino, birthtimeNs].join()
  } catch {
    return undefined
  }
}
