/**
 * Bounds what one caller begins in a turn of the event loop, so that others are served between. What waits is begun in
 * the next turns, as much of each caller.
 */

/** What a caller may begin in a turn. A request that is answered at once takes about 0.1 ms. */
const MAX_BEGUN = 4

export class LoopTurns {
  /** How much each caller has begun in this turn. */
  readonly #begun = new Map<string, number>()
  readonly #waiting = new Map<string, (() => void)[]>()

  /** Begins work now, or in a later turn. */
  enter(caller: string, begin: () => void): void {
    const begun = this.#begun.get(caller) ?? 0
    if (begun >= MAX_BEGUN) {
      const waiting = this.#waiting.get(caller)
      if (waiting === undefined) this.#waiting.set(caller, [begin])
      else waiting.push(begin)
      return
    }
    if (this.#begun.size === 0) setImmediate(() => this.#endTurn())
    this.#begun.set(caller, begun + 1)
    begin()
  }

  #endTurn(): void {
    this.#begun.clear()
    for (const [caller, waiting] of [...this.#waiting]) {
      const next = waiting.splice(0, MAX_BEGUN)
      if (waiting.length === 0) this.#waiting.delete(caller)
      for (const begin of next) this.enter(caller, begin)
    }
  }
}
