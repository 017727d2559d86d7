/**
 * The document of /readyz: ready once the first resync is complete, its records can be used, and every listener is open
 * and can be reached. A store that has lost changes is a problem, but guests are served: it stays ready.
 */
import type { Firewall, FirewallStatus } from '../firewall/firewall.ts'
import { formatDuration } from '../../runtime/ago.ts'
import type { Source } from '../../store/source.ts'
import type { Sync } from '../view/sync.ts'
import type { View } from '../view/view.ts'
import { STORE_BEHIND } from '../view/record-health.ts'
import { formatFault } from './diagnosis.ts'
import type { Readiness } from './documents.ts'

/** What readiness depends on. */
export interface ReadinessParts {
  readonly sync: Pick<Sync, 'status' | 'faults' | 'isUnconfirmed'>
  readonly source: Pick<Source, 'description'>
  readonly view: Pick<View, 'size' | 'instances' | 'contested' | 'unconfirmed'>
  readonly firewall: Pick<Firewall, 'status' | 'unconfirmed'>
  readonly viewAgeSeconds: () => number
  /** Another daemon announces itself with the name of this hypervisor. */
  readonly isDuplicate: () => boolean
  /** A sentence for each listener that nobody can reach, of guests or of operators. */
  readonly listenerProblems: () => readonly string[]
}

/** The most instances, records or addresses that are named. */
const MAX_NAMED = 10

function firstOf<T>(all: Iterable<T>): T[] {
  return Iterator.from(all).take(MAX_NAMED).toArray()
}

export function buildReadiness({ sync, source, view, firewall, ...parts }: ReadinessParts): Readiness {
  const { ready, problem, hint, connected, unconfirmed, faulty, isStoreBehind } = sync.status()
  const listenerProblems = parts.listenerProblems()
  const problems = [problem, isStoreBehind ? STORE_BEHIND : undefined, ...listenerProblems].filter(
    (one) => one !== undefined,
  )
  const lost = unconfirmed === 0 ? [] : view.instances().filter(({ instance: { id } }) => sync.isUnconfirmed(id))
  const unconfirmedInstances = firstOf(lost).map(({ instance: { id, revision } }) => `${id}, revision ${revision}`)
  const faultyRecords = firstOf(sync.faults()).map(([id, fault]) => formatFault(id, fault))
  const contested = firstOf(view.contested()).map(([range, ids]) => `${range}: ${ids.join(', ')}`)
  const waiting = firstOf(firewall.unconfirmed(() => true))
  return {
    ready: ready && listenerProblems.length === 0,
    ...(problems.length > 0 && { problem: problems.join('; ') }),
    ...(hint !== undefined && { hint }),
    store: source.description,
    connected,
    ...(parts.isDuplicate() && { duplicate: true as const }),
    instances: view.size,
    viewAgeSeconds: Math.round(parts.viewAgeSeconds() * 1000) / 1000,
    unconfirmed,
    ...(unconfirmedInstances.length > 0 && { unconfirmedInstances }),
    ...(isStoreBehind && { storeBehind: true as const }),
    faulty,
    ...(faultyRecords.length > 0 && { faultyRecords }),
    contestedAddresses: view.contested().size,
    ...(contested.length > 0 && { contested }),
    unconfirmedAddresses: view.unconfirmed().size,
    ...(waiting.length > 0 && { waiting }),
    firewall: firewall.status(),
  }
}

/** The state of the rules: `applied, confirmed 3 s ago`. */
export function formatFirewall({ required, applied, ageSeconds }: FirewallStatus): string {
  if (!required) return 'off'
  return applied ? `applied, confirmed ${formatDuration(ageSeconds)} ago` : 'not applied'
}
