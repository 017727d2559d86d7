/**
 * Escapes characters of records that a terminal would act on: control characters, and those that end a line or change
 * the direction of text.
 */

/**
 * Those beyond ASCII: DEL and C1, the line and paragraph separators, the embeddings, overrides and isolates of
 * bidirectional text.
 */
const HIDDEN = '\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069'
const ANY_HIDDEN = new RegExp(`[${HIDDEN}]`)
const ALL = new RegExp(`[\\u0000-\\u001f${HIDDEN}]`, 'g')

/** Escapes them as JSON does, so that the text of a JSON document stays one. `keepsLines`: except tab and newline. */
export function escapeControls(text: string, keepsLines = false): string {
  return text.replace(ALL, (one) =>
    keepsLines && (one === '\n' || one === '\t') ? one : `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
}

/** Escapes those of a line of JSON that JSON itself leaves. */
export function escapeJsonLine(line: string): string {
  return ANY_HIDDEN.test(line) ? escapeControls(line, true) : line
}
