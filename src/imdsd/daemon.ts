/**
 * The composition root of imdsd: builds the parts in order, and stops them in reverse.
 *
 * It starts in two phases, so that guests are served early. The first phase is the guest side, which is small and
 * answers guests from the journal. The second phase loads and starts everything else: the store, sync, the firewall,
 * metrics and the operator server.
 */
import { setImmediate as turn, setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../runtime/log-codes.ts'
import { LIMITED_DSCP } from './guest/hop-limit.ts'
import { formatHostPort, type HostPort } from '../runtime/host-port.ts'
import { lockState } from './journal/state-lock.ts'
import type { Config } from './config.ts'
import { startGuestSide, type BackgroundParts } from './guest-side.ts'
import { buildOperatorSide } from './operator-side.ts'
import { buildStoreSide, openSource } from './store-side.ts'

/** How long the first guests are answered before the second phase begins to load its files, in ms. */
const FIRST_GUESTS_MS = 20
/** How long a start waits for a daemon with the same state directory to end: a stop takes 1.5 s, and a rewrite. */
const LOCK_WAIT_MS = 5_000

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

/**
 * Starts a daemon. It answers guests at once from its journal; a guest that is not in it gets 503 until the
 * store has answered. Rejects when a guest listener cannot be opened or another daemon has the state directory, and
 * leaves nothing running.
 */
export async function startDaemon(config: Config, log: Log): Promise<Daemon> {
  const now = () => performance.now()
  const lock = await lockState(config.stateDirectory, LOCK_WAIT_MS, log)
  try {
    const guestSide = await startGuestSide(config, log, now)
    await sleep(FIRST_GUESTS_MS)
    const parts = { config, log, now, guestSide, disk: lock.disk }
    const daemon = await startBackground(parts).catch(async (error: unknown) => {
      await guestSide.stop()
      throw error
    })
    return {
      ...daemon,
      stop: () => daemon.stop().finally(() => lock.close()),
    }
  } catch (error) {
    lock.close()
    throw error
  }
}

/** Loads and starts everything else, in steps. Guests are answered between two steps. */
async function startBackground(parts: BackgroundParts): Promise<Daemon> {
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
    if (fromJournal > 0 && restored.isComplete) firewall.documents.noteComplete()
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

/** Builds the parts of the second phase. Only timers run already, which `stop` ends. */
async function buildBackground(parts: BackgroundParts) {
  const { config, log, now, guestSide } = parts
  const { view, guests, restored } = guestSide
  const { buildMetrics } = await import('./metrics.ts')
  await turn()
  const { CHECK_INTERVAL_MS, ConditionWatch } = await import('../conditions/watch.ts')
  const { findConditions } = await import('../conditions/condition.ts')
  const { CONDITIONS } = await import('./conditions/table.ts')
  const { readDaemonState } = await import('./daemon-state.ts')
  const { StateWatch } = await import('./state-watch.ts')
  const { ClockWatch, CHECK_INTERVAL_MS: CLOCK_INTERVAL_MS } = await import('./clock.ts')
  const { buildAddressWatch } = await import('./address-watch.ts')
  const metrics = buildMetrics()
  const host = new StateWatch(config.stateDirectory, now)
  const watch = new ConditionWatch(log, now)
  const conditions = () => findConditions(CONDITIONS, readDaemonState(daemonStateParts))
  const onChange = () => watch.note(conditions())
  const storeSide = await buildStoreSide({ ...parts, openSource, metrics, onChange })
  await turn()

  const clock = new ClockWatch({ wall: () => Date.now(), steady: now, setBacks: metrics.clockSetBacks, log })
  clock.reportSetBack(-(restored.ageMs ?? 0))
  const addresses = buildAddressWatch(
    guests.map((guest) => guest.host),
    onChange,
  )
  const operatorSide = await buildOperatorSide({ ...parts, storeSide, metrics, addresses, conditions })
  const operatorProblems = operatorSide.problems
  const daemonStateParts = { config, now, guestSide, storeSide, addresses, operatorProblems, host }
  metrics.setSources({ ...guestSide, ...storeSide, conditions })

  void host.check() // its disk may hang
  const conditionChecks = setInterval(() => void host.check().then(onChange), CHECK_INTERVAL_MS)
  const clockChecks = setInterval(() => clock.check(), CLOCK_INTERVAL_MS)
  const forgetting = setInterval(() => view.forgetIdle(), IDLE_MS)
  const stop = async () => {
    clearInterval(conditionChecks)
    clearInterval(clockChecks)
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
