/** The difference between a row of the region file and that of the database. Pure. */

/** A row of any table, by its columns. */
export type Row = Readonly<Record<string, unknown>>

/** The columns of `wanted` that have another value in `current`. `kept`: columns that do not count. */
export function changedColumns(wanted: Row, current: Row, kept: readonly string[]): readonly string[] {
  return Object.keys(wanted).filter(
    (column) => !kept.includes(column) && text(wanted[column]) !== text(current[column]),
  )
}

/** Describes the changes of these columns, without secrets: `ram 1024 -> 2048, secret`. */
export function describeChanges(columns: readonly string[], current: Row, wanted: Row): string {
  const changes = columns.map((column) => {
    if (/^(former_)?secret/.test(column)) return 'secret'
    if (/^(password|totp)/.test(column)) return column
    return `${column} ${text(current[column])} -> ${text(wanted[column])}`
  })
  return [...new Set(changes)].join(', ')
}

/** The value of a column as text. Equal texts are equal values, since a column has values of one type. */
function text(value: unknown): string {
  if (value instanceof Date) return value.toISOString()
  if (Buffer.isBuffer(value)) return value.toString('hex')
  return String(value)
}
