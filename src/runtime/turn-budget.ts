/**
 * Background work in slices, so that guests are answered between them.
 *
 * The longest value that a store may hold takes tens of milliseconds to hash or to decrypt. Work on values is done in slices of SLICE_BYTES, and
 * each slice is reported to a TurnBudget, which ends the turn of the event loop once this much was done in it or it took too long.
 */
import { createHash } from 'node:crypto'
import { setImmediate as nextTurn } from 'node:timers/promises'

/** The most bytes that are hashed, encrypted or decrypted at once. */
export const SLICE_BYTES = 256 * 1024
/** One turn of the event loop handles no more than so many bytes (and the rest of a slice), and takes about so long. */
const TURN_BYTES = 1024 * 1024
const TURN_MS = 4

/** What one task may do in a turn of the event loop. */
export class TurnBudget {
  #bytes = 0
  #sinceMs = performance.now()

  /** Reports work that was done, in bytes; resolves in a later turn once this one's budget is used up. */
  async spend(bytes: number): Promise<void> {
    this.#bytes += bytes
    if (this.#bytes < TURN_BYTES && performance.now() - this.#sinceMs < TURN_MS) return
    await nextTurn()
    this.#bytes = 0
    this.#sinceMs = performance.now()
  }
}

/** A value in parts of at most SLICE_BYTES, without copying it. */
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
