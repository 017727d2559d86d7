/**
 * The order in time of a region. All that is published or removed has a place in it: a whole number, the time in
 * microseconds since 1970, and higher than the place before (docs/redis-layout.md#order). 0: it has none.
 */

import { isName } from '../metadata/identifiers.ts'

/** A place further than this in the future is that of a wrong clock: nobody accepts it. */
export const MAX_AHEAD_MS = 24 * 3_600_000
/** Like MAX_AHEAD_MS, for those who make places: less, so that a daemon whose clock is slow accepts them. */
export const MAX_PLACE_AHEAD_MS = 23 * 3_600_000
/** What `order` adds to a record in the store, in bytes. */
export const MAX_ORDER_BYTES = 32

/** A place that was read; 0 for anything else. */
export function placeOf(value: unknown): number {
  const place = typeof value === 'string' && /^[0-9]+$/.test(value) ? Number(value) : value
  return typeof place === 'number' && Number.isSafeInteger(place) && place > 0 ? place : 0
}

/** The place in the text of a tombstone (`REVISION [ORDER] ...`); 0: it has none. */
export function placeOfTombstone(text: string): number {
  return placeOf(text.split(' ')[1])
}

/** True for a place that is so far in the future that a clock is wrong. `nowMs`: Unix time. */
export function isAhead(place: number, nowMs: number): boolean {
  return place > (nowMs + MAX_AHEAD_MS) * 1_000
}

/** A record of the store, as its document and its place. */
export function withoutOrder(record: unknown): { readonly document: unknown; readonly order: number } {
  if (!(record instanceof Object)) return { document: record, order: 0 }
  const { order, ...document } = record as { order?: unknown }
  return { document: order === undefined ? record : document, order: placeOf(order) }
}

/**
 * That a region has lost changes. `order`: the highest place that somebody knows; `by`: who; absent: a publisher.
 * `text`: as it is in the store.
 */
export interface BehindMark {
  readonly order: number
  readonly by?: string
  readonly text: string
}

/** Formats the mark: `ORDER` or `ORDER BY`. */
export function formatBehind(order: number, by?: string): string {
  return by === undefined ? String(order) : `${order} ${by}`
}

/** Parses the mark. The user of a hypervisor can set it to any text, which a database need not take. */
export function parseBehind(text: string): BehindMark {
  const [order, by = ''] = text.split(' ')
  return { order: placeOf(order), text: text.replaceAll('\0', ''), ...(isName(by) && { by }) }
}
