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
    guests:
      'those in the view, or in the journal at a start, are served from memory; changes wait, and new instances get 503.',
    remedy:
      'all hypervisors: look at Redis (is it up, did it fail over, did its password or certificate change?); only this one: imdsctl doctor tries the store and has the reason',
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
    what: 'the store is connected and has nothing of this region: it was emptied, is the wrong one, or is new.',
    guests: 'those in the view keep their metadata; others get 503.',
    remedy:
      'a new region: imdsctl init. A wrong store: correct IMDS_STORE and IMDS_REGION. An emptied one: publish again (imdsctl import; imds-api does it by itself); each hypervisor recovers within a minute or two',
    isUnready: isNotRead,
    found: (state) =>
      state.sync.connected && state.sync.isStoreEmpty
        ? `${state.store} has nothing of this region; ${served(state)}`
        : undefined,
  },
  {
    code: 'store-read-failed',
    severity: 'failure',
    what: 'the store is connected, and the daemon has not compared its view with it for three intervals (IMDS_RESYNC_SECONDS), or not since it started.',
    guests: 'they get the last known state; changes and new instances may be missing. At a start others get 503.',
    remedy:
      'repair what the reason names: rights of the Redis user (NOPERM: imdsctl acl HYPERVISOR), a key of a wrong type, a Redis that loads, is out of memory or slow (redis-cli --latency)',
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
    what: 'more than nine in ten of the records that the store has for this hypervisor cannot be used.',
    guests: 'those in the view get the last good state; others get 503.',
    remedy:
      'stop any rollout. Correct the likely cause that the sentence names: record keys other than those of the publishers (IMDS_RECORD_KEYS_FILE, then restart imds), or a release of the control plane or of imds that does not fit: go back',
    isUnready: always,
    found: ({ sync: { storeProblem } }) => storeProblem && formatStoreProblem(storeProblem),
  },
  {
    code: 'store-behind',
    severity: 'failure',
    what: 'Redis has lost changes: it has an earlier state than was served here or on another hypervisor, since an old dump was loaded or a replica that lagged was promoted.',
    guests:
      'they are served from memory, and nothing earlier is applied; what was sealed or removed stays so. Changes that read before they write are refused.',
    remedy:
      'publish the region again: imdsctl republish (imds-api does it by itself; imds-api reconcile --dry-run says when it is done). Find out why Redis went back',
    found: ({ sync }) =>
      sync.isStoreBehind
        ? 'Redis has lost changes: it has an earlier state than was served, which is not applied'
        : undefined,
  },
  {
    code: 'hypervisor-duplicate',
    severity: 'failure',
    what: 'another daemon announces itself with the name of this hypervisor, most often after a machine was cloned or an environment file was copied.',
    guests: 'each daemon serves the records of both names; those of the hypervisor whose name is missing get 503.',
    remedy:
      'correct IMDS_HYPERVISOR in /etc/imds/imds.env of the wrong one, delete its /var/lib/imds if it was cloned, and run systemctl restart imds there',
    found: ({ isDuplicate, hypervisor }) =>
      isDuplicate ? `another daemon announces itself as ${String(hypervisor)}` : undefined,
  },
  {
    code: 'hypervisor-unnamed',
    severity: 'warning',
    what: 'no record names this hypervisor: it is new, or its name is wrong.',
    guests: 'if its name is wrong, they get 503.',
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
    remedy: 'give its Redis user the rights that imdsctl acl HYPERVISOR prints',
    found: ({ announcementFailure }) =>
      announcementFailure && `the daemon cannot announce itself in the store: ${announcementFailure}`,
  },
  {
    code: 'reports-not-written',
    severity: 'warning',
    what: 'what guests report cannot be written to the store. It is kept in memory and in the journal, and written later.',
    guests: 'nothing.',
    remedy:
      'with NOPERM, give its Redis user the rights that imdsctl acl HYPERVISOR prints; otherwise repair the store',
    found: ({ sync, reportFailure }) =>
      sync.connected && reportFailure !== undefined
        ? `reports of guests cannot be written to the store: ${reportFailure}`
        : undefined,
  },
  {
    code: 'store-certificate',
    severity: 'warning',
    what: `the certificate of Redis ends within ${CERTIFICATE_DAYS} days.`,
    guests: 'after that no daemon and no publisher can connect again: they are served from memory, and changes wait.',
    remedy:
      'renew it and let Redis load it: redis-cli CONFIG SET tls-cert-file FILE tls-key-file FILE, or a restart. The daemon sees the new one when it connects next',
    found: ({ storeCertificateEndSeconds: end, wallMs }) => {
      const left = end - wallMs / 1000
      return end === 0 || left > CERTIFICATE_DAYS * DAY_SECONDS
        ? undefined
        : `the certificate of Redis ends in ${formatDuration(left)}`
    },
  },
]
