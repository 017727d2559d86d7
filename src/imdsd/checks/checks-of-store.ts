/** Checks of the store: that it can be used, that the daemon uses it, and that it keeps what is published. */
import { failure, ok, warning } from '../../runtime/check.ts'
import type { DaemonCheck, DoctorCheck } from './hypervisor-state.ts'

export const store: DoctorCheck = {
  name: 'store',
  what: 'the store can be reached, has the region and this hypervisor, and allows what imdsd does',
  find: ({ store: probe }) => probe(),
}

export const storeInUse: DaemonCheck = {
  name: 'store-in-use',
  what: 'imdsd is connected to the store of the configuration, and no other daemon has its name there',
  find: async ({ readiness, settings: { config } }) => {
    const read = await readiness()
    if (!read.ok) return []
    const { connected, duplicate, store: used, viewAgeSeconds } = read.value
    const configured =
      config === undefined ? used : config.store.kind === 'files' ? `file:${config.store.directory}` : config.store.url
    if (used !== configured)
      return [failure(`imdsd uses ${used}, and the configuration has ${configured}`, 'systemctl restart imds')]
    const age = `the last full comparison was ${Math.round(viewAgeSeconds)} s ago`
    if (!connected)
      return [failure(`imdsd is not connected to ${used}: guests are served from memory; ${age}`, LOST_REMEDY)]
    if (duplicate === true)
      return [failure('another daemon announces itself with the name of this hypervisor', DUPLICATE_REMEDY)]
    const isOld = viewAgeSeconds * 1000 > (config?.resyncMs ?? Infinity) * MISSED_RESYNCS + GRACE_MS
    return [
      isOld
        ? warning(`imdsd is connected to ${used}, and ${age}`, 'journalctl -u imds -n 50 says why it fails')
        : ok(`imdsd is connected to ${used}; ${age}`),
    ]
  },
}
const DUPLICATE_REMEDY =
  'look for a cloned machine or a copied imds.env: give each hypervisor its own IMDS_HYPERVISOR, then systemctl restart imds there'
const LOST_REMEDY = 'start Redis or repair the way to it: journalctl -u imds -n 50 has the reason'
/** So many intervals without a full comparison are no accident. */
const MISSED_RESYNCS = 3
const GRACE_MS = 10_000
