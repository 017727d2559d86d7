/**
 * The store in a directory of files, as the daemon reads it: for a single hypervisor, a trial or a lab.
 *
 *   srv-x1y2z.json, .yaml or .yml   the record
 *   srv-x1y2z.user-data             its user-data, byte for byte; no file: none
 *   srv-x1y2z.removed               the tombstone: the instance was removed (a missing record alone is no removal)
 *   srv-x1y2z.pending               a change that a writer has not finished (pending.ts): overrides the other files
 *
 * A record may omit `userData`: then it is computed from the file of the user-data. If the record has it, it must match
 * that file. Other files are ignored; those whose names end as if they belonged to the store are named in the log,
 * once.
 */
import type { Log } from '../../runtime/log-codes.ts'
import { sizeFaults } from '../../metadata/record.ts'
import type { Loaded, Source } from '../source.ts'
import { buildDirectoryWatch, type DirectoryWatch } from './directory-watch.ts'
import { loadFiles } from './load.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { listFiles, lookUpStamps, MAX_CONCURRENT_LOOKUPS } from './stamps.ts'

/** How long to wait for more changes: a writer may write record and user-data one after the other. */
const SETTLE_MS = 10
/** How many files that are not read the log names. */
const MAX_NAMED_FILES = 10

/** The digest of an instance, undefined if it has none, and the stamp of the files that it was computed from. */
interface Known {
  readonly stamp: string
  readonly digest: string | undefined
}

/** Builds the source. Nothing is opened before `start`. User-data longer than `userDataMaxBytes` is not read. */
export function buildFileSource(directory: string, userDataMaxBytes: number, log: Pick<Log, 'warn'>): Source {
  let watch: DirectoryWatch | undefined
  const timers = new Map<string, NodeJS.Timeout>()
  /** The result of the last index. The next index reads only files that have changed since. */
  let indexed: ReadonlyMap<string, Known> = new Map()
  /** The files that the log has named as not read. */
  let reported = ''

  /** Names files that are not read, and again only when others are there. */
  const report = (misnamed: readonly string[]) => {
    const names = misnamed.slice(0, MAX_NAMED_FILES)
    const text = `${misnamed.length} ${names.join('/')}`
    if (misnamed.length > 0 && text !== reported)
      log.warn(
        { code: 'files-misnamed', files: names, count: misnamed.length },
        'files in the directory of the store are not read: name them by the id of the instance, such as srv-x1y2z.json',
      )
    reported = text
  }
  const load = async function* (ids: readonly string[]): AsyncGenerator<Loaded> {
    for (const id of ids)
      yield await loadFiles(directory, id, userDataMaxBytes).then(bounded, (error: unknown) => unreadable(id, error))
  }

  return {
    description: `file:${directory}`,
    start: (events) => {
      watch = buildDirectoryWatch(directory, {
        onChange: (id) => {
          clearTimeout(timers.get(id))
          timers.set(
            id,
            setTimeout(() => {
              timers.delete(id)
              events.notice(id)
            }, SETTLE_MS),
          )
        },
        onWatching: events.connected,
        onLost: events.disconnected,
      })
      watch.start()
    },
    index: async () => {
      await watch?.check()
      const known = new Map<string, Known>()
      const changed: [id: string, stamp: string | undefined][] = []
      const misnamed: string[] = []
      const files = await listFiles(directory, (name) => misnamed.push(name))
      report(misnamed)
      await forEachOf(
        files,
        async ([id, endings]) => {
          if (endings.every((ending) => ending === '.user-data')) return
          const { text, isRecent } = await lookUpStamps(directory, id, endings, Date.now())
          const before = indexed.get(id)
          if (before?.stamp === text) known.set(id, before)
          else changed.push([id, isRecent ? undefined : text])
        },
        MAX_CONCURRENT_LOOKUPS,
      )
      const digests = new Map<string, string>()
      const stamps = new Map(changed)
      for await (const loaded of load([...stamps.keys()])) {
        const digest = loaded.kind === 'absent' || loaded.kind === 'removed' ? undefined : loaded.digest
        const stamp = stamps.get(loaded.id)
        if (stamp !== undefined) known.set(loaded.id, { stamp, digest })
        if (digest !== undefined) digests.set(loaded.id, digest)
      }
      indexed = known
      for (const [id, { digest }] of known) if (digest !== undefined) digests.set(id, digest)
      return { initialised: true, digests }
    },
    load,
    /** Always finds no owner: a resync reads every file, so the view has all owners. */
    owner: () => Promise.resolve(undefined),
    /** The daemon may only read the directory. */
    reports: undefined,
    stop: () => {
      for (const timer of timers.values()) clearTimeout(timer)
      watch?.close()
      return Promise.resolve()
    },
  }
}

/**
 * Makes a record that is too large unreadable, for the daemon only: a publisher that replaces it may keep its
 * user-data.
 */
function bounded(loaded: Loaded): Loaded {
  const [fault] = loaded.kind === 'record' ? sizeFaults(loaded.document) : []
  return loaded.kind === 'record' && fault !== undefined
    ? { kind: 'unreadable', id: loaded.id, digest: loaded.digest, reason: `the record ${fault.message}` }
    : loaded
}

/** The fault of one instance: one of its files exists and cannot be read (missing rights, a directory). */
function unreadable(id: string, error: unknown): Loaded {
  const { code = 'error' } = error as NodeJS.ErrnoException
  return { kind: 'unreadable', id, digest: code, reason: `a file of ${id} cannot be read: ${code}` }
}
