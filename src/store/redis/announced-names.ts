/**
 * Which hypervisors have announced themselves, as far as a publisher knows. An announcement is remembered for good. That
 * there is none is remembered for 10 s: the import of many records does not ask for each of them, and the daemon of
 * a new hypervisor is soon noticed.
 */

const MISSING_MS = 10_000

/** `nowMs` is the time of a clock that only goes forward. */
export class AnnouncedNames {
  readonly #announced = new Set<string>()
  /** Those that had no announcement at the last look, all of them since `#sinceMs`. */
  readonly #missing = new Set<string>()
  #sinceMs = -Infinity

  /** Returns the names among `names` without an announcement, or undefined if Redis has to be asked. */
  missingOf(names: readonly string[], nowMs: number): readonly string[] | undefined {
    if (nowMs - this.#sinceMs >= MISSING_MS) {
      this.#missing.clear()
      this.#sinceMs = nowMs
    }
    const isKnown = names.every((name) => this.#announced.has(name) || this.#missing.has(name))
    return isKnown ? names.filter((name) => !this.#announced.has(name)) : undefined
  }

  /** Remembers what Redis has answered. */
  learn(names: readonly string[], missing: readonly string[]): void {
    for (const name of names) (missing.includes(name) ? this.#missing : this.#announced).add(name)
  }
}
