/** Conditions on a status page. */
import { formatState } from '../pages/document.ts'
import { markup, type Markup } from '../pages/markup.ts'
import { formatTable } from '../pages/table.ts'
import type { FoundCondition } from './condition.ts'

export function formatConditions(found: readonly FoundCondition[]): Markup {
  return formatTable(
    ['condition', 'severity', 'what is the matter'],
    found.map(({ code, severity, text, remedy }) => [
      code,
      formatState(severity),
      markup`<span>${text}<br><span class="soft">Remedy: ${remedy}</span></span>`,
    ]),
    'Nothing is wrong.',
  )
}
