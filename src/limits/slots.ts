/**
 * Limits how many tasks run at a time. The others wait: those of one owner in order, and the owners take turns, so that
 * one with many tasks does not delay the others by all of them.
 */
export class Slots {
  /** By owner, the one whose turn is next first. */
  readonly #waiting = new Map<string, Set<() => void>>()
  #free: number

  constructor(slots: number) {
    this.#free = slots
  }

  /** Runs a task in a free slot. Settles as the task does, or rejects if `signal` aborts while it waits. */
  async use<T>(task: () => Promise<T>, owner = '', signal?: AbortSignal): Promise<T> {
    if (this.#free > 0) this.#free -= 1
    else await this.#turnOf(owner, signal)
    try {
      return await task()
    } finally {
      this.#passOn()
    }
  }

  #turnOf(owner: string, signal: AbortSignal | undefined): Promise<undefined> {
    const { promise, resolve, reject } = Promise.withResolvers<undefined>()
    const start = () => {
      resolve(undefined)
    }
    const ofOwner = this.#waiting.get(owner) ?? new Set()
    this.#waiting.set(owner, ofOwner.add(start))
    signal?.addEventListener('abort', () => {
      if (!ofOwner.delete(start)) return // it has its slot
      if (ofOwner.size === 0) this.#waiting.delete(owner)
      reject(new Error('no longer wanted'))
    })
    return promise
  }

  /** Gives a slot to the next task. */
  #passOn(): void {
    const [next] = this.#waiting
    if (next === undefined) {
      this.#free += 1
      return
    }
    const [owner, ofOwner] = next
    const [start] = ofOwner
    ofOwner.delete(start!)
    this.#waiting.delete(owner)
    if (ofOwner.size > 0) this.#waiting.set(owner, ofOwner) // at the end
    start!()
  }
}
