/**
 * Work that is done for a key: once at a time, and again if it was asked for meanwhile. So many notifications of a change
 * cause few queries.
 */

/** When work that has failed is tried again. */
const RETRY_MS = 1_000

export class CoalescedWork<Key> {
  readonly #work: (key: Key) => Promise<boolean>
  /** The keys whose work runs; true: it was asked for since it began. */
  readonly #running = new Map<Key, boolean>()

  /** `work`: returns true if it has more to do; rejects if the database is unreachable, which others report. */
  constructor(work: (key: Key) => Promise<boolean>) {
    this.#work = work
  }

  async run(key: Key): Promise<void> {
    const isRunning = this.#running.has(key)
    this.#running.set(key, true)
    if (isRunning) return
    while (this.#running.get(key) === true) {
      this.#running.set(key, false)
      try {
        if (await this.#work(key)) this.#running.set(key, true)
      } catch {
        setTimeout(() => void this.run(key), RETRY_MS).unref()
      }
    }
    this.#running.delete(key)
  }
}
