/** Tables and lists of values in a page. */
import { markup, type Markup, type Value } from './markup.ts'

/** A column: its name, and whether its cells are aligned to the right. */
export interface Column {
  readonly name: string
  readonly isNumber: boolean
}

/** A column whose cells are aligned to the right. */
export function number(name: string): Column {
  return { name, isNumber: true }
}

/** Formats a table. `none`: what is shown if it has no rows. */
export function formatTable(
  given: readonly (string | Column)[],
  rows: readonly (readonly Value[])[],
  none: string,
): Markup {
  if (rows.length === 0) return markup`<p class="soft">${none}</p>`
  const columns = given.map((column) => (typeof column === 'string' ? { name: column, isNumber: false } : column))
  const side = (column: Column | undefined) => column?.isNumber === true && markup` class="number"`
  return markup`<table>
<thead><tr>${columns.map((column) => markup`<th${side(column)}>${column.name}</th>`)}</tr></thead>
<tbody>
${rows.map(
  (cells) =>
    markup`<tr>${cells.map((cell, i) => markup`<td${side(columns[i])} data-of="${columns[i]?.name}">${cell}</td>`)}</tr>
`,
)}</tbody>
</table>`
}

export function formatFacts(facts: readonly (readonly [name: string, value: Value])[]): Markup {
  return markup`<dl>${facts.map(([name, value]) => markup`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
}
