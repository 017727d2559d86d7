/** The document of /readyz: the conditions of the daemon, and the figures beside them. */
import type { FoundCondition } from '../../conditions/condition.ts'
import type { Firewall, FirewallStatus } from '../firewall/firewall.ts'
import { formatDuration } from '../../runtime/ago.ts'
import { VERSION } from '../../runtime/installation.ts'
import type { Source } from '../../store/source.ts'
import type { Sync } from '../view/sync.ts'
import type { View } from '../view/view.ts'
import type { Readiness } from './documents.ts'

/** What readiness depends on. */
export interface ReadinessParts {
  readonly conditions: () => readonly FoundCondition[]
  readonly sync: Pick<Sync, 'status'>
  readonly source: Pick<Source, 'description'>
  readonly view: Pick<View, 'size' | 'contested' | 'unconfirmed'>
  readonly firewall: Pick<Firewall, 'status'>
  readonly viewAgeSeconds: () => number
}

export function buildReadiness({ sync, source, view, firewall, ...parts }: ReadinessParts): Readiness {
  const { connected, absent, faulty } = sync.status()
  const conditions = parts.conditions()
  return {
    ready: conditions.every(({ unready }) => unready !== true),
    conditions: [...conditions],
    version: VERSION,
    store: source.description,
    connected,
    instances: view.size,
    viewAgeSeconds: Math.round(parts.viewAgeSeconds() * 1000) / 1000,
    absent,
    faulty,
    contestedAddresses: view.contested().size,
    unconfirmedAddresses: view.unconfirmed().size,
    firewall: firewall.status(),
  }
}

/** The facts that the status of a daemon shows, with their names. */
export function readinessFacts(state: Readiness): (readonly [string, string])[] {
  const { store, connected, viewAgeSeconds, instances, faulty, absent, contestedAddresses, firewall } = state
  return [
    ['store', `${store}, ${connected ? 'connected' : 'not connected'}, compared ${formatDuration(viewAgeSeconds)} ago`],
    ['instances', `${instances}; faulty ${faulty}, absent ${absent}, contested addresses ${contestedAddresses}`],
    ['firewall', formatFirewall(firewall)],
  ]
}

/** `applied, confirmed 3 s ago`. */
function formatFirewall({ required, applied, ageSeconds }: FirewallStatus): string {
  if (!required) return 'off'
  return applied ? `applied, confirmed ${formatDuration(ageSeconds)} ago` : 'not applied'
}
