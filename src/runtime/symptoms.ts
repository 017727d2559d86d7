/**
 * What docs/operations says of the codes of log lines (symptoms.md) and of the alerts (alerts.md), for `imdsctl explain
 * NAME` and `imds-api explain NAME`.
 */
import { readFileSync } from 'node:fs'
import { nearest } from './variables.ts'
import type { Output } from './output.ts'

const PAGE = readFileSync(new URL('../../docs/operations/symptoms.md', import.meta.url), 'utf8')
const ALERTS = readFileSync(new URL('../../docs/operations/alerts.md', import.meta.url), 'utf8')
const ROW = /^- `(?<code>[a-z-]+)`: (?<meaning>.+) \*\*Guests\*\*: (?<guests>.+) \*\*Do\*\*: (?<remedy>.+)$/

/** A row of the page, without its links. `guests`: what they notice. */
export type Symptom = Readonly<Record<'code' | 'meaning' | 'guests' | 'remedy', string>>

/** The rows of the page, in its order. */
export function readSymptoms(): readonly Symptom[] {
  return PAGE.split(/\n(?:\n|(?=- ))/).flatMap((item) => {
    return (ROW.exec(onOneLine(item))?.groups as Symptom | undefined) ?? []
  })
}

/** The paragraph of each alert, by its name. */
export function readAlerts(): ReadonlyMap<string, string> {
  return new Map(
    ALERTS.split(/^### /m)
      .slice(1)
      .map((part) => part.split(/\n(?:\n|#)/) as [string, string])
      .map(([name, paragraph]) => [name, onOneLine(paragraph).replaceAll('**', '')]),
  )
}

/** The text of some lines, without links. */
function onOneLine(text: string): string {
  return text
    .replace(/\[([^\]]+)\]\([^)]+\)/g, '$1')
    .replace(/\s+/g, ' ')
    .trim()
}

/** Prints the row of a code, or the paragraph of an alert. False: there is none. */
export function explainCode(output: Output, code: string): boolean {
  const found = readSymptoms().find((one) => one.code === code)
  const alert = readAlerts().get(code)
  if (found === undefined && alert === undefined) return false
  if (output.json) output.printJson(found ?? { alert: code, text: alert })
  else
    output.rows(
      found === undefined
        ? [[code, alert!]]
        : [
            [code, found.meaning],
            ['guests', found.guests],
            ['do', found.remedy],
          ],
    )
  return true
}

/** The code or alert that a misspelt name was meant to be; undefined if none is near. */
export function nearestCode(name: string): string | undefined {
  return nearest(name, [...readSymptoms().map(({ code }) => code), ...readAlerts().keys()])
}
