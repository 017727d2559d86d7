/** Reports changes to a watcher of a store: one report covers all changes of an instance within 50 ms. */

/** A migration sends two notices of each change. */
const REPORT_INTERVAL_MS = 50

export class WatchReports {
  readonly #changed: (id: string) => void
  readonly #pending = new Map<string, NodeJS.Timeout>()
  #known: ReadonlyMap<string, string> | undefined

  constructor(changed: (id: string) => void) {
    this.#changed = changed
  }

  /**
   * Reports a change. The report covers every change before it, and a later one starts another timer. So the last report
   * comes after the last change.
   */
  readonly report = (id: string): void => {
    if (this.#pending.has(id)) return
    const timer = setTimeout(() => {
      this.#pending.delete(id)
      this.#changed(id)
    }, REPORT_INTERVAL_MS)
    this.#pending.set(id, timer)
  }

  /** Reports what differs from the last comparison: changes may have been missed since. `now`: id -> digest or stamp. */
  compare(now: ReadonlyMap<string, string>): void {
    const known = this.#known ?? now
    for (const id of new Set([...known.keys(), ...now.keys()])) if (known.get(id) !== now.get(id)) this.report(id)
    this.#known = now
  }

  stop(): void {
    for (const timer of this.#pending.values()) clearTimeout(timer)
  }
}
