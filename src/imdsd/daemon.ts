/**
 * The composition root of imdsd. It starts in two phases, so that guests are served early: the guest side, which is small
 * and answers guests from the journal; then everything else (background.ts).
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../runtime/log-codes.ts'
import type { Daemon } from './background.ts'
import { lockState } from './journal/state-lock.ts'
import type { Config } from './config.ts'
import { startGuestSide } from './guest-side.ts'

/** How long the first guests are answered before the second phase begins to load its files, in ms. */
const FIRST_GUESTS_MS = 20
/** How long a start waits for a daemon with the same state directory to end: a stop takes 1.5 s, and a rewrite. */
const LOCK_WAIT_MS = 5_000

/**
 * Starts a daemon. It answers guests at once from its journal; a guest that is not in it gets 503 until the
 * store has answered. Rejects when a guest listener cannot be opened or another daemon has the state directory, and
 * leaves nothing running.
 */
export async function startDaemon(config: Config, log: Log): Promise<Daemon> {
  const now = () => performance.now()
  const lock = await lockState(config.stateDirectory, LOCK_WAIT_MS, log)
  try {
    const guestSide = await startGuestSide(config, lock.disk, log, now)
    await sleep(FIRST_GUESTS_MS)
    const parts = { config, log, now, guestSide, disk: lock.disk }
    const daemon = await import('./background.ts')
      .then(({ startBackground }) => startBackground(parts))
      .catch(async (error: unknown) => {
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
