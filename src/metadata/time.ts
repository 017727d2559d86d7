/** Times that others write: in records, requests, the region file and reports of guests. */

/** Two digits that are no multiple of 4. */
const NOT_BY_4 = '([02468][1235679]|[13579][01345789])'
/**
 * RFC 3339, in the years 1970 to 9999 of UTC, on a day of the calendar: JavaScript would take 30 February for 2 March.
 * publish.lua checks the same.
 */
export const TIME =
  `^(?!....-(02-3|(0[469]|11)-31))(?!(..${NOT_BY_4}|${NOT_BY_4}00)-02-29)(?!9999.*-\\d\\d:)` +
  '(19[7-9]|[2-9]\\d\\d)\\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d+)?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)$'
export const MAX_TIME_CHARACTERS = 35
export const TIME_RULE = 'a time such as 2026-11-20T15:04:05Z (RFC 3339)'

const FORM = new RegExp(TIME)

export function isTime(text: string): boolean {
  return text.length <= MAX_TIME_CHARACTERS && FORM.test(text)
}
