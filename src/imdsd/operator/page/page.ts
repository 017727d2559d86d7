/**
 * The status page of a hypervisor: whether it is well, its view and store, what its guests asked for, and its instances.
 *
 * It has ids, addresses, counts, times and user agents. It has no user-data, no key and no token, and of a record only
 * its id, revision and addresses.
 */
import { formatDocument } from '../../../pages/document.ts'
import { formatConditions } from '../../../conditions/page.ts'
import { worstOf } from '../../../runtime/check.ts'
import { markup, type Markup } from '../../../pages/markup.ts'
import type { Question } from '../../../pages/search.ts'
import { formatFacts, formatTable, number } from '../../../pages/table.ts'
import { formatAgo, formatDuration } from '../../../runtime/ago.ts'
import type { View } from '../../view/view.ts'
import type { AskedFor, Readiness } from '../documents.ts'
import { readinessFacts } from '../readiness.ts'
import { requestsOf, type RequestsParts } from '../requests.ts'
import type { History } from './history.ts'
import { formatInstances } from './instances.ts'
import { formatRefusals, formatTraffic } from './traffic.ts'

interface PageParts extends RequestsParts {
  readonly view: Pick<View, 'get' | 'instances'>
  readonly hypervisor: string | undefined
  readonly startedMs: number
  readonly networks: readonly string[]
  readonly readiness: () => Readiness
  readonly history: Pick<History, 'intervals' | 'refusals'>
}

export async function formatPage(parts: PageParts, question: Question): Promise<string> {
  const { hypervisor, startedMs, history, view, requests, now, wall } = parts
  const state = parts.readiness()
  const nowMs = now()
  const found = view.get(question.search)
  const instances = await formatInstances({ instances: view.instances(), requests, nowMs }, question)
  return formatDocument({
    title: hypervisor === undefined ? 'imds' : `imds on ${hypervisor}`,
    state: worstOf(state.conditions),
    about: `imdsd ${state.version}, started ${formatDuration((nowMs - startedMs) / 1000)} ago; ${new Date(wall()).toISOString()}`,
    sections: [
      [
        'Health',
        markup`${formatConditions(state.conditions)}
<p class="soft">On this hypervisor, <code>sudo imdsctl doctor</code> also checks its units, ports, files, links, store and clock.</p>`,
      ],
      ['View and store', formatFacts([...readinessFacts(state), ['networks', parts.networks.join(', ')]])],
      ['Requests of guests', formatTraffic(history, nowMs)],
      ['Refusals', formatRefusals(history)],
      ['Instances', instances],
      ...(found === undefined
        ? []
        : [[`Requests of ${found.instance.id}`, formatRequests(requestsOf(parts, found), wall())] as const]),
    ],
  })
}

/** What the guest of an instance has asked for. `nowMs`: Unix time. */
function formatRequests(requests: readonly AskedFor[], nowMs: number): Markup {
  return formatTable(
    ['kind of path', 'last', number('status'), 'result', number('times'), 'user agent'],
    requests.map(({ topic, at, status, reason, count, userAgent = '' }) => [
      topic,
      formatAgo(at, nowMs),
      status,
      reason,
      count,
      userAgent,
    ]),
    'None since the daemon started, or since it came here.',
  )
}
