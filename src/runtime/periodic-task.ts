/** A task that a process repeats until it stops, such as a check: one run at a time, and a pause after each. */
import { setTimeout as sleep } from 'node:timers/promises'

export class PeriodicTask {
  readonly #task: (signal: AbortSignal) => Promise<void>
  readonly #pauseMs: number
  readonly #onError: (error: Error) => void
  readonly #stopping = new AbortController()
  #running: Promise<void> = Promise.resolve()

  /** `task`: its signal is aborted by `stop`. `onError` is called for each run that rejects. */
  constructor(task: (signal: AbortSignal) => Promise<void>, pauseMs: number, onError: (error: Error) => void) {
    this.#task = task
    this.#pauseMs = pauseMs
    this.#onError = onError
  }

  /** Begins with a run. */
  start(): void {
    this.#running = this.#run(this.#stopping.signal)
  }

  /** Waits for the end of the present run. */
  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#running
  }

  async #run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await this.#task(signal).catch(this.#onError)
      await sleep(this.#pauseMs, undefined, { signal }).catch(() => undefined) // stopped
    }
  }
}
