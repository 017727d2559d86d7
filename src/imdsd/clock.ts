/**
 * Reports that the wall clock was set back.
 *
 * A running daemon uses the monotonic clock, so setting the wall clock changes no response. The journal and session
 * tokens outlive the process, so they have wall times: the age of the journal is then unknown, and after the next
 * start tokens use the new time (`tokenTime`).
 */
import type { Log } from '../runtime/log-codes.ts'

export const CHECK_INTERVAL_MS = 60_000
/** Smaller steps are not reported, in ms: NTP makes them in normal operation. */
const MIN_REPORTED_MS = 60_000

/** What the check needs. `wall` is the time of day and `steady` is monotonic, both in ms. */
export interface ClockParts {
  readonly wall: () => number
  readonly steady: () => number
  readonly setBacks: { inc(): void }
  readonly log: Log
}

/** Counts and logs each time that the clock was set back. */
export class ClockWatch {
  readonly #parts: ClockParts
  #offsetMs: number

  constructor(parts: ClockParts) {
    this.#parts = parts
    this.#offsetMs = parts.wall() - parts.steady()
  }

  /** Compares the clock with the last check. */
  check(): void {
    const offsetMs = this.#parts.wall() - this.#parts.steady()
    this.reportSetBack(this.#offsetMs - offsetMs)
    this.#offsetMs = offsetMs
  }

  reportSetBack(byMs: number): void {
    if (byMs <= MIN_REPORTED_MS) return
    this.#parts.setBacks.inc()
    this.#parts.log.warn(
      { code: 'clock-set-back', seconds: Math.round(byMs / 1000) },
      'the clock was set back; guests are still served, but the age of the journal is unknown',
    )
  }
}
