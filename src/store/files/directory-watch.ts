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

export interface DirectoryWatch {
  /** Begins to watch, and tries again until `close`. */
  start(): void
  /** Watches the path again if it leads to another directory now. */
  check(): Promise<void>
  close(): void
}

export function buildDirectoryWatch(directory: string, { onChange, onWatching, onLost }: WatchEvents): DirectoryWatch {
  let watcher: FSWatcher | undefined
  let watched: string | undefined
  let timer: NodeJS.Timeout | undefined
  let isClosed = false

  const stop = () => {
    watcher?.close()
    watcher = undefined
  }
  const lose = (reason: string) => {
    stop()
    onLost(reason)
  }
  const open = () => {
    try {
      watched = identityOf(statSync(directory, { bigint: true }))
      watcher = watch(directory, (_event, name) => {
        const id = name ? idOfFile(name) : undefined
        if (id !== undefined) onChange(id)
        else if (name === KUBERNETES_LINK) onWatching()
      }).on('error', (error) => lose(String(error)))
    } catch (error) {
      lose(String(error))
      return
    }
    onWatching()
  }
  const check = async () => {
    if (isClosed) return
    const before = watcher
    if (before === undefined) {
      open()
      return
    }
    const now = await stat(directory, { bigint: true }).then(identityOf, () => undefined)
    if (before !== watcher || now === watched) return
    lose(now === undefined ? `${directory} no longer exists` : `${directory} was replaced by another directory`)
    if (now !== undefined) open()
  }
  return {
    start: () => {
      timer = setInterval(() => void check(), CHECK_INTERVAL_MS)
      open()
    },
    check,
    close: () => {
      isClosed = true
      clearInterval(timer)
      stop()
    },
  }
}

/** Identifies a directory. An inode number alone is not enough: free numbers are reused at once. */
function identityOf({ dev, ino, birthtimeNs }: BigIntStats): string {
  return [dev, ino, birthtimeNs].join()
}
