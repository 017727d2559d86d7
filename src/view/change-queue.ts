/**
 * Makes changes of the view in their order, each after it is on the disk.
 *
 * The changes that arrive while a group is being written are the next group, so a resync of many records needs few writes. The queue is bounded: whoever
 * adds a change waits while there is no room.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { TurnBudget } from '../runtime/turn-budget.ts'
import { sizeOf, type Change } from './change.ts'

/** The size of a group and of what waits for the next one, in bytes. A single longer change is a group of one. */
const GROUP_BYTES = 1024 * 1024

interface Waiting { readonly change: Change, readonly make: () => void }

/** Passes groups of changes to `write`, which never rejects. */
export class ChangeQueue {
  readonly #write: (changes: readonly Change[]) => Promise<void>
  readonly #budget = new TurnBudget()
  readonly #waiting: Waiting[] = []
  #bytes = 0
  #running: Promise<void> | undefined
  #isWoken = false
  #room = Promise.withResolvers<undefined>()

  constructor(write: (changes: readonly Change[]) => Promise<void>) {
    this.#write = write
  }

  /** Calls `make` when the change was written. Resolves when there is room for another one, which may be before that. */
  async add(change: Change, make: () => void): Promise<void> {
    this.#waiting.push({ change, make })
    this.#bytes += sizeOf(change)
    this.#running ??= this.#run()
    while (this.#bytes > GROUP_BYTES) await this.#room.promise
  }

  /** Resolves when all changes are made. */
  async settled(): Promise<void> {
    await this.#running
  }

  /** Calls `write` when all changes of the groups before are made, even if no other change waits. */
  wake(): void {
    this.#isWoken = true
    this.#running ??= this.#run()
  }

  async #run(): Promise<void> {
    await nextTurn() // gathers the changes of this turn
    while (this.#isWoken || this.#waiting.length > 0) {
      this.#isWoken = false
      const group = this.#take()
      await this.#write(group.map(({ change }) => change))
      for (const { make } of group) {
        make()
        await this.#budget.spend(0)
      }
    }
    this.#running = undefined
  }

  #take(): Waiting[] {
    let bytes = 0
    let count = 0
    for (const { change } of this.#waiting) {
      if (count > 0 && bytes + sizeOf(change) > GROUP_BYTES) break
      bytes += sizeOf(change)
      count += 1
    }
    const group = this.#waiting.splice(0, count)
    this.#bytes -= bytes
    this.#room.resolve(undefined)
    this.#room = Promise.withResolvers()
    return group
  }
}
