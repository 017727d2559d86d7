/** Keeps a session with a store open: begins the next one when it ends. */
import { setTimeout as sleep } from 'node:timers/promises'
import { RESPONSE_TIMEOUT_MS } from './connection.ts'
import { reasonOf } from './reasons.ts'

/**
 * Runs one session after the other until `signal` aborts. Reports the reason for the end of each to `onEnd`. The pause
 * before the next one increases with each failure in a row, from 25 ms to 2 s.
 */
export async function repeatSessions(
  session: () => Promise<string>,
  onEnd: (reason: string) => void,
  signal: AbortSignal,
): Promise<void> {
  for (let failures = 0; ; failures++) {
    const startedAtMs = performance.now()
    const reason = await session().catch(reasonOf)
    if (signal.aborted) return
    onEnd(reason)
    if (performance.now() - startedAtMs > RESPONSE_TIMEOUT_MS) failures = 0
    await sleep(Math.min(50 * 2 ** failures, 2000) * (0.5 + Math.random() / 2), undefined, { signal }).catch(
      () => undefined,
    ) // stopped
  }
}
