/** Bounds warnings that would repeat. */
const QUIET_MS = 60_000

/** Returns whether a warning is due: at most one of a name in a minute. `now`: milliseconds of a monotonic clock. */
export function buildEachMinute(now: () => number): (name: string) => boolean {
  const warnedAtMs = new Map<string, number>()
  return (name) => {
    const isDue = now() - (warnedAtMs.get(name) ?? -Infinity) >= QUIET_MS
    if (isDue) warnedAtMs.set(name, now())
    return isDue
  }
}
