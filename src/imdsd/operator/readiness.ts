/**
 * The document of /readyz: ready once the first resync is complete, its records can be used, and every listener is open
 * and can be reached.
 */
import type { FirewallStatus } from '../firewall/firewall.ts'
import { formatDuration } from '../../runtime/ago.ts'
import type { LogLevelState } from '../../runtime/log-level.ts'
import type { SyncStatus } from '../view/sync-state.ts'
import type { Readiness } from './documents.ts'

/**
 * What readiness depends on. `listenerProblems`: a sentence for each listener that nobody can reach, of guests or of
 * operators.
 */
export interface ReadinessParts {
  readonly sync: SyncStatus
  readonly store: string
  /** Another daemon announces itself with the name of this hypervisor. */
  readonly isDuplicate: boolean
  readonly instances: number
  /** The instances that the store no longer has, with the revision that is served. */
  readonly unconfirmed: () => Iterable<string>
  /** The faulty records, with what is wrong. */
  readonly faulty: () => Iterable<string>
  /** As View has them. */
  readonly contested: ReadonlyMap<string, readonly string[]>
  readonly viewAgeSeconds: number
  readonly listenerProblems: readonly string[]
  readonly firewall: FirewallStatus
  readonly log: LogLevelState
}

/** The most instances, records or addresses that are named. */
const MAX_NAMED = 10

function firstOf<T>(all: Iterable<T>): T[] {
  return Iterator.from(all).take(MAX_NAMED).toArray()
}

export function buildReadiness({
  sync,
  store,
  isDuplicate,
  instances,
  contested,
  viewAgeSeconds,
  listenerProblems,
  firewall,
  log,
  ...named
}: ReadinessParts): Readiness {
  const { ready, problem, hint, connected, unconfirmed, faulty } = sync
  const [unconfirmedInstances, faultyRecords] = [
    unconfirmed > 0 ? firstOf(named.unconfirmed()) : [],
    faulty > 0 ? firstOf(named.faulty()) : [],
  ]
  const problems = [...(problem === undefined ? [] : [problem]), ...listenerProblems]
  return {
    ready: ready && listenerProblems.length === 0,
    ...(problems.length > 0 && { problem: problems.join('; ') }),
    ...(hint !== undefined && { hint }),
    store,
    connected,
    ...(isDuplicate && { duplicate: true as const }),
    instances,
    viewAgeSeconds: Math.round(viewAgeSeconds * 1000) / 1000,
    unconfirmed,
    ...(unconfirmedInstances.length > 0 && { unconfirmedInstances }),
    faulty,
    ...(faultyRecords.length > 0 && { faultyRecords }),
    contestedAddresses: contested.size,
    ...(contested.size > 0 && {
      contested: firstOf(contested).map(([range, ids]) => `${range}: ${ids.join(', ')}`),
    }),
    firewall,
    log,
  }
}

/** The state of the rules: `applied, confirmed 3 s ago`. */
export function formatFirewall({ required, applied, ageSeconds }: FirewallStatus): string {
  if (!required) return 'off'
  return applied ? `applied, confirmed ${formatDuration(ageSeconds)} ago` : 'not applied'
}
