/** Waits for a wake. A wake before the wait is not lost; several are one. One caller waits at a time. */
export class Waiter {
  #isWoken = false
  #resume: (() => void) | undefined

  wake(): void {
    this.#isWoken = true
    this.#resume?.()
  }

  /** Resolves at a wake, at once if there was one since the last wait, and at the latest after `timeoutMs`. */
  async wait(timeoutMs: number): Promise<void> {
    const { promise, resolve }: PromiseWithResolvers<void> = Promise.withResolvers()
    const timer = setTimeout(resolve, timeoutMs)
    this.#resume = resolve
    if (!this.#isWoken) await promise
    clearTimeout(timer)
    this.#isWoken = false
  }
}
