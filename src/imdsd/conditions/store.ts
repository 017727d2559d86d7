/** Conditions of the store, and of this hypervisor in it. */
import { always } from '../../conditions/condition.ts'
import { HYPERVISOR_DUPLICATE, STORE_BEHIND } from '../../conditions/shared.ts'
import { formatDuration } from '../../runtime/ago.ts'
import { formatCount } from '../../runtime/amounts.ts'
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
  instances === 0
    ? 'no instance is served'
    : `${formatCount(instances, 'instance is', 'instances are')} served from memory`

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
    what: 'the daemon is not connected to the store, and tries again.',
    guests:
      'known ones are served, until a restart after IMDS_JOURNAL_MAX_AGE_SECONDS; changes wait, and new instances get 503.',
    remedy:
      'repair what the reason names; on all hypervisors: is Redis up, did it fail over, did its password or certificate change',
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
    what: 'the store has nothing of this region.',
    guests: 'known ones are served; others get 503.',
    remedy:
      'if it is new: imdsctl init; the wrong one: correct IMDS_STORE and IMDS_REGION; emptied: imdsctl import (imds-api publishes by itself)',
    isUnready: isNotRead,
    found: (state) =>
      state.sync.connected && state.sync.isStoreEmpty
        ? `${state.store} has nothing of this region; ${served(state)}`
        : undefined,
  },
  {
    code: 'store-read-failed',
    severity: 'failure',
    what: 'the view was not compared with the store for three times IMDS_RESYNC_SECONDS, or not since the start.',
    guests: 'known ones get the last state, until a restart after IMDS_JOURNAL_MAX_AGE_SECONDS; others get 503.',
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
    guests: 'known ones get the last good state; others get 503.',
    remedy:
      'stop any rollout, and correct the cause that is named: the record keys, or a release of the control plane or of imds',
    isUnready: always,
    found: ({ sync: { storeProblem } }) => storeProblem && formatStoreProblem(storeProblem),
  },
  {
    ...STORE_BEHIND,
    severity: 'failure',
    found: ({ sync }) =>
      sync.isStoreBehind
        ? 'Redis has lost changes: it has an earlier state than was served, which is not applied'
        : undefined,
  },
  {
    ...HYPERVISOR_DUPLICATE,
    severity: 'failure',
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
    code: 'store-not-written',
    severity: 'warning',
    what: 'Redis refuses the announcement of the daemon (publishers then warn of an unknown hypervisor), or the reports of guests.',
    guests: 'nothing.',
    remedy:
      'with NOPERM, give its Redis user the rights that imdsctl acl HYPERVISOR prints; otherwise repair the store',
    found: ({ sync, writeFailure }) =>
      sync.connected && writeFailure !== undefined
        ? `Redis refuses what the daemon writes: ${writeFailure}`
        : undefined,
  },
  {
    code: 'store-certificate',
    severity: 'warning',
    what: `the certificate of Redis ends within ${CERTIFICATE_DAYS} days.`,
    guests: 'after that, as with store-lost.',
    remedy:
      'renew it, and let Redis load it: redis-cli CONFIG SET tls-cert-file FILE tls-key-file FILE. The daemon sees it when it connects next',
    found: ({ storeCertificateEndSeconds: end, wallMs }) => {
      const left = end - wallMs / 1000
      return end === 0 || left > CERTIFICATE_DAYS * DAY_SECONDS
        ? undefined
        : `the certificate of Redis ends in ${formatDuration(left)}`
    },
  },
]
