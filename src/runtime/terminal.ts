/**
 * Text for people at a terminal: styles, tables with aligned columns, and no character that a terminal would act on.
 * Only a terminal has a width, and colours unless NO_COLOR is set.
 */
import { styleText } from 'node:util'

/** A stream of the process. `hasColors` knows NO_COLOR and TERM. */
export interface Screen {
  readonly isTTY?: boolean
  readonly columns?: number
  hasColors?(): boolean
}

/** The styles in use: red for a failure, yellow for a warning, green for what is well. */
export type Style = 'bold' | 'dim' | 'red' | 'yellow' | 'green'

/** A text of a table, with a style or without. */
export type Cell = string | { readonly text: string; readonly style: Style }

export type Paint = (style: Style, text: string) => string

/** The width of a terminal in characters; undefined for any other stream, and if the terminal does not say. */
export function widthOf({ isTTY, columns = 0 }: Screen): number | undefined {
  return isTTY === true && columns > 0 ? columns : undefined
}

/** Returns what gives texts for a stream their style. FORCE_COLOR changes nothing for a stream that is no terminal. */
export function paintFor(screen: Screen): Paint {
  return screen.isTTY === true && screen.hasColors?.() === true
    ? (style, text) => styleText(style, text, { validateStream: false })
    : plain
}

export const plain: Paint = (_style, text) => text

/** Between two columns. */
const GAP = '  '
/** The last column of rows is not wrapped to less than this. */
const MIN_TEXT_WIDTH = 24

/** A cell whose control characters are escaped. */
interface Escaped {
  readonly text: string
  readonly style: Style | undefined
}

/**
 * Formats rows as lines. `width`: that of the terminal, into which the words of the last column are wrapped; undefined:
 * each row is one line. A text cannot begin another column or line.
 */
export function formatRows(rows: readonly (readonly Cell[])[], width: number | undefined, paint: Paint): string[] {
  const columns = rows.reduce((most, { length }) => Math.max(most, length), 0)
  const all = rows.map((cells) => cells.map(escaped))
  const widths = widthsOf(all, columns)
  const indent = widths.slice(0, -1).reduce((sum, width) => sum + width + GAP.length, 0)
  const most = width === undefined ? Infinity : Math.max(MIN_TEXT_WIDTH, width - indent)
  return all.flatMap((cells) => {
    const { text = '', style } = cells[columns - 1] ?? {}
    const [first = '', ...others] = wrapped(text, most)
    const line = joined([...cells.slice(0, columns - 1), { text: first, style }], widths, paint)
    return [line, ...others.map((other) => ' '.repeat(indent) + painted({ text: other, style }, paint))]
  })
}

function escaped(cell: Cell): Escaped {
  const { text, style } = typeof cell === 'string' ? { text: cell, style: undefined } : cell
  return { text: escapeControls(text), style }
}

function widthsOf(rows: readonly (readonly Escaped[])[], columns: number): number[] {
  return Array.from({ length: columns }, (_, column) =>
    rows.reduce((most, cells) => Math.max(most, cells[column]?.text.length ?? 0), 0),
  )
}

/** A line of cells, without spaces at its end. */
function joined(cells: readonly Escaped[], widths: readonly number[], paint: Paint): string {
  const last = cells.findLastIndex(({ text }) => text !== '')
  return cells
    .slice(0, last + 1)
    .map(({ text, style }, column) => {
      const space = column === last ? 0 : (widths[column] ?? 0) - text.length
      return painted({ text, style }, paint) + ' '.repeat(space)
    })
    .join(GAP)
}

function painted({ text, style }: Escaped, paint: Paint): string {
  return style === undefined || text === '' ? text : paint(style, text)
}

/** Splits a text at spaces into lines of at most `most` characters. A longer word has a line of its own. */
function wrapped(text: string, most: number): string[] {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const line = lines.at(-1)
    if (line !== undefined && line.length + 1 + word.length <= most) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return lines
}

/**
 * Characters that a terminal would act on, or that end a line or change the direction of text. Those beyond ASCII: DEL and C1, the line and paragraph separators, the embeddings, overrides and isolates of
 * bidirectional text.
 */
const HIDDEN = '\\u007f-\\u009f\\u2028-\\u202e\\u2066-\\u2069'
const ANY_HIDDEN = new RegExp(`[${HIDDEN}]`)
const ALL = new RegExp(`[\\u0000-\\u001f${HIDDEN}]`, 'g')

/** Escapes them as JSON does, so that the text of a JSON document stays one. `keepsLines`: except tab and newline. */
export function escapeControls(text: string, keepsLines = false): string {
  return text.replace(ALL, (character) =>
    keepsLines && (character === '\n' || character === '\t')
      ? character
      : `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
}

/** Escapes those of a line of JSON that JSON itself leaves. */
export function escapeJsonLine(line: string): string {
  return ANY_HIDDEN.test(line) ? escapeControls(line, true) : line
}
