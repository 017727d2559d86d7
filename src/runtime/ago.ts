/** How long ago something was, for people. */

/** The units, each with how many of it are the next one. */
const UNITS = [
  ['s', 60],
  ['min', 60],
  ['h', 24],
  ['d', Infinity],
] as const

/** Formats the time from `time` (RFC 3339) to `nowMs` (Unix time): `3 min ago`. A time in the future was `0 s ago`. */
export function formatAgo(time: string, nowMs: number): string {
  let amount = Math.max(0, (nowMs - Date.parse(time)) / 1000)
  if (Number.isNaN(amount)) return 'at an unknown time'
  for (const [unit, most] of UNITS) {
    if (amount < most) return `${String(Math.floor(amount))} ${unit} ago`
    amount /= most
  }
  return ''
}
