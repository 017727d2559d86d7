/**
 * Applies changes of the view in order, each after it is on the disk.
 *
 * Changes that arrive while a group is being written form the next group, so a resync of many records needs few writes.
 * The queue is bounded: `add` waits while it is full.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { TurnBudget } from '../../limits/turn-budget.ts'
import type { ViewChange } from '../view/change.ts'
import { encodeChange } from './encoding.ts'

/** The limit of a group, and of the queue, in encoded bytes. A single longer change is a group of one. */
const MAX_GROUP_BYTES = 1024 * 1024

interface Waiting {
  readonly parts: readonly Uint8Array[]
  readonly bytes: number
  readonly apply: () => void
}

/** Passes groups of encoded changes to `write`, which never rejects. */
export class ChangeQueue {
  readonly #write: (changes: readonly Uint8Array[]) => Promise<void>
  readonly #adding = new TurnBudget()
  readonly #applying = new TurnBudget()
  readonly #waiting: Waiting[] = []
  #bytes = 0
  #running: Promise<void> | undefined
  #isWoken = false
  #hasSpace = Promise.withResolvers<undefined>()

  constructor(write: (changes: readonly Uint8Array[]) => Promise<void>) {
    this.#write = write
  }

  /** Calls `apply` when the change is on the disk. Resolves when the queue has room, which may be earlier. */
  async add(change: ViewChange, apply: () => void): Promise<void> {
    const parts = encodeChange(change)
    const bytes = parts.reduce((sum, part) => sum + part.length, 0)
    this.#waiting.push({ parts, bytes, apply })
    this.#bytes += bytes
    this.#running ??= this.#run()
    await this.#adding.spend(bytes)
    while (this.#bytes > MAX_GROUP_BYTES) await this.#hasSpace.promise
  }

  async allApplied(): Promise<void> {
    await this.#running
  }

  /** Calls `write` once all earlier changes are applied, even if the queue is empty. */
  wake(): void {
    this.#isWoken = true
    this.#running ??= this.#run()
  }

  async #run(): Promise<void> {
    await nextTurn() // gathers the changes of this turn
    while (this.#isWoken || this.#waiting.length > 0) {
      this.#isWoken = false
      const group = this.#take()
      await this.#write(group.flatMap(({ parts }) => parts))
      for (const { apply } of group) {
        apply()
        await this.#applying.spend(0)
      }
    }
    this.#running = undefined
  }

  #take(): Waiting[] {
    let bytes = 0
    let count = 0
    for (const { bytes: more } of this.#waiting) {
      if (count > 0 && bytes + more > MAX_GROUP_BYTES) break
      bytes += more
      count += 1
    }
    const group = this.#waiting.splice(0, count)
    this.#bytes -= bytes
    this.#hasSpace.resolve(undefined)
    this.#hasSpace = Promise.withResolvers()
    return group
  }
}
