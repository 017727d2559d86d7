/**
 * Announces this imds-api and the drained hypervisors in the store, so that imdsctl refuses changes that imds-api would
 * overwrite. It also finds hypervisors that no daemon has ever announced: usually the name in the region file differs
 * from IMDS_HYPERVISOR of the daemon, and the guests there get no metadata.
 */
import type { Log } from '../../runtime/log-codes.ts'
import { PeriodicTask } from '../../runtime/periodic-task.ts'
import type { HypervisorUsage } from '../changes/hypervisors.ts'

type CheckedHypervisor = Pick<HypervisorUsage, 'name' | 'servers' | 'drained_at'>

/**
 * Dependencies of the check. `announce`: writes the announcement, with the time since which each drained hypervisor is
 * that. `unannounced`: the names among these that no daemon has announced. `count` is called with the number of them.
 */
export interface HypervisorCheckParts {
  readonly hypervisors: () => Promise<readonly CheckedHypervisor[]>
  readonly announce: (drained: ReadonlyMap<string, string>) => Promise<void>
  readonly unannounced: (names: readonly string[]) => Promise<readonly string[]>
  readonly count: (hypervisors: number) => void
  readonly log: Log
}

const CHECK_INTERVAL_MS = 60_000
const MAX_NAMED = 20

/** Checks at its start and every minute. */
export class HypervisorCheck extends PeriodicTask {
  readonly #parts: HypervisorCheckParts
  /** The hypervisors that were logged, and whether they had servers then. */
  #logged = new Map<string, boolean>()

  constructor(parts: HypervisorCheckParts) {
    super(
      () => this.check(),
      CHECK_INTERVAL_MS,
      ({ message }) => {
        parts.log.debug({ reason: message }, 'the hypervisors were not checked; trying again in a minute')
      },
    )
    this.#parts = parts
  }

  /**
   * Logs each hypervisor once, and again when it gets its first server. Rejects if the database or the store does not
   * answer.
   */
  async check(): Promise<void> {
    const { hypervisors, announce, unannounced, count, log } = this.#parts
    const all = await hypervisors()
    const drained = all.flatMap(({ name, drained_at: at }) => (at === null ? [] : [[name, at.toISOString()] as const]))
    await announce(new Map(drained))
    const missing = new Set(await unannounced(all.map(({ name }) => name)))
    const found = all.filter(({ name }) => missing.has(name))
    count(found.length)
    const unlogged = found.filter(
      ({ name, servers }) => !this.#logged.has(name) || (servers > 0 && this.#logged.get(name) === false),
    )
    if (unlogged.length > 0) {
      const named = unlogged.slice(0, MAX_NAMED).map(({ name, servers }) => ({ name, servers }))
      log.warn(
        { code: 'hypervisors-silent', hypervisors: named, all: found.length },
        'no daemon has announced these hypervisors: the guests of their servers get no metadata. ' +
          'Compare the names in the region file with IMDS_HYPERVISOR there',
      )
    }
    this.#logged = new Map(found.map(({ name, servers }) => [name, servers > 0]))
  }
}
