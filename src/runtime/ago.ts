/** Durations, and how long ago something was, for people. */

/** The units, each with how many of it are the next one. */
const UNITS = [
  ['s', 60],
  ['min', 60],
  ['h', 24],
  ['d', Infinity],
] as const

/** Formats a duration in its largest unit: `12 s`, `3 min`, `5 h`, `2 d`. */
export function formatDuration(seconds: number): string {
  let amount = Math.max(0, seconds)
  for (const [unit, most] of UNITS) {
    if (amount < most) return `${Math.floor(amount)} ${unit}`
    amount /= most
  }
  return ''
}

/** Formats the time from `time` (RFC 3339) to `nowMs` (Unix time): `3 min ago`. A time in the future was `0 s ago`. */
export function formatAgo(time: string, nowMs: number): string {
  const seconds = (nowMs - Date.parse(time)) / 1000
  return Number.isNaN(seconds) ? 'at an unknown time' : `${formatDuration(seconds)} ago`
}
