/**
 * Watches a directory for changes of instances' files, also after another directory took its place. inotify reports the
 * changes of the directory that it was given, and nothing when the path leads to another one: a directory that was
 * replaced, or a symbolic link on the way to it.
 */
import { statSync, watch, type FSWatcher } from 'node:fs'
import { idOfFile } from './load.ts'

const RETRY_MS = 1000

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

/** A watch of one path. */
export class DirectoryWatch {
  readonly #directory: string
  readonly #events: WatchEvents
  #watcher: FSWatcher | undefined
  #watched: string | undefined
  #retry: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(directory: string, events: WatchEvents) {
    this.#directory = directory
    this.#events = events
  }

  /** Begins to watch, and tries again until `close`. */
  start(): void {
    this.#watched = identityOf(this.#directory)
    try {
      this.#watcher = watch(this.#directory, (_event, name) => {
        const id = name ? idOfFile(name) : undefined
        if (id === undefined) this.check()
        else if (!this.#isClosed) this.#events.changed(id)
      })
    } catch (error) {
      this.#lose(String(error))
      return
    }
    this.#watcher.on('error', (error) => {
      this.#lose(String(error))
    })
    this.#later(0, () => {
      this.#events.watching()
    })
  }

  /** Watches the path again if it leads to another directory now. */
  check(): void {
    if (this.#isClosed || this.#watcher === undefined) return
    const now = identityOf(this.#directory)
    if (now !== this.#watched)
      this.#lose(
        now === undefined
          ? `${this.#directory} no longer exists`
          : `${this.#directory} was replaced by another directory`,
      )
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#retry)
    this.#watcher?.close()
  }

  #lose(reason: string): void {
    this.#watcher?.close()
    this.#watcher = undefined
    this.#events.lost(reason)
    this.#later(RETRY_MS, () => {
      this.start()
    })
  }

  #later(delayMs: number, task: () => void): void {
    clearTimeout(this.#retry)
    this.#retry = setTimeout(() => {
      if (!this.#isClosed) task()
    }, delayMs)
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
