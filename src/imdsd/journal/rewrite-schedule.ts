/**
 * When the next rewrite is due: soon after a removal of user-data, so that several share it; and after a pause, if the
 * disk has failed. A pause after a rewrite is ten times as long as the rewrite, so rewrites take at most about a tenth
 * of the time.
 */

/** How long a rewrite waits after a request, in ms. */
const DELAY_MS = 200
/** The longest pause after a rewrite, in ms. */
const MAX_PAUSE_MS = 30_000

export interface RewriteSchedule {
  request(): void
  noteRewrite(tookMs: number): void
  /** The disk has failed. */
  noteFailure(): void
  /** Ends. True if a rewrite was scheduled. */
  stop(): boolean
}

/** `retryMs`: the pause after a failure. */
export function buildRewriteSchedule(retryMs: number, onDue: () => void): RewriteSchedule {
  let timer: NodeJS.Timeout | undefined
  let pauseMs = 0
  let isStopped = false

  const dueIn = (delayMs: number) => {
    if (timer !== undefined || isStopped) return
    timer = setTimeout(() => {
      timer = undefined
      onDue()
    }, delayMs)
  }
  return {
    request: () => dueIn(DELAY_MS + pauseMs),
    noteRewrite: (tookMs) => {
      pauseMs = Math.min(10 * tookMs, MAX_PAUSE_MS)
    },
    noteFailure: () => {
      pauseMs = retryMs
      dueIn(retryMs)
    },
    stop: () => {
      isStopped = true
      clearTimeout(timer)
      return timer !== undefined
    },
  }
}
