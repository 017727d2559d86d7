/** Findings of checks: what is well, what somebody should look at, and the remedy. */
import { formatLevel, type Level } from './document.ts'
import { markup, type Markup } from './markup.ts'
import { formatTable } from './table.ts'

/** A finding. */
export interface PageFinding {
  readonly check: string
  readonly state: Level
  readonly text: string
  readonly remedy?: string
}

/** Formats findings as a table. */
export function formatFindings(findings: readonly PageFinding[]): Markup {
  return formatTable(
    [{ name: 'check' }, { name: 'state' }, { name: 'finding' }],
    findings.map(({ check, state, text, remedy }) => [
      check,
      formatLevel(state),
      markup`<span>${text}${remedy !== undefined && markup`<br><span class="soft">Remedy: ${remedy}</span>`}</span>`,
    ]),
    'Nothing was checked.',
  )
}
