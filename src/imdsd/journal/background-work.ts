/** Work on files that runs beside a loop, which is woken to handle the end of each. */
import { inTime } from '../../limits/in-time.ts'

/** Starts work, and keeps what is to be done at its end until the loop does it. */
export class BackgroundWork {
  readonly #wake: () => void
  readonly #running = new Set<Promise<void>>()
  readonly #ends: (() => void | Promise<void>)[] = []

  constructor(wake: () => void) {
    this.#wake = wake
  }

  get isRunning(): boolean {
    return this.#running.size > 0
  }

  /** Runs work. The loop calls `onEnd` later, with its failure if there was one. */
  start(work: Promise<void>, onEnd: (failure: { readonly error: unknown } | undefined) => void | Promise<void>): void {
    const running = work
      .then(
        () => undefined,
        (error: unknown) => ({ error }),
      )
      .then((failure) => {
        this.#running.delete(running)
        this.#ends.push(() => onEnd(failure))
        this.#wake()
      })
    this.#running.add(running)
  }

  /** For the loop: handles the ends of work. */
  async handleEnds(): Promise<void> {
    for (let end = this.#ends.shift(); end !== undefined; end = this.#ends.shift()) await end()
  }

  /** Resolves when all work has ended. Rejects if `steps` does not grow for `timeoutMs`: the disk hangs. */
  async ended(timeoutMs: number, steps: () => number): Promise<void> {
    await inTime(Promise.all(this.#running), timeoutMs, steps)
  }
}
