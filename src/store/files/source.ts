/**
 * The store in a directory of files, as the daemon reads it: for a single hypervisor, a trial or a lab.
 *
 *   srv-x1y2z.json                      the record with its user-data, as imds writes both: document.ts has the form
 *   srv-x1y2z.json, .yaml or .yml       the record, as people may write it
 *   srv-x1y2z.user-data                 its user-data then, byte for byte; no file: none
 *   srv-x1y2z.removed                   the tombstone: the instance was removed (a missing record alone is no removal)
 *
 * A record may omit `userData`: then it is computed from its user-data. If the record has it, it must match that. Other
 * files are ignored.
 */
import { sizeFaults } from '../../metadata/record.ts'
import type { Loaded, Source } from '../source.ts'
import { buildDirectoryWatch, type DirectoryWatch } from './directory-watch.ts'
import { listInstances, loadFiles, MAX_CONCURRENT_READS, readFiles } from './load.ts'
import { forEachOf } from '../../limits/for-each-of.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'

/** How long to wait for more changes: a writer may write record and user-data one after the other. */
const SETTLE_MS = 10

/** Builds the source. Nothing is opened before `start`. User-data longer than `userDataMaxBytes` is not read. */
export function buildFileSource(directory: string, userDataMaxBytes: number): Source {
  let watch: DirectoryWatch | undefined
  const timers = new Map<string, NodeJS.Timeout>()
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
      const ids = await listInstances(directory)
      const digests = new Map<string, string>()
      const budget = new TurnBudget()
      await forEachOf(
        ids,
        async (id) => {
          const files = await readFiles(directory, id, userDataMaxBytes, budget).catch((error: unknown) =>
            unreadable(id, error),
          )
          if (files.kind !== 'absent' && files.kind !== 'removed' && files.digest !== undefined)
            digests.set(id, files.digest)
        },
        MAX_CONCURRENT_READS,
      )
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
