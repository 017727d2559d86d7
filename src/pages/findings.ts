/** Findings of checks: what is well, what somebody should look at, and the remedy. */
import type { CheckResult } from '../runtime/check.ts'
import { formatState } from './document.ts'
import { markup, type Markup } from './markup.ts'
import { formatTable } from './table.ts'

export function formatFindings(findings: readonly CheckResult[]): Markup {
  return formatTable(
    ['check', 'state', 'finding'],
    findings.map(({ check, ...finding }) => [
      check,
      formatState(finding.state),
      markup`<span>${finding.text}${finding.state !== 'ok' && markup`<br><span class="soft">Remedy: ${finding.remedy}</span>`}</span>`,
    ]),
    'Nothing was checked.',
  )
}
