/** A table of text for people: aligned columns below a header. */
import { escapeControls } from './escape.ts'

/** Between two columns. */
const GAP = '  '
/** A column is not made narrower than this to fit a terminal. */
const NARROWEST = 8

/**
 * Formats a table as lines, the header first. `width`: that of the terminal, which the widest columns are cut to fit
 * (`…` marks a cut); undefined: nothing is cut. A text cannot begin another column or line.
 */
export function formatTable(
  header: readonly string[],
  rows: readonly (readonly string[])[],
  width: number | undefined,
): string[] {
  const all = [header, ...rows].map((cells) => cells.map((cell) => escapeControls(cell)))
  const widths = header.map((_name, column) => all.reduce((most, cells) => Math.max(most, lengthOf(cells, column)), 0))
  if (width !== undefined) narrow(widths, width - GAP.length * (widths.length - 1))
  return all.map((cells) =>
    cells
      .map((cell, column) => fit(cell, widths[column] ?? 0))
      .join(GAP)
      .trimEnd(),
  )
}

function lengthOf(cells: readonly string[], column: number): number {
  return cells[column]?.length ?? 0
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

function fit(cell: string, width: number): string {
  return cell.length > width ? `${cell.slice(0, width - 1)}…` : cell.padEnd(width)
}
