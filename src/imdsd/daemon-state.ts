/** Takes the snapshot in which the conditions of the daemon are found. It does no I/O, since guests would wait. */
import { listOf } from '../conditions/condition.ts'
import { formatMissing, type AddressWatch } from './address-watch.ts'
import type { DaemonState } from './conditions/state.ts'
import type { BackgroundParts } from './guest-side.ts'
import { faultTexts } from './operator/diagnosis.ts'
import type { StateWatch } from './state-watch.ts'
import type { StoreSide } from './store-side.ts'

/** What the state is read from. `operatorProblems`: why listeners of operators are not open. */
export interface DaemonStateParts extends Pick<BackgroundParts, 'now'> {
  readonly config: Pick<BackgroundParts['config'], 'store' | 'resyncMs' | 'identity' | 'stateDirectory'>
  readonly guestSide: Pick<BackgroundParts['guestSide'], 'view' | 'finder' | 'unserved'>
  readonly storeSide: Omit<StoreSide, 'stop'>
  readonly addresses: Pick<AddressWatch, 'missing'>
  readonly operatorProblems: () => readonly string[]
  readonly host: Pick<StateWatch, 'last'>
}

export function readDaemonState(parts: DaemonStateParts): DaemonState {
  const { config, now, guestSide, storeSide, addresses, operatorProblems, host } = parts
  const { view, finder } = guestSide
  const { source, sync, firewall } = storeSide
  const { health } = sync
  const status = sync.status()
  const faults = health.faults().toArray()
  const [outdated, unserved] = [true, false].map((isServed) => {
    const some = faults.filter(([id]) => (view.get(id) !== undefined) === isServed)
    return listOf(some.length, some, ([id, fault]) => `${id}: ${faultTexts(fault)}`)
  }) as [ReturnType<typeof listOf>, ReturnType<typeof listOf>]
  const losers = view
    .instances()
    .filter(({ lost }) => lost.length > 0)
    .toArray()
  const isLost = ({ instance: { id } }: { readonly instance: { readonly id: string } }) => health.isAbsent(id)
  return {
    wallMs: Date.now(),
    nowMs: now(),
    hypervisor: config.store.hypervisor,
    store: source.description,
    resyncMs: config.resyncMs,
    sync: status,
    viewAgeSeconds: storeSide.viewAgeSeconds(),
    storeCertificateEndSeconds: source.certificateEndSeconds?.() ?? 0,
    isDuplicate: storeSide.isDuplicate(),
    writeFailure: storeSide.writeFailure(),
    instances: view.size,
    outdated,
    unserved,
    absent: listOf(
      status.absent,
      view.instances().filter(isLost),
      ({ instance: { id, revision } }) => `${id}, revision ${revision}`,
    ),
    contested: listOf(view.contested().size, view.contested(), ([range, ids]) => `${range} by ${ids.join(' and ')}`),
    lostAddresses: listOf(
      losers.length,
      losers,
      ({ instance: { id, revision }, lost }) =>
        `${id}, revision ${revision}: ${lost.map(({ range }) => range).join(', ')}`,
    ),
    firewall: firewall.status(),
    waiting: listOf(
      view.unconfirmed().size,
      firewall.unconfirmed(() => true),
      (text) => text,
    ),
    firewallWait: finder.firewallWait,
    missingAddresses: addresses.missing().map(formatMissing),
    unservedNetworks: guestSide.unserved.map(
      (place) => `IMDS_LISTEN names ${place}, and no socket of systemd listens there`,
    ),
    operatorProblems: operatorProblems(),
    certificate: config.identity?.certificate,
    stateDirectory: config.stateDirectory,
    host: host.last,
    journal: storeSide.journalProblem(),
  }
}
