/** The wall clock of this process. */
import type { Test } from 'tap'

const DAY_MS = 86_400_000

/** Sets `Date.now()` ahead by a day. The returned function sets it right again, as the end of the test does. */
export function setClockAhead(t: Test): () => void {
  const { now } = Date
  Date.now = () => now() + DAY_MS
  const setRight = () => {
    Date.now = now
  }
  t.teardown(setRight)
  return setRight
}
