/** Tables of text for people: aligned columns, with a header whose cells are cut, or without one and wrapped. */
import { escapeControls } from './escape.ts'
import { plain, type Cell, type Paint, type Style } from './terminal.ts'

/** Between two columns. */
const GAP = '  '
/** A column is not made narrower than this to fit a terminal. */
const NARROWEST = 8
/** The last column of rows is not wrapped to less than this. */
const NARROWEST_TEXT = 24

/** A cell whose control characters are escaped. */
interface Escaped {
  readonly text: string
  readonly style: Style | undefined
}

/**
 * Formats a table as lines, the bold header first. `width`: that of the terminal, which the widest columns are cut to
 * fit (`…` marks a cut); undefined: nothing is cut. A text cannot begin another column or line.
 */
export function formatTable(
  header: readonly string[],
  rows: readonly (readonly Cell[])[],
  width: number | undefined,
  paint: Paint,
): string[] {
  const names = header.map(escaped)
  const all = rows.map((cells) => cells.map(escaped))
  const widths = widthsOf([names, ...all], header.length)
  if (width !== undefined) narrow(widths, width - GAP.length * (widths.length - 1))
  return [paint('bold', joined(names, widths, plain)), ...all.map((cells) => joined(cells, widths, paint))]
}

/**
 * Formats rows without a header as lines. `width`: that of the terminal, into which the words of the last column are
 * wrapped; undefined: each row is one line. A text cannot begin another column or line.
 */
export function formatRows(rows: readonly (readonly Cell[])[], width: number | undefined, paint: Paint): string[] {
  const columns = Math.max(0, ...rows.map(({ length }) => length))
  const all = rows.map((cells) => cells.map(escaped))
  const widths = widthsOf(all, columns)
  const indent = widths.slice(0, -1).reduce((sum, one) => sum + one + GAP.length, 0)
  const most = width === undefined ? Infinity : Math.max(NARROWEST_TEXT, width - indent)
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

/** Takes from the widest column until all fit, or none can be narrower. */
function narrow(widths: number[], most: number): void {
  let excess = widths.reduce((sum, width) => sum + width, 0) - most
  for (; excess > 0; excess--) {
    const widest = Math.max(...widths)
    if (widest <= NARROWEST) return
    widths[widths.indexOf(widest)] = widest - 1
  }
}

/** A line of cells, each cut to the width of its column, without spaces at its end. */
function joined(cells: readonly Escaped[], widths: readonly number[], paint: Paint): string {
  const last = cells.findLastIndex(({ text }) => text !== '')
  return cells
    .slice(0, last + 1)
    .map(({ text, style }, column) => {
      const width = widths[column] ?? 0
      const cut = text.length > width ? `${text.slice(0, width - 1)}…` : text
      return painted({ text: cut, style }, paint) + (column === last ? '' : ' '.repeat(width - cut.length))
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
