/** What somebody should look at in a region. */
import type { PageFinding } from '../../pages/findings.ts'
import { formatDuration } from '../../runtime/ago.ts'
import type { RegionHypervisor } from '../publish/hypervisors.ts'
import type { AddressPool } from '../changes/allocate.ts'
import type { RegionState } from './region-state.ts'

/** A change that waits longer is late: it is usually published in milliseconds. */
const LATE_SECONDS = 60
/** A daemon announces itself every 30 s. */
const SILENT_MS = 120_000
/** A pool is nearly full from this share on. */
const NEARLY_FULL = 0.9
const MAX_NAMED = 10

/** Finds them. `publishing`: why nothing can be published, or undefined. `nowMs`: Unix time. */
export function findingsOf(state: RegionState, publishing: string | undefined, nowMs: number): PageFinding[] {
  const { hypervisors, outbox, pools, postponed } = state
  const all = hypervisors.hypervisors
  const isUnknown = hypervisors.storeProblem !== undefined
  const silent = all.filter((one) => !isUnknown && one.servers > 0 && isSilent(one, nowMs))
  const duplicate = all.filter((one) => one.announced?.duplicate === true && !isSilent(one, nowMs))
  const late = all.filter((one) => (one.announced?.lagSeconds ?? 0) > LATE_SECONDS && !isSilent(one, nowMs))
  const [full, nearly] = [
    pools.filter((pool) => shareOf(pool) >= 1),
    pools.filter((pool) => shareOf(pool) >= NEARLY_FULL),
  ]
  return [
    publishing === undefined
      ? ok('store', 'servers are published')
      : failure('store', publishing, 'repair the store: then everything that waits is published'),
    hypervisors.storeProblem === undefined
      ? silent.length === 0
        ? ok('hypervisors', `${String(all.length)} of the region; those with servers have daemons that report`)
        : warning('hypervisors', `no daemon reports from ${named(silent)}`, 'run imdsctl doctor there')
      : warning('hypervisors', `what daemons announce cannot be read: ${hypervisors.storeProblem}`, 'repair the store'),
    duplicate.length === 0
      ? ok('names', 'no two daemons announce one hypervisor')
      : failure(
          'names',
          `several daemons announce themselves as ${named(duplicate)}`,
          'look for a cloned machine or a copied imds.env, and correct IMDS_HYPERVISOR there',
        ),
    late.length === 0
      ? ok('lag', 'no daemon is behind by a minute')
      : warning('lag', `behind by more than a minute: ${named(late)}`, 'run imdsctl doctor there'),
    outbox.age > LATE_SECONDS
      ? warning(
          'outbox',
          `${String(outbox.length)} servers wait, the oldest for ${formatDuration(outbox.age)}`,
          'see journalctl -u imds-api -n 50',
        )
      : ok('outbox', `${String(outbox.length)} servers wait to be published`),
    outbox.faulty > 0
      ? warning(
          'refused servers',
          `the store refuses the records of ${String(outbox.faulty)} servers`,
          'see below, and docs/operations/symptoms.md#imds-api',
        )
      : ok('refused servers', 'the store refuses no record'),
    full.length > 0
      ? failure('pools', `full: ${rangesOf(full)}`, 'add a range to the region file, and apply it')
      : nearly.length > 0
        ? warning('pools', `nearly full: ${rangesOf(nearly)}`, 'add a range to the region file, and apply it')
        : ok('pools', 'no pool is nearly full'),
    postponed.length > 0
      ? warning(
          'mail',
          `${String(postponed.length)} invitations could not be sent`,
          'see below; each is tried again at least every 15 minutes',
        )
      : ok('mail', `no invitation has failed; ${String(state.invitations)} wait`),
  ]
}

/** How full a pool is, from 0 to 1. */
export function shareOf({ used, size }: AddressPool): number {
  return size === 0 ? 1 : used / size
}

function isSilent({ announced }: RegionHypervisor, nowMs: number): boolean {
  const seenMs = Date.parse(announced?.seenAt ?? '')
  return Number.isNaN(seenMs) || nowMs - seenMs > SILENT_MS
}

function named(hypervisors: readonly RegionHypervisor[]): string {
  const names = hypervisors.slice(0, MAX_NAMED).map(({ name }) => name)
  const more = hypervisors.length - names.length
  return [...names, ...(more > 0 ? [`${String(more)} more`] : [])].join(', ')
}

function rangesOf(pools: readonly AddressPool[]): string {
  return pools.map(({ range }) => range).join(', ')
}

const ok = (check: string, text: string): PageFinding => ({ check, state: 'ok', text })
const warning = (check: string, text: string, remedy: string): PageFinding => ({
  check,
  state: 'warning',
  text,
  remedy,
})
const failure = (check: string, text: string, remedy: string): PageFinding => ({
  check,
  state: 'failure',
  text,
  remedy,
})
