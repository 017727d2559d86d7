/**
 * When the next fold is due: soon after a report or a removal of user-data, so that several share it; and after a pause,
 * if the disk has failed. A pause after a fold is ten times as long as the fold, so folds take at most about a tenth of
 * the time.
 */

/** How long a fold waits after a request, in ms. */
const DELAY_MS = 200
/** The longest pause after a fold, in ms. */
const MAX_PAUSE_MS = 30_000

export class FoldSchedule {
  readonly #retryMs: number
  readonly #onDue: () => void
  #timer: NodeJS.Timeout | undefined
  #pauseMs = 0
  #isStopped = false

  /** `retryMs`: the pause after a failure. */
  constructor(retryMs: number, onDue: () => void) {
    this.#retryMs = retryMs
    this.#onDue = onDue
  }

  request(): void {
    this.#dueIn(DELAY_MS + this.#pauseMs)
  }

  noteFold(tookMs: number): void {
    this.#pauseMs = Math.min(10 * tookMs, MAX_PAUSE_MS)
  }

  /** The disk has failed. */
  noteFailure(): void {
    this.#pauseMs = this.#retryMs
    this.#dueIn(this.#retryMs)
  }

  /** Ends. True if a fold was scheduled. */
  stop(): boolean {
    this.#isStopped = true
    clearTimeout(this.#timer)
    return this.#timer !== undefined
  }

  #dueIn(delayMs: number): void {
    if (this.#timer !== undefined || this.#isStopped) return
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#onDue()
    }, delayMs)
  }
}
