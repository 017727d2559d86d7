/**
 * The second phase of a start: the store, sync, the firewall, metrics and the listeners of operators. Builds the parts in
 * order, and stops them in reverse. daemon.ts loads this file once guests are answered.
 */
import { findConditions } from '../conditions/condition.ts'
import { CHECK_INTERVAL_MS, ConditionWatch } from '../conditions/watch.ts'
import { formatHostPort, type HostPort } from '../runtime/host-port.ts'
import { buildAddressWatch } from './address-watch.ts'
import { CONDITIONS } from './conditions/table.ts'
import { readDaemonState } from './daemon-state.ts'
import { LIMITED_DSCP } from './guest/hop-limit.ts'
import type { BackgroundParts } from './guest-side.ts'
import { Metrics } from './metrics.ts'
import { buildOperatorSide } from './operator-side.ts'
import { StateWatch } from './state-watch.ts'
import { buildStoreSide, openSource } from './store-side.ts'

/** What was made for a guest's requests is forgotten when it has sent none in this time, or at most twice of it. */
const IDLE_MS = 3_600_000

export interface Daemon {
  /** The listeners of guests, in the order of the configuration. */
  readonly guests: readonly HostPort[]
  /** The operators' listener on TCP; undefined if it could not open at the start. */
  readonly operator: HostPort | undefined
  /** Stops accepting connections, completes the requests in flight, and disconnects from the store. */
  stop(): Promise<void>
}

/** Starts all but the guest side. */
export async function startBackground(parts: BackgroundParts): Promise<Daemon> {
  const { config, log, guestSide } = parts
  const { view, guests, restored, keys } = guestSide
  const fromJournal = view.size
  const { storeSide, operatorSide, addresses, stop } = await buildBackground(parts)
  const { source, sync, firewall } = storeSide
  try {
    const operator = await operatorSide.start()
    const { host: address, port } = operator ?? config.operator
    const listeners = guests.map(({ network, host, port }) => ({ network, address: host, port }))
    firewall.documents.setListeners({ listeners, operator: { address, port }, limitedDscp: LIMITED_DSCP })
    if (restored.isComplete) firewall.documents.noteComplete()
    await addresses.start()
    await guestSide.preloadIdentity() // who reads 'listening' may replace the installation
    log.info(
      {
        guests: guests.map(formatHostPort),
        operator: operator && formatHostPort(operator),
        operatorSocket: operatorSide.socketPath(),
        store: source.description,
        hypervisor: config.store.hypervisor,
        recordKeys: keys.cipher?.names ?? [],
        fromJournal,
      },
      'listening',
    )
    sync.start()
    return { guests, operator, stop }
  } catch (error) {
    await stop()
    throw error
  }
}

/** Builds the parts. Only timers run already, which `stop` ends. */
async function buildBackground(parts: BackgroundParts) {
  const { config, log, now, guestSide } = parts
  const { view, guests } = guestSide
  const metrics = new Metrics()
  const host = new StateWatch(config.stateDirectory, now)
  const watch = new ConditionWatch(log, now)
  const conditions = () => findConditions(CONDITIONS, readDaemonState(daemonStateParts))
  const onChange = () => watch.note(conditions(), true)
  const storeSide = await buildStoreSide({ ...parts, openSource, metrics, onChange })

  const addresses = buildAddressWatch(
    guests.map((guest) => guest.host),
    onChange,
  )
  const operatorSide = buildOperatorSide({ ...parts, storeSide, metrics, addresses, conditions })
  const operatorProblems = operatorSide.problems
  const daemonStateParts = { config, now, guestSide, storeSide, addresses, operatorProblems, host }
  metrics.setSources({ ...guestSide, ...storeSide, conditions })

  void host.check() // its disk may hang
  const conditionChecks = setInterval(() => void host.check().then(onChange), CHECK_INTERVAL_MS)
  const forgetting = setInterval(() => view.forgetIdle(), IDLE_MS)
  const stop = async () => {
    clearInterval(conditionChecks)
    clearInterval(forgetting)
    addresses.stop()
    storeSide.firewall.stop()
    const listeners = [guestSide.stop(), operatorSide.stop()]
    await Promise.allSettled(listeners)
    await storeSide.stop()
    await Promise.all(listeners) // rejects if one could not stop
  }
  return { storeSide, operatorSide, addresses, stop }
}
