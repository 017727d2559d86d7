/**
 * When the next fold is due: soon after a removal of user-data, so that several share it; and after a pause, if the disk
 * has failed. A pause after a fold is ten times as long as the fold, so folds take at most about a tenth of
 * the time.
 */

/** How long a fold waits after a request, in ms. */
const DELAY_MS = 200
/** The longest pause after a fold, in ms. */
const MAX_PAUSE_MS = 30_000

export interface FoldSchedule {
  request(): void
  noteFold(tookMs: number): void
  /** The disk has failed. */
  noteFailure(): void
  /** Ends. True if a fold was scheduled. */
  stop(): boolean
}

/** `retryMs`: the pause after a failure. */
export function buildFoldSchedule(retryMs: number, onDue: () => void): FoldSchedule {
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
    noteFold: (tookMs) => {
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
