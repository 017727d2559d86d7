/**
 * Cursors of events: the id of an event, from which a client continues. It has the epoch of the database, which changes
 * when a backup is restored, and the number of the event among those of its account.
 */

/** What a cursor says. `number` 0: before the first event. */
export interface Cursor {
  readonly epoch: string
  readonly number: number
}

const FORM = /^[0-9a-f]{8}-(?:0|[1-9][0-9]{0,14})$/

export function formatCursor({ epoch, number }: Cursor): string {
  return `${epoch}-${number}`
}

/** Undefined: the text is no cursor. */
export function parseCursor(text: string): Cursor | undefined {
  if (!FORM.test(text)) return undefined
  const [epoch, number] = text.split('-')
  return { epoch: epoch!, number: Number(number) }
}
