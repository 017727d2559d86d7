/**
 * Reports a wall clock that was set back.
 *
 * A running daemon measures all times by a clock that only grows, so a jump changes no answer. What outlives the process has a wall time: the age
 * of the snapshot is not known after a jump, and session tokens go by the new time after the next start (`tokenTime`). An operator should know.
 */
import type { Logger } from 'pino'

/** How often a running daemon looks, in ms. */
export const CHECK_INTERVAL_MS = 60_000
/** Less, in ms, is what NTP does without being asked. */
const TOLERATED_MS = 60_000

/** What a watch of the clock needs. `wall` is the time of day and `steady` only grows, both in ms. */
export interface ClockParts {
  readonly wall: () => number
  readonly steady: () => number
  readonly setBacks: { inc(): void }
  readonly log: Logger
}

/** Tells of each time that the clock is found to have been set back. */
export class ClockWatch {
  readonly #parts: ClockParts
  #offsetMs: number

  constructor(parts: ClockParts) {
    this.#parts = parts
    this.#offsetMs = parts.wall() - parts.steady()
  }

  /** Compares the clock with what it was at the last look. */
  check(): void {
    const offsetMs = this.#parts.wall() - this.#parts.steady()
    this.aheadMs(this.#offsetMs - offsetMs)
    this.#offsetMs = offsetMs
  }

  /** Something that was written in the past is this far in the future. */
  aheadMs(byMs: number): void {
    if (byMs <= TOLERATED_MS) return
    this.#parts.setBacks.inc()
    this.#parts.log.warn({ seconds: Math.round(byMs / 1000) }, 'the clock was set back: guests are answered all the same, but the age of the snapshot is not known')
  }
}
