/** Checks of the store: that it can be used, that the daemon uses it, and that it keeps what is published. */
import type { Check, DaemonCheck } from './check.ts'
import { failure, ok, warning } from './check.ts'

export const store: Check = {
  name: 'store',
  what: 'the store can be reached, has the region and this hypervisor, and allows what imdsd does',
  remedy: 'correct IMDS_STORE and its files, or the rules of its user: deploy/redis.acl has what imds needs',
  find: async (look) => {
    const probe = await look.store()
    if (probe === undefined) return []
    const { findings, warnings, problems } = probe
    return [
      ...problems.map((problem) => failure(problem)),
      ...warnings.map((text) => warning(text)),
      ...findings.map(ok),
    ]
  },
}

export const storeInUse: DaemonCheck = {
  name: 'store-in-use',
  what: 'imdsd is connected to the store of the configuration',
  remedy: 'restart imds if its configuration has changed; else see journalctl -u imds -n 50',
  find: async ({ readiness, settings: { config } }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { connected, store: used, viewAgeSeconds } = read.value
    const configured =
      config === undefined ? used : config.store.kind === 'files' ? `file:${config.store.directory}` : config.store.url
    if (used !== configured) return [failure(`imdsd uses ${used}, and the configuration has ${configured}`)]
    const age = `the last full comparison was ${String(Math.round(viewAgeSeconds))} s ago`
    if (!connected) return [failure(`imdsd is not connected to ${used}: guests are served from memory; ${age}`)]
    const isOld = viewAgeSeconds * 1000 > (config?.resyncMs ?? Infinity) * MISSED_RESYNCS + GRACE_MS
    return [isOld ? warning(`imdsd is connected to ${used}, and ${age}`) : ok(`imdsd is connected to ${used}; ${age}`)]
  },
}
/** So many intervals without a full comparison are no accident. */
const MISSED_RESYNCS = 3
const GRACE_MS = 10_000
