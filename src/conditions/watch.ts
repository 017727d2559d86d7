/** Logs each condition when it begins, and when it ends with how long it lasted. */
import { formatDuration } from '../runtime/ago.ts'
import type { Log } from '../runtime/log-codes.ts'
import type { FoundCondition } from './condition.ts'

/** How often a program evaluates its conditions, in ms. */
export const CHECK_INTERVAL_MS = 15_000

export class ConditionWatch {
  readonly #log: Pick<Log, 'info' | 'warn'>
  readonly #now: () => number
  /** Code -> when it began. */
  readonly #begun = new Map<string, number>()

  /** `now`: milliseconds of a monotonic clock. */
  constructor(log: Pick<Log, 'info' | 'warn'>, now: () => number) {
    this.#log = log
    this.#now = now
  }

  /** These are the conditions of now. `areAll`: false if others may be there that could not be looked for. */
  note(found: readonly FoundCondition[], areAll: boolean): void {
    for (const { code, severity, text, remedy } of found) {
      if (this.#begun.has(code)) continue
      this.#begun.set(code, this.#now())
      this.#log.warn({ code, severity, remedy }, text)
    }
    for (const [code, sinceMs] of this.#begun) {
      if (!areAll || found.some((condition) => condition.code === code)) continue
      this.#begun.delete(code)
      const seconds = Math.round((this.#now() - sinceMs) / 1000)
      this.#log.info({ code, seconds }, `${code} is over after ${formatDuration(seconds)}`)
    }
  }
}
