/** What somebody should look at in a region. */
import { formatDuration } from '../../runtime/ago.ts'
import { failure, ok, warning, type CheckResult, type Finding } from '../../runtime/check.ts'
import type { RegionHypervisor } from '../publish/hypervisors.ts'
import type { OutboxPublisher } from '../publish/outbox-publisher.ts'
import type { PoolUsage } from '../changes/allocate.ts'
import type { RegionState } from './region-state.ts'

/** A change that waits longer is late: it is usually published in milliseconds. */
const LATE_SECONDS = 60
/** A daemon announces itself every 30 s. */
const SILENT_MS = 120_000
/** A pool is nearly full from this share on. */
const NEARLY_FULL = 0.9
const MAX_NAMED = 10
const ADD_RANGE = 'add a range to the region file, and apply it'

export type Publishing = Pick<OutboxPublisher, 'problem' | 'isStoreBehind'>

/** Finds them. `nowMs`: Unix time. */
export function findingsOf(
  state: RegionState,
  { problem: publishing, isStoreBehind }: Publishing,
  nowMs: number,
): CheckResult[] {
  const { hypervisors, outbox, pools, postponed } = state
  const all = hypervisors.hypervisors
  const repair = publishing?.code === 'servers-not-published' ? 'repair the store' : 'repair the database'
  const isUnknown = hypervisors.storeProblem !== undefined
  const silent = all.filter((one) => !isUnknown && one.servers > 0 && isSilent(one, nowMs))
  const duplicate = all.filter((one) => one.announced?.duplicate === true && !isSilent(one, nowMs))
  const late = all.filter((one) => (one.announced?.lagSeconds ?? 0) > LATE_SECONDS && !isSilent(one, nowMs))
  const [full, nearly] = [
    pools.filter((pool) => shareOf(pool) >= 1),
    pools.filter((pool) => shareOf(pool) >= NEARLY_FULL),
  ]
  const found: Readonly<Record<string, Finding>> = {
    store:
      publishing === undefined
        ? isStoreBehind
          ? warning(
              'it has lost changes, and every server is published again',
              'find out why it went back (imds-api explain store-behind); imds-api reconcile --dry-run says when all is published',
            )
          : ok('servers are published')
        : failure(
            publishing.reason,
            `${repair} (imds-api explain ${publishing.code}): then all that waits is published`,
          ),
    hypervisors:
      hypervisors.storeProblem === undefined
        ? silent.length === 0
          ? ok(`${all.length} of the region; those with servers have daemons that report`)
          : warning(`no daemon reports from ${named(silent)}`, 'run imdsctl doctor there')
        : warning(
            `what daemons announce cannot be read: ${hypervisors.storeProblem}`,
            'repair the store, which must be Redis (imds-api explain servers-not-published)',
          ),
    names:
      duplicate.length === 0
        ? ok('no two daemons announce one hypervisor')
        : failure(
            `several daemons announce themselves as ${named(duplicate)}`,
            'look for a cloned machine or a copied imds.env, and correct IMDS_HYPERVISOR there',
          ),
    lag:
      late.length === 0
        ? ok('no daemon is behind by a minute')
        : warning(`behind by more than a minute: ${named(late)}`, 'run imdsctl doctor there'),
    outbox:
      outbox.age > LATE_SECONDS
        ? warning(
            `${outbox.length} servers wait, the oldest for ${formatDuration(outbox.age)}`,
            publishing === undefined
              ? 'end another imds-api of this database that hangs: journalctl -u imds-api -n 50 there'
              : repair,
          )
        : ok(`${outbox.length} servers wait to be published`),
    'refused servers':
      outbox.faulty > 0
        ? warning(
            [
              `the store refuses the records of ${outbox.faulty} servers`,
              ...state.refused.slice(0, 3).map(({ id, fault }) => `${id}: ${fault}`),
            ].join('; '),
            'imds-api explain server-refused has that of each fault; the status page names all',
          )
        : ok('the store refuses no record'),
    pools:
      full.length > 0
        ? failure(`full: ${rangesOf(full)}`, ADD_RANGE)
        : nearly.length > 0
          ? warning(`nearly full: ${rangesOf(nearly)}`, ADD_RANGE)
          : ok('no pool is nearly full'),
    mail:
      postponed.length > 0
        ? warning(
            `${postponed.length} invitations could not be sent: ${postponed[0]!.reason}`,
            'imds-api explain invitation-not-sent; each is tried again at least every 15 minutes',
          )
        : ok(`no invitation has failed; ${state.invitations} wait`),
  }
  return Object.entries(found).map(([check, finding]) => ({ check, ...finding }))
}

/** How full a pool is, from 0 to 1. */
export function shareOf({ used, size }: PoolUsage): number {
  return size === 0 ? 1 : used / size
}

function isSilent({ announced }: RegionHypervisor, nowMs: number): boolean {
  const seenMs = Date.parse(announced?.seenAt ?? '')
  return Number.isNaN(seenMs) || nowMs - seenMs > SILENT_MS
}

function named(hypervisors: readonly RegionHypervisor[]): string {
  const names = hypervisors.slice(0, MAX_NAMED).map(({ name }) => name)
  const more = hypervisors.length - names.length
  return [...names, ...(more > 0 ? [`${more} more`] : [])].join(', ')
}

function rangesOf(pools: readonly PoolUsage[]): string {
  return pools.map(({ range }) => range).join(', ')
}
