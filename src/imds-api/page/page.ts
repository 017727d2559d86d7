/**
 * The status page of a region: whether it is well, its hypervisors, what waits to be published, the servers that the
 * store refuses, its pools, and mail that fails. It has no user-data, key, token or mail address, and of a server only
 * its id, its account and why the store refuses it.
 */
import { formatDocument } from '../../pages/document.ts'
import { formatFindings } from '../../pages/findings.ts'
import { markup, type Markup } from '../../pages/markup.ts'
import { formatSearch, partOf, type Question } from '../../pages/search.ts'
import { formatTable, number } from '../../pages/table.ts'
import { formatAgo, formatDuration } from '../../runtime/ago.ts'
import { failure, worstOf, type CheckResult } from '../../runtime/check.ts'
import { findingsOf, shareOf, type Publishing } from './findings.ts'
import type { RegionState } from './region-state.ts'

/** What the page shows. `nowMs`: Unix time. */
export interface RegionPageParts {
  readonly version: string
  readonly state: () => Promise<RegionState>
  readonly publishing: Publishing
  readonly nowMs: () => number
}

/** Reads the state, and what is found in it. `read` undefined: the database does not answer, which is the finding. */
export async function readFindings({ state, publishing, nowMs }: Omit<RegionPageParts, 'version'>): Promise<{
  readonly read: RegionState | undefined
  readonly findings: readonly CheckResult[]
}> {
  try {
    const read = await state()
    return { read, findings: findingsOf(read, publishing, nowMs()) }
  } catch (error) {
    const remedy = 'start PostgreSQL, or correct IMDS_API_DATABASE: imds-api explain database-unreachable'
    const finding = failure(`the database does not answer: ${(error as Error).message}`, remedy)
    return { read: undefined, findings: [{ check: 'database', ...finding }] }
  }
}

/** Formats the page that a question wants. While the database does not answer, it says so. */
export async function formatRegionPage(parts: RegionPageParts, question: Question): Promise<string> {
  const { version, nowMs } = parts
  const { read, findings } = await readFindings(parts)
  return formatDocument({
    title: read === undefined ? 'imds-api' : `imds-api of ${read.region}`,
    state: worstOf(findings),
    about: `imds-api ${version}; ${new Date(nowMs()).toISOString()}`,
    sections: [
      ['Health', formatFindings(findings)],
      ...(read === undefined
        ? []
        : ([
            ['Hypervisors', formatHypervisors(read, question, nowMs())],
            ['Servers that the store refuses', formatRefused(read)],
            ['Pools', formatPools(read)],
            ['Mail that fails', formatMail(read)],
          ] as const)),
    ],
  })
}

function formatHypervisors({ hypervisors }: RegionState, question: Question, nowMs: number): Markup {
  const text = question.search.toLowerCase()
  const found = hypervisors.hypervisors.filter(({ name, zone }) => `${name} ${zone}`.toLowerCase().includes(text))
  const part = partOf(found, question)
  const rows = part.rows.map(({ name, zone, announced, servers, free, ram, drained_at }) => [
    name,
    zone,
    announced?.version ?? '–',
    servers,
    announced?.instances ?? '–',
    announced?.lagSeconds === undefined ? '–' : formatDuration(announced.lagSeconds),
    `${free} of ${ram} MB`,
    drained_at === null ? 'no' : formatAgo(drained_at.toISOString(), nowMs),
    announced === undefined ? 'never' : formatAgo(announced.seenAt, nowMs),
  ])
  return markup`${formatSearch(question, part, 'a hypervisor or a zone')}${formatTable(
    [
      'hypervisor',
      'zone',
      'version',
      number('servers'),
      number('instances'),
      number('lag'),
      number('free RAM'),
      'drained',
      'last seen',
    ],
    rows,
    question.search === '' ? 'The region has no hypervisor.' : 'No hypervisor is found.',
  )}`
}

function formatRefused({ refused, outbox }: RegionState): Markup {
  const more = outbox.faulty - refused.length
  return markup`${formatTable(
    ['server', 'account', 'why'],
    refused.map(({ id, account, fault }) => [id, account, fault]),
    'None.',
  )}${more > 0 && markup`<p class="soft">And ${more} more.</p>`}`
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

function formatMail({ postponed, invitations }: RegionState): Markup {
  return markup`${formatTable(
    ['invitation', 'why'],
    postponed.map(({ id, reason }) => [id, reason]),
    'None.',
  )}
<p class="soft">${invitations} invitations wait to be sent.</p>`
}
