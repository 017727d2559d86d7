/**
 * Builds one page at a time, and pauses after each, so that all readers together take at most a tenth of the event loop,
 * however often they load a page. Guests and other clients do not wait for them.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { FairQueue } from '../limits/fair-queue.ts'

/** The pause after a page, as a multiple of the time that it took, and the longest one. */
const PAUSE_RATIO = 9
const MAX_PAUSE_MS = 1_000
/** The most pages that wait for their turn. */
const MAX_WAITING = 32

/** A monotonic clock in milliseconds, and a pause, which does not keep a program from ending. */
const REAL = {
  now: () => performance.now(),
  pause: (ms: number): Promise<unknown> => sleep(ms, undefined, { ref: false }),
}

export function buildPageTurns({ now, pause } = REAL): {
  /** Builds a page at its turn. Undefined: too many wait. Rejects if `build` does. */
  readonly take: <T>(build: () => Promise<T>) => Promise<T | undefined>
} {
  const queue = new FairQueue({ atOnce: 1, maxWaiting: MAX_WAITING })
  return {
    take: async (build) => {
      const leave = await queue.enter({ key: '' })
      if (typeof leave !== 'function') return undefined
      const startedMs = now()
      try {
        return await build()
      } finally {
        void pause(Math.min((now() - startedMs) * PAUSE_RATIO, MAX_PAUSE_MS)).then(leave)
      }
    },
  }
}
