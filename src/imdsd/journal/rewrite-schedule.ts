/**
 * When the rewrite after removals of user-data is due: soon, so that several share it; and after a pause, if the disk has
 * failed. The pause after a rewrite is ten times as long as the rewrite, so such rewrites take at most about a tenth of
 * the time.
 */

/** How long a rewrite waits after a request, in ms. */
const DELAY_MS = 200
/** The longest pause after a rewrite, in ms. */
const MAX_PAUSE_MS = 30_000

export class RewriteSchedule {
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

  noteRewrite(tookMs: number): void {
    this.#pauseMs = Math.min(10 * tookMs, MAX_PAUSE_MS)
  }

  /** The disk has failed. */
  noteFailure(): void {
    this.#pauseMs = this.#retryMs
    this.#dueIn(this.#retryMs)
  }

  /** Ends. True if a rewrite was scheduled. */
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
