/** What one guest asked for since it last booted: the boot trace of `imdsctl trace`, as tables. */
import { markup, type Markup } from '../../../pages/markup.ts'
import { formatTable, number } from '../../../pages/table.ts'
import { formatAgo } from '../../../runtime/ago.ts'
import type { Trace } from '../documents.ts'

/** Formats a trace. `nowMs`: Unix time. */
export function formatBoot({ revision, publishedAt, boot, recent }: Trace, nowMs: number): Markup {
  const published =
    publishedAt === undefined ? 'published at an unknown time' : `published ${formatAgo(publishedAt, nowMs)}`
  const about = `Revision ${revision}, ${published}. `
  if (boot === undefined)
    return markup`<p>${about}Its guest has sent no request since the daemon started, or since it came here.</p>`
  const { firstRequestAt } = boot
  const offset = (at: string) => `+${((Date.parse(at) - Date.parse(firstRequestAt)) / 1000).toFixed(3)} s`
  const crawl = boot.crawlEndedAt === undefined ? '' : ` The crawl ended at ${offset(boot.crawlEndedAt)}.`
  return markup`<p>${about}${boot.recognised ? 'Booted' : 'No boot seen; first request'} at ${firstRequestAt} (${formatAgo(firstRequestAt, nowMs)}): ${boot.requests} requests, ${boot.withToken} with a session token.${crawl}</p>
<p>${boot.userAgents.length > 0 && 'User agents: '}${boot.userAgents.map((agent, i) => markup`${i > 0 && ', '}<code>${agent}</code>`)}</p>
${formatTable(
  ['topic', 'first', 'last', number('requests'), number('served')],
  boot.topics.map(({ topic, firstAt, lastAt, requests, served }) => [
    topic,
    offset(firstAt),
    offset(lastAt),
    requests,
    served,
  ]),
  'No request.',
)}
<h2>Its refusals</h2>
${formatTable(
  ['reason', number('status'), number('requests'), 'last'],
  boot.refusals.map(({ reason, status, requests, lastAt }) => [reason, status, requests, offset(lastAt)]),
  'None since it booted.',
)}
<h2>Its last requests</h2>
${formatTable(
  ['when', 'topic', number('status'), 'result'],
  recent.map(({ at, topic, status, reason }) => [formatAgo(at, nowMs), topic, status, reason]),
  'None.',
)}`
}
