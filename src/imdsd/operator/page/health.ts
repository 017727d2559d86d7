/** What the checks of `imdsctl doctor` find from inside the daemon, and what they cannot see from there. */
import { formatFindings, type PageFinding } from '../../../pages/findings.ts'
import { markup, type Markup } from '../../../pages/markup.ts'

/** `results`: the findings. `unchecked`: what the daemon cannot look at. */
export interface Health {
  readonly results: readonly PageFinding[]
  readonly unchecked: readonly string[]
}

export function formatHealth({ results, unchecked }: Health): Markup {
  return markup`${formatFindings(results)}
<p class="soft">The daemon cannot check these: ${unchecked.join(', ')}. On this hypervisor, run <code>sudo imdsctl doctor</code>.</p>`
}
