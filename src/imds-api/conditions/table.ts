/** What can be wrong with imds-api and its region. */
import { always, findConditions, type Condition, type FoundCondition } from '../../conditions/condition.ts'
import { HYPERVISOR_DUPLICATE, STORE_BEHIND } from '../../conditions/shared.ts'
import { formatDuration } from '../../runtime/ago.ts'
import { formatSome } from '../../runtime/amounts.ts'
import type { PoolUsage } from '../changes/allocate.ts'
import type { HypervisorUsage } from '../changes/hypervisors.ts'
import type { RegionHypervisor } from '../publish/hypervisors.ts'
import type { OutboxPublisher } from '../publish/outbox-publisher.ts'
import type { ReadRegion, RegionState } from './region-state.ts'

/** A change that waits longer is late: it is usually published in milliseconds. */
const LATE_SECONDS = 60
/** An agent that asks for actions gets one at once. */
const UNFETCHED_SECONDS = 120
/** A daemon announces itself every 30 s. */
const SILENT_MS = 120_000
/** A pool or the RAM is nearly used from this share on. */
const NEARLY_FULL = 0.9
const CERTIFICATE_DAYS = 14
const DAY_MS = 86_400_000
const MAX_NAMED = 10
const ADD_RANGE = 'add a range to the region file and apply it, or delete unmapped cloud IPs and forgotten servers'

export type Publishing = Pick<OutboxPublisher, 'problem' | 'isStoreBehind'>

/** A certificate of a listener: of clients or of hypervisors. */
export interface ListenerCertificate {
  readonly listener: string
  readonly endMs: number
}

/**
 * What the conditions are found in. `databaseProblem`: why the database does not answer. `region` undefined: it was not
 * read. `nowMs`: Unix time.
 */
export interface ServiceState {
  readonly databaseProblem: string | undefined
  readonly region: RegionState | undefined
  readonly publishing: Publishing
  readonly certificates: readonly ListenerCertificate[]
  readonly nowMs: number
}

type ApiCondition = Condition<ServiceState>

/** A condition of the region, which can be found only if it was read. */
function ofRegion(
  row: Omit<ApiCondition, 'found'>,
  found: (region: RegionState, state: ServiceState) => string | undefined,
): ApiCondition {
  return { ...row, found: (state) => state.region && found(state.region, state) }
}

/** One of hypervisors: those that match are named. */
function ofHypervisors(
  row: Omit<ApiCondition, 'found'>,
  what: string,
  matches: (one: RegionHypervisor, nowMs: number) => boolean,
): ApiCondition {
  return ofRegion(row, ({ hypervisors: { hypervisors, storeProblem } }, { nowMs }) => {
    const found = storeProblem === undefined ? hypervisors.filter((one) => matches(one, nowMs)) : []
    if (found.length === 0) return undefined
    const names = found.map(({ name }) => name)
    return `${what} ${formatSome(names, MAX_NAMED)}`
  })
}

/** One of pools whose use is in these bounds. */
function ofPools(row: Omit<ApiCondition, 'found'>, what: string, least: number, below: number): ApiCondition {
  return ofRegion(row, ({ pools }) => {
    const found = pools.filter((pool) => shareOf(pool) >= least && shareOf(pool) < below)
    return found.length === 0 ? undefined : `${what}: ${found.map(({ range }) => range).join(', ')}`
  })
}

/** The RAM of those that get new servers, in MB. */
export function openRam(all: readonly HypervisorUsage[]): Pick<HypervisorUsage, 'ram' | 'free'> {
  const open = all.filter(({ drained_at }) => !drained_at)
  const sum = (name: 'ram' | 'free') => open.reduce((total, one) => total + one[name], 0)
  return { ram: sum('ram'), free: sum('free') }
}

export const API_CONDITIONS: readonly ApiCondition[] = [
  {
    code: 'database-unreachable',
    severity: 'failure',
    what: 'PostgreSQL does not answer. imds-api recovers by itself.',
    guests: 'new servers wait, and every request to imds-api gets 503.',
    remedy: 'start PostgreSQL, or correct IMDS_API_DATABASE; is its user accepted, its disk full',
    isUnready: always,
    found: ({ databaseProblem }) => databaseProblem && `the database does not answer: ${databaseProblem}`,
  },
  {
    code: 'servers-not-published',
    severity: 'failure',
    what: 'changes do not reach the store.',
    guests: 'they get the last published state; new servers stay creating.',
    remedy: 'repair what the reason names: then all that waits is published',
    found: ({ databaseProblem, publishing: { problem } }) =>
      databaseProblem !== undefined || problem === undefined || problem.isDatabaseAway
        ? undefined
        : `servers cannot be published: ${problem.reason}`,
  },
  {
    ...STORE_BEHIND,
    severity: 'warning',
    found: ({ publishing }) =>
      publishing.isStoreBehind ? 'the store has lost changes, and every server is published again' : undefined,
  },
  ofRegion(
    {
      code: 'servers-waiting',
      severity: 'failure',
      what: 'servers wait though the store can be used: another imds-api hangs and has their locks.',
      guests: 'they get the last published state; new servers stay creating.',
      remedy: 'end the other imds-api: journalctl -u imds-api -n 50 on its host',
    },
    ({ outbox: { length, age, faulty } }, { publishing }) =>
      age > LATE_SECONDS && length > faulty && publishing.problem === undefined && !publishing.isStoreBehind
        ? `${length} servers wait to be published, the oldest for ${formatDuration(age)}`
        : undefined,
  ),
  ofRegion(
    {
      code: 'server-refused',
      severity: 'failure',
      what: 'the store refuses the record of a server; imds-api tries again every minute.',
      guests: 'this one gets the last published state; a new one is not created.',
      remedy:
        'incarnation: an older database was restored: delete the new server, run imds-api reconcile, and create it again. address-owned: remove the wrong record, which imdsctl explain ADDRESS names. invalid: the record breaks a rule of record.md',
    },
    ({ outbox: { faulty }, refused }) =>
      faulty === 0
        ? undefined
        : [
            `the store refuses the records of ${faulty} servers`,
            ...refused.slice(0, 3).map(({ id, fault }) => `${id}: ${fault}`),
          ].join('; '),
  ),
  ofHypervisors(
    {
      code: 'hypervisors-silent',
      severity: 'warning',
      what: 'no daemon reports from a hypervisor that has servers: it has ended, cannot reach Redis, or has another name.',
      guests: 'if it is the name, they get no metadata; changes wait in any case.',
      remedy: 'run imdsctl doctor there, and compare IMDS_HYPERVISOR with the region file; or install imds there',
    },
    'no daemon reports from',
    (one, nowMs) => one.servers > 0 && isSilent(one, nowMs),
  ),
  ofHypervisors(
    { ...HYPERVISOR_DUPLICATE, severity: 'failure' },
    'several daemons announce themselves as',
    (one, nowMs) => one.announced?.duplicate === true && !isSilent(one, nowMs),
  ),
  ofHypervisors(
    {
      code: 'hypervisors-behind',
      severity: 'warning',
      what: 'a daemon is more than a minute behind the store.',
      guests: 'those there wait for changes.',
      remedy: 'run imdsctl doctor there',
    },
    'behind by more than a minute:',
    (one, nowMs) => (one.announced?.lagSeconds ?? 0) > LATE_SECONDS && !isSilent(one, nowMs),
  ),
  ofRegion(
    {
      code: 'actions-not-fetched',
      severity: 'failure',
      what: 'the agent of a hypervisor does not fetch actions.',
      guests: 'servers stay creating or deleting.',
      remedy:
        'the query at the end of conditions.md names hypervisors and actions: does the agent run, reach IMDS_API_COMPUTE_LISTEN, and have a valid certificate',
    },
    ({ actions: { unfetched } }) =>
      unfetched > UNFETCHED_SECONDS
        ? `an action has waited for its hypervisor for ${formatDuration(unfetched)}`
        : undefined,
  ),
  ofPools(
    {
      code: 'pool-full',
      severity: 'failure',
      what: 'an address pool has no free address.',
      guests: 'new servers (private_ipv4, mac) or cloud IPs (public_ipv4, public_ipv6) are refused.',
      remedy: ADD_RANGE,
    },
    'full',
    1,
    Infinity,
  ),
  ofPools(
    {
      code: 'pool-nearly-full',
      severity: 'warning',
      what: 'nine in ten addresses of a pool are used.',
      guests: 'nothing, until it is full.',
      remedy: ADD_RANGE,
    },
    'nearly full',
    NEARLY_FULL,
    1,
  ),
  ofRegion(
    {
      code: 'ram-nearly-used',
      severity: 'warning',
      what: 'nine tenths of the RAM of the hypervisors that get new servers are used.',
      guests: 'new servers are refused when no hypervisor has enough.',
      remedy:
        'end a drain that is over (imds-api hypervisors, imds-api undrain NAME), or add hypervisors to the region file and run imds-api apply FILE',
    },
    ({ hypervisors: { hypervisors } }) => {
      const { ram, free } = openRam(hypervisors)
      return ram > 0 && free < ram * (1 - NEARLY_FULL) ? `${free} of ${ram} MB of RAM are free` : undefined
    },
  ),
  ofRegion(
    {
      code: 'invitation-not-sent',
      severity: 'warning',
      what: 'the mail server refuses invitations, or does not answer, or there is none.',
      guests: 'who was invited gets no mail.',
      remedy:
        'repair the mail server, set IMDS_API_SMTP, or tell the invitee, who can accept without the mail; if one fails, with 550, its address does not exist',
    },
    ({ invitations: { unsent, fault } }) =>
      unsent === 0 ? undefined : `${unsent} invitations could not be sent: ${fault}`,
  ),
  {
    code: 'certificate-ends',
    severity: 'warning',
    what: `the certificate of a listener ends within ${CERTIFICATE_DAYS} days.`,
    guests: 'after that clients cannot use the API, or agents cannot fetch actions.',
    remedy:
      'renew the file of IMDS_API_TLS_CERT_FILE (clients) or IMDS_API_COMPUTE_TLS_CERT_FILE (hypervisors), and run systemctl restart imds-api',
    found: ({ certificates, nowMs }) => {
      const ending = certificates.filter(({ endMs }) => endMs - nowMs < CERTIFICATE_DAYS * DAY_MS)
      const texts = ending.map(
        ({ listener, endMs }) => `the certificate for ${listener} ends in ${formatDuration((endMs - nowMs) / 1000)}`,
      )
      return texts.length === 0 ? undefined : texts.join('; ')
    },
  },
]

export interface ServiceStateParts {
  readonly readRegion: ReadRegion
  readonly publishing: Publishing
  readonly certificates: () => readonly ListenerCertificate[]
  /** Unix time. */
  readonly nowMs: () => number
}

/** Reads the region, and what is found in it. `region` undefined: the database does not answer, which is a condition. */
export async function readConditions({ readRegion, publishing, certificates, nowMs }: ServiceStateParts): Promise<{
  readonly region: RegionState | undefined
  readonly found: readonly FoundCondition[]
}> {
  const read = await readRegion().catch((error: unknown) => error as Error)
  const [databaseProblem, region] = read instanceof Error ? [read.message, undefined] : [undefined, read]
  const own = { publishing, certificates: certificates(), nowMs: nowMs() }
  return { region, found: findConditions(API_CONDITIONS, { ...own, databaseProblem, region }) }
}

/** What is found without the region: of an empty state, the database and the publisher. */
export function findWithoutRegion(
  databaseProblem: string | undefined,
  publishing: Publishing,
): readonly FoundCondition[] {
  const none = { region: undefined, certificates: [], nowMs: 0 }
  return findConditions(API_CONDITIONS, { ...none, databaseProblem, publishing })
}

/** How full a pool is, from 0 to 1. */
export function shareOf({ used, size }: PoolUsage): number {
  return size === 0 ? 1 : used / size
}

function isSilent({ announced }: RegionHypervisor, nowMs: number): boolean {
  const seenMs = Date.parse(announced?.seenAt ?? '')
  return Number.isNaN(seenMs) || nowMs - seenMs > SILENT_MS
}
