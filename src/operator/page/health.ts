/** What the checks of `imdsctl doctor` find from inside the daemon, and what they cannot see from there. */
import { formatLevel, type Level } from '../../pages/document.ts'
import { markup, type Markup } from '../../pages/markup.ts'
import { formatTable } from '../../pages/table.ts'

/** `results`: the findings. `unchecked`: what the daemon cannot look at. */
export interface Health {
  readonly results: readonly {
    readonly check: string
    readonly state: Level
    readonly text: string
    readonly remedy?: string
  }[]
  readonly unchecked: readonly string[]
}

/** Formats the findings. */
export function formatHealth({ results, unchecked }: Health): Markup {
  return markup`${formatTable(
    [{ name: 'check' }, { name: 'state' }, { name: 'finding' }],
    results.map(({ check, state, text, remedy }) => [
      check,
      formatLevel(state),
      markup`<span>${text}${remedy !== undefined && markup`<br><span class="soft">Remedy: ${remedy}</span>`}</span>`,
    ]),
    'Nothing was checked.',
  )}
<p class="soft">The daemon cannot check these: ${unchecked.join(', ')}. On this hypervisor, run <code>sudo imdsctl doctor</code>.</p>`
}
