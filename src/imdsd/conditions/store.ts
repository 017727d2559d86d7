/** Conditions of the store, and of this hypervisor in it. */
import { always } from '../../conditions/condition.ts'
import { formatDuration } from '../../runtime/ago.ts'
import { formatStoreProblem } from '../view/store-problem.ts'
import type { DaemonState, DaemonConditions } from './state.ts'

/** So many intervals without a full comparison are no accident. */
const MISSED_RESYNCS = 3
const GRACE_MS = 10_000
const DAY_SECONDS = 86_400
const CERTIFICATE_DAYS = 14
const RIGHTS =
  'with NOPERM, give its Redis user the rights that imdsctl acl HYPERVISOR prints; otherwise repair the store'

const isNotRead = ({ sync }: DaemonState) => sync.resyncedAtMs === undefined
const because = (reason: string | undefined) => (reason === undefined ? '' : `: ${reason}`)
const served = ({ instances }: DaemonState) =>
  instances === 0 ? 'no instance is served' : `${instances} instances are served from memory`

/** How long it has been connected, or not. */
function sinceChange({ sync, nowMs }: DaemonState): string {
  return formatDuration((nowMs - sync.changedAtMs) / 1000)
}

function isOld({ sync, nowMs, viewAgeSeconds, resyncMs }: DaemonState): boolean {
  return Math.min(viewAgeSeconds * 1000, nowMs - sync.changedAtMs) > resyncMs * MISSED_RESYNCS + GRACE_MS
}

export const STORE: DaemonConditions = [
  {
    code: 'store-lost',
    severity: 'failure',
    what: 'the daemon is not connected to the store. It tries again all the time.',
    guests: 'those in the view or the journal are served; changes wait, and new instances get 503.',
    remedy:
      'on all hypervisors: look at Redis (is it up, did it fail over, did its password or certificate change?); only here: imdsctl doctor has the reason',
    isUnready: isNotRead,
    found: (state) => {
      const { store, sync } = state
      if (sync.connected) return undefined
      const what = sync.wasConnected ? 'was lost' : 'was not reached since the start'
      return `${store} ${what} ${sinceChange(state)} ago${because(sync.disconnectReason ?? 'connecting')}; ${served(state)}`
    },
  },
  {
    code: 'store-empty',
    severity: 'failure',
    what: 'the store has nothing of this region: it was emptied, is the wrong one, or is new.',
    guests: 'those in the view are served; others get 503.',
    remedy:
      'if it is new: imdsctl init; if it is the wrong one: correct IMDS_STORE and IMDS_REGION; if it was emptied: publish again (imdsctl import; imds-api does it by itself)',
    isUnready: isNotRead,
    found: (state) =>
      state.sync.connected && state.sync.isStoreEmpty
        ? `${state.store} has nothing of this region; ${served(state)}`
        : undefined,
  },
  {
    code: 'store-read-failed',
    severity: 'failure',
    what: 'the store is connected, and the view was not compared with it for three intervals (IMDS_RESYNC_SECONDS), or not since the start.',
    guests: 'they get the last known state; at a start, others get 503.',
    remedy:
      'repair what the reason names: rights (NOPERM: imdsctl acl HYPERVISOR), a key of a wrong type, or a Redis that loads, is full or slow (redis-cli --latency)',
    isUnready: isNotRead,
    found: (state) => {
      const { store, sync, viewAgeSeconds } = state
      const { connected, isStoreEmpty, storeProblem, readFailure } = sync
      if (!connected || isStoreEmpty || storeProblem !== undefined) return undefined
      if (isNotRead(state)) return `${store} was not read completely since the start${because(readFailure)}`
      if (!isOld(state)) return undefined
      return `${store} was last read completely ${formatDuration(viewAgeSeconds)} ago${because(readFailure)}`
    },
  },
  {
    code: 'store-unusable',
    severity: 'failure',
    what: 'more than nine in ten of the records of this hypervisor cannot be used.',
    guests: 'those in the view get the last good state; others get 503.',
    remedy:
      'stop any rollout, and correct the cause that is named: the record keys (IMDS_RECORD_KEYS_FILE, then restart imds), or a release of the control plane or of imds: go back',
    isUnready: always,
    found: ({ sync: { storeProblem } }) => storeProblem && formatStoreProblem(storeProblem),
  },
  {
    code: 'store-behind',
    severity: 'failure',
    what: 'Redis has lost changes: an old dump was loaded, or a replica that lagged was promoted.',
    guests:
      'they keep what they have, since nothing earlier is applied. Changes that read before they write are refused.',
    remedy:
      'imdsctl republish (imds-api does it by itself; imds-api reconcile --dry-run says when it is done); find out why Redis went back',
    found: ({ sync }) =>
      sync.isStoreBehind
        ? 'Redis has lost changes: it has an earlier state than was served, which is not applied'
        : undefined,
  },
  {
    code: 'hypervisor-duplicate',
    severity: 'failure',
    what: 'another daemon has the name of this hypervisor: a machine was cloned, or an environment file was copied.',
    guests: 'each daemon serves the records of both; guests of the hypervisor whose name is missing get 503.',
    remedy:
      'on the wrong one correct IMDS_HYPERVISOR in /etc/imds/imds.env, delete /var/lib/imds if it was cloned, and run systemctl restart imds',
    found: ({ isDuplicate, hypervisor }) =>
      isDuplicate ? `another daemon announces itself as ${String(hypervisor)}` : undefined,
  },
  {
    code: 'hypervisor-unnamed',
    severity: 'warning',
    what: 'no record names this hypervisor.',
    guests: 'they get 503, if its name is wrong.',
    remedy: 'nothing if it is new; else compare IMDS_HYPERVISOR with the names in imdsctl list, and restart imds',
    found: (state) => {
      const { hypervisor, sync, instances, unserved } = state
      const isNamed = instances + unserved.count > 0
      if (hypervisor === undefined || isNamed || isNotRead(state) || !sync.connected || sync.isStoreEmpty)
        return undefined
      return `no record names ${hypervisor}, and no instance is served`
    },
  },
  {
    code: 'hypervisor-not-announced',
    severity: 'warning',
    what: 'Redis does not let the daemon announce itself, so publishers warn of an unknown hypervisor.',
    guests: 'nothing.',
    remedy: RIGHTS,
    found: ({ announcementFailure }) =>
      announcementFailure && `the daemon cannot announce itself in the store: ${announcementFailure}`,
  },
  {
    code: 'reports-not-written',
    severity: 'warning',
    what: 'what guests report cannot be written to the store. It is kept, and written later.',
    guests: 'nothing.',
    remedy: RIGHTS,
    found: ({ sync, reportFailure }) =>
      sync.connected && reportFailure !== undefined
        ? `reports of guests cannot be written to the store: ${reportFailure}`
        : undefined,
  },
  {
    code: 'store-certificate',
    severity: 'warning',
    what: `the certificate of Redis ends within ${CERTIFICATE_DAYS} days.`,
    guests: 'after that nobody can connect again: they are served from memory, and changes wait.',
    remedy:
      'renew it, and let Redis load it: redis-cli CONFIG SET tls-cert-file FILE tls-key-file FILE, or a restart. The daemon sees it when it connects next',
    found: ({ storeCertificateEndSeconds: end, wallMs }) => {
      const left = end - wallMs / 1000
      return end === 0 || left > CERTIFICATE_DAYS * DAY_SECONDS
        ? undefined
        : `the certificate of Redis ends in ${formatDuration(left)}`
    },
  },
]
