/** Times of the API: UTC, ISO 8601, whole seconds. */

/** `2026-11-20T15:04:05Z`. Takes text too, because PostgreSQL's JSON has times as text. */
export function formatTime(time: Date | string): string {
  return `${new Date(time).toISOString().slice(0, 19)}Z`
}

/** The same, with null for null. */
export function formatOptionalTime(time: Date | string | null): string | null {
  return time === null ? null : formatTime(time)
}
