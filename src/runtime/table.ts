/** Tables of text for people, with aligned columns. */
import { escapeControls } from './escape.ts'
import type { Cell, Paint, Style } from './terminal.ts'

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
  const indent = widths.slice(0, -1).reduce((sum, one) => sum + one + GAP.length, 0)
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
