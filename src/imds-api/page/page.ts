/**
 * The status page of a region: whether it is well, its hypervisors, what waits to be published, the servers that the
 * store refuses, and its pools. It has no user-data, key, token or mail address, and of a server only
 * its id, its account and why the store refuses it.
 */
import { formatConditions } from '../../conditions/page.ts'
import { formatDocument } from '../../pages/document.ts'
import { markup, type Markup } from '../../pages/markup.ts'
import { formatSearch, partOf, type Question } from '../../pages/search.ts'
import { formatTable, number } from '../../pages/table.ts'
import { worstOf } from '../../runtime/check.ts'
import { readConditions, shareOf, type ServiceStateParts } from '../conditions/table.ts'
import type { RegionState } from '../conditions/region-state.ts'
import { cellsOf, HYPERVISOR_COLUMNS } from '../publish/hypervisors.ts'

const NUMBERS = ['servers', 'free MB', 'of MB', 'instances', 'lag']

/** What the page shows. */
export interface RegionPageParts extends ServiceStateParts {
  readonly version: string
}

/** Formats the page that a question wants. While the database does not answer, it says so. */
export async function formatRegionPage(parts: RegionPageParts, question: Question): Promise<string> {
  const { version, nowMs } = parts
  const { region, found } = await readConditions(parts)
  return formatDocument({
    title: region === undefined ? 'imds-api' : `imds-api of ${region.region}`,
    state: worstOf(found),
    about: `imds-api ${version}; ${new Date(nowMs()).toISOString()}`,
    sections: [
      ['Health', formatConditions(found)],
      ...(region === undefined
        ? []
        : ([
            ['Hypervisors', formatHypervisors(region, question, nowMs())],
            ['Servers that the store refuses', formatRefused(region)],
            ['Pools', formatPools(region)],
          ] as const)),
    ],
  })
}

function formatHypervisors({ hypervisors }: RegionState, question: Question, nowMs: number): Markup {
  const text = question.search.toLowerCase()
  const found = hypervisors.hypervisors.filter(({ name, zone }) => `${name} ${zone}`.toLowerCase().includes(text))
  const part = partOf(found, question)
  return markup`${formatSearch(question, part, 'a hypervisor or a zone')}${formatTable(
    HYPERVISOR_COLUMNS.map((name) => (NUMBERS.includes(name) ? number(name) : name)),
    part.rows.map((one) => cellsOf(one, nowMs)),
    question.search === '' ? 'The region has no hypervisor.' : 'No hypervisor is found.',
  )}`
}

function formatRefused({ refused, outbox }: RegionState): Markup {
  const unnamed = outbox.faulty - refused.length
  return markup`${formatTable(
    ['server', 'account', 'why'],
    refused.map(({ id, account, fault }) => [id, account, fault]),
    'None.',
  )}${unnamed > 0 && markup`<p class="soft">And ${unnamed} more.</p>`}`
}

function formatPools({ pools }: RegionState): Markup {
  return formatTable(
    ['pool', 'addresses of', number('used'), number('size'), number('full')],
    pools.map((pool) => [
      pool.range,
      pool.kind.replaceAll('_', ' '),
      pool.used,
      pool.size,
      `${(shareOf(pool) * 100).toFixed(1)} %`,
    ]),
    'The region has no pool.',
  )
}
