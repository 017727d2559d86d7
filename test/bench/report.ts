/**
 * How are figures shown?
 *
 * A part gives tables; they are printed for a terminal, or as Markdown for docs/performance.md.
 */
import { cpus } from 'node:os'

/** Figures with a title, the names of the columns, and what a reader must know to read them. */
export interface Table {
  readonly title: string
  readonly columns: readonly string[]
  readonly rows: readonly (readonly string[])[]
  readonly notes: readonly string[]
}

/** What the figures were measured on. */
export function machine(): string {
  return `${cpus()[0]?.model ?? 'unknown CPU'}, ${String(cpus().length)} cores, ${process.platform} ${process.arch}, Node ${process.versions.node}`
}

/** A table as text: the first column to the left, figures to the right. */
export function asText({ title, columns, rows, notes }: Table): string {
  const widths = columns.map((column, c) => Math.max(column.length, ...rows.map((row) => (row[c] ?? '').length)))
  const line = (cells: readonly string[]) => widths.map((width, c) => c === 0 ? (cells[c] ?? '').padEnd(width) : (cells[c] ?? '').padStart(width)).join('  ')
  return [title, line(columns), widths.map((width) => '-'.repeat(width)).join('  '), ...rows.map(line), ...notes.map((note) => `* ${note}`), ''].join('\n')
}

/** A table as Markdown. */
export function asMarkdown({ title, columns, rows, notes }: Table): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  const rule = columns.map((_column, c) => c === 0 ? '---' : '---:')
  return [`**${title}**`, '', line(columns), line(rule), ...rows.map(line), '', ...notes.map((note) => `- ${note}`), ''].join('\n')
}

/** The value below which a share of the values lies: 0.5 is the median. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (sorted.length - 1) * share
  const low = sorted[Math.floor(at)] ?? NaN
  return low + (at - Math.floor(at)) * ((sorted[Math.ceil(at)] ?? NaN) - low)
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}
