/** `explain CODE`: what a code of the log, of an alert or of a check means. */
import type { Output } from '../runtime/output.ts'
import type { Meaning } from './condition.ts'

/** Prints the row of a code. False: there is none. */
export function explainCode(output: Output, table: readonly Meaning[], code: string): boolean {
  const row = table.find((candidate) => candidate.code === code)
  if (row === undefined) return false
  const { what, guests, remedy } = row
  if (output.json) output.printJson({ code, what, guests, remedy })
  else
    output.rows([
      [code, what],
      ['guests', guests],
      ['do', remedy],
    ])
  return true
}
