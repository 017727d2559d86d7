/**
 * Divides background work into slices, so that guests are answered between them.
 *
 * Hashing or decrypting the longest value of a store takes tens of milliseconds. So values are processed in slices of
 * SLICE_BYTES, and each slice is reported to a TurnBudget, which ends the turn of the event loop after a number of
 * bytes or milliseconds.
 */
import { createHash } from 'node:crypto'
import { setImmediate as nextTurn } from 'node:timers/promises'

/** The most bytes that are hashed, encrypted or decrypted at once. */
export const SLICE_BYTES = 256 * 1024
/** The budget of one turn of the event loop. The slice that exceeds it is finished first. */
const MAX_TURN_BYTES = 1024 * 1024
const MAX_TURN_MS = 4

/** Limits what one task does in a turn of the event loop. */
export class TurnBudget {
  #bytes = 0
  #sinceMs = performance.now()

  /** Reports finished work, in bytes. Resolves at once, or in a later turn if this turn's budget is used up. */
  async spend(bytes: number): Promise<void> {
    this.#bytes += bytes
    if (this.#bytes < MAX_TURN_BYTES && performance.now() - this.#sinceMs < MAX_TURN_MS) return
    await nextTurn()
    this.#bytes = 0
    this.#sinceMs = performance.now()
  }
}

/** Splits a value into parts of at most SLICE_BYTES, without copying it. */
export function* slices(bytes: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += SLICE_BYTES) yield bytes.subarray(at, at + SLICE_BYTES)
}

/** Lower-case hexadecimal SHA-256 of a value of any length. */
export async function sha256InSlices(bytes: Uint8Array, budget: TurnBudget): Promise<string> {
  const hash = createHash('sha256')
  for (const slice of slices(bytes)) {
    hash.update(slice)
    await budget.spend(slice.length)
  }
  return hash.digest('hex')
}
