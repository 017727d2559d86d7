/**
 * Watches a directory for changes of instances' files, also after another directory took its place. inotify reports the
 * changes of the directory that it was given, and nothing when the path leads to another one, so the path is checked
 * every second. The target of a link to a single file is not watched: the next comparison finds its changes.
 */
import { statSync, watch, type BigIntStats, type FSWatcher } from 'node:fs'
import { stat } from 'node:fs/promises'
import { idOfFile } from './load.ts'

const CHECK_INTERVAL_MS = 1000
/** The link through which Kubernetes leads to all files of a volume, and which it replaces to replace them. */
const KUBERNETES_LINK = '..data'

/** The callbacks of a watch. None may throw. */
export interface WatchEvents {
  /** A file of this instance changed. */
  readonly onChange: (id: string) => void
  /** Changes are reported from now on, and earlier ones may have been missed. */
  readonly onWatching: () => void
  /** Changes are not reported until the next `onWatching`. */
  readonly onLost: (reason: string) => void
}

export class DirectoryWatch {
  readonly #directory: string
  readonly #events: WatchEvents
  #watcher: FSWatcher | undefined
  #watched: string | undefined
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(directory: string, events: WatchEvents) {
    this.#directory = directory
    this.#events = events
  }

  /** Begins to watch, and tries again until `close`. */
  start(): void {
    this.#timer = setInterval(() => void this.check(), CHECK_INTERVAL_MS)
    this.#open()
  }

  /** Watches the path again if it leads to another directory now. */
  async check(): Promise<void> {
    if (this.#isClosed) return
    const watcher = this.#watcher
    if (watcher === undefined) {
      this.#open()
      return
    }
    const now = await stat(this.#directory, { bigint: true }).then(identityOf, () => undefined)
    if (watcher !== this.#watcher || now === this.#watched) return
    this.#lose(
      now === undefined
        ? `${this.#directory} no longer exists`
        : `${this.#directory} was replaced by another directory`,
    )
    if (now !== undefined) this.#open()
  }

  close(): void {
    this.#isClosed = true
    clearInterval(this.#timer)
    this.#watcher?.close()
    this.#watcher = undefined
  }

  #open(): void {
    try {
      this.#watched = identityOf(statSync(this.#directory, { bigint: true }))
      this.#watcher = watch(this.#directory, (_event, name) => {
        const id = name ? idOfFile(name) : undefined
        if (id !== undefined) this.#events.onChange(id)
        else if (name === KUBERNETES_LINK) this.#events.onWatching()
      }).on('error', (error) => this.#lose(String(error)))
    } catch (error) {
      this.#lose(String(error))
      return
    }
    this.#events.onWatching()
  }

  #lose(reason: string): void {
    this.#watcher?.close()
    this.#watcher = undefined
    this.#events.onLost(reason)
  }
}

/** Identifies a directory. An inode number alone is not enough: free numbers are reused at once. */
function identityOf({ dev, ino, birthtimeNs }: BigIntStats): string {
  return [dev, ino, birthtimeNs].join()
}
