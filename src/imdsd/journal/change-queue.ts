/**
 * Applies changes of the view in order, each after it is on the disk.
 *
 * Changes that arrive while a group is being written form the next group, so a resync of many records needs few writes.
 * The queue is bounded: `add` waits while it is full.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { TurnBudget } from '../../limits/turn-budget.ts'

/** The limit of a group, and of the queue, in encoded bytes. A single longer change is a group of one. */
const MAX_GROUP_BYTES = 1024 * 1024

interface Waiting {
  readonly parts: readonly Uint8Array[]
  readonly bytes: number
  readonly apply: () => void
}

export interface ChangeQueue {
  /** Calls `apply` when the encoded change is on the disk. Resolves when the queue has room, which may be earlier. */
  add(change: readonly Uint8Array[], apply: () => void): Promise<void>
  allApplied(): Promise<void>
  /** Calls `write` once all earlier changes are applied, even if the queue is empty. */
  wake(): void
}

/** Passes groups of encoded changes to `write`, which never rejects. */
export function buildChangeQueue(write: (changes: readonly Uint8Array[]) => Promise<void>): ChangeQueue {
  const adding = new TurnBudget()
  const applying = new TurnBudget()
  const waiting: Waiting[] = []
  let waitingBytes = 0
  let running: Promise<void> | undefined
  let isWoken = false
  let hasSpace = Promise.withResolvers<undefined>()

  const takeGroup = () => {
    let bytes = 0
    let count = 0
    for (const { bytes: more } of waiting) {
      if (count > 0 && bytes + more > MAX_GROUP_BYTES) break
      bytes += more
      count += 1
    }
    waitingBytes -= bytes
    hasSpace.resolve(undefined)
    hasSpace = Promise.withResolvers()
    return waiting.splice(0, count)
  }
  const run = async () => {
    await nextTurn() // gathers the changes of this turn
    while (isWoken || waiting.length > 0) {
      isWoken = false
      const group = takeGroup()
      await write(group.flatMap(({ parts }) => parts))
      for (const { apply } of group) {
        apply()
        await applying.spend(0)
      }
    }
    running = undefined
  }
  return {
    add: async (parts, apply) => {
      const bytes = parts.reduce((sum, part) => sum + part.length, 0)
      waiting.push({ parts, bytes, apply })
      waitingBytes += bytes
      running ??= run()
      await adding.spend(bytes)
      while (waitingBytes > MAX_GROUP_BYTES) await hasSpace.promise
    },
    allApplied: () => running ?? Promise.resolve(),
    wake: () => {
      isWoken = true
      running ??= run()
    },
  }
}
