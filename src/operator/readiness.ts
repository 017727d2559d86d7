/** The document of /readyz: ready once the first resync is complete, its records can be used, and every listener's address exists. */
import type { FirewallStatus } from '../firewall/firewall.ts'
import type { SyncStatus } from '../view/sync.ts'
import type { Readiness } from './api.ts'

/** What readiness depends on. `missingAddresses`: a sentence for each address of a listener that no interface has. */
export interface ReadinessParts {
  readonly sync: SyncStatus
  readonly store: string
  readonly instances: number
  readonly contestedAddresses: number
  readonly viewAgeSeconds: number
  readonly missingAddresses: readonly string[]
  readonly firewall: FirewallStatus
}

/** Builds the document. */
export function buildReadiness({ sync, store, instances, contestedAddresses, viewAgeSeconds, missingAddresses, firewall }: ReadinessParts): Readiness {
  const { ready, problem, connected, unconfirmed, faulty } = sync
  const problems = [...problem === undefined ? [] : [problem], ...missingAddresses]
  return {
    ready: ready && missingAddresses.length === 0,
    ...problems.length > 0 && { problem: problems.join('; ') },
    store, connected, instances,
    viewAgeSeconds: Math.round(viewAgeSeconds * 1000) / 1000,
    unconfirmed, faulty, contestedAddresses, firewall,
  }
}
