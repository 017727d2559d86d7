/** What docs/operations/symptoms.md says of the codes of log lines, for `imdsctl explain CODE` and `imds-api explain CODE`. */
import { readFileSync } from 'node:fs'
import type { Output } from './output.ts'

const PAGE = readFileSync(new URL('../../docs/operations/symptoms.md', import.meta.url), 'utf8')
const ROW = /^- `(?<code>[a-z-]+)`: (?<meaning>.+) \*\*Guests\*\*: (?<guests>.+) \*\*Do\*\*: (?<remedy>.+)$/

/** A row of the page, without its links. `guests`: what they notice. */
export type Symptom = Readonly<Record<'code' | 'meaning' | 'guests' | 'remedy', string>>

/** The rows of the page, in its order. */
export function readSymptoms(): readonly Symptom[] {
  return PAGE.split(/\n(?:\n|(?=- ))/).flatMap((item) => {
    const text = item.replace(/\[([^\]]+)\]\([^)]+\)/g, '$1').replace(/\s+/g, ' ')
    return (ROW.exec(text.trim())?.groups as Symptom | undefined) ?? []
  })
}

/** Prints the row of a code. False: there is none. */
export function explainCode(output: Output, code: string): boolean {
  const found = readSymptoms().find((one) => one.code === code)
  if (found === undefined) return false
  if (output.json) output.printJson(found)
  else
    output.rows([
      [code, found.meaning],
      ['guests', found.guests],
      ['do', found.remedy],
    ])
  return true
}
