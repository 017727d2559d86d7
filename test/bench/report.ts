/** The tables of the benchmarks. */
import { cpus } from 'node:os'

/** Figures with a title and column names. `notes` explain how they were measured. */
export interface Table {
  readonly title: string
  readonly columns: readonly string[]
  readonly rows: readonly (readonly string[])[]
  readonly notes: readonly string[]
}

/** The machine that the figures were measured on. */
export function machine(): string {
  return `${cpus()[0]?.model ?? 'unknown CPU'}, ${cpus().length} cores, ${process.platform} ${process.arch}, Node ${process.versions.node}`
}

/** A table as text: the first column is aligned left, figures right. */
export function formatText({ title, columns, rows, notes }: Table): string {
  const widths = columns.map((column, c) => Math.max(column.length, ...rows.map((row) => (row[c] ?? '').length)))
  const line = (cells: readonly string[]) =>
    widths.map((width, c) => (c === 0 ? (cells[c] ?? '').padEnd(width) : (cells[c] ?? '').padStart(width))).join('  ')
  return [
    title,
    line(columns),
    widths.map((width) => '-'.repeat(width)).join('  '),
    ...rows.map(line),
    ...notes.map((note) => `* ${note}`),
    '',
  ].join('\n')
}

/** A quantile of the values, interpolated: a share of 0.5 is the median. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  const at = (sorted.length - 1) * share
  const low = sorted[Math.floor(at)] ?? NaN
  return low + (at - Math.floor(at)) * ((sorted[Math.ceil(at)] ?? NaN) - low)
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5)
}
