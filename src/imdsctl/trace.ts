/** `imdsctl trace`: prints what a guest asked for since it last booted, as a time line. */
import { QUESTIONS } from '../imdsd/operator/client.ts'
import type { Trace } from '../imdsd/operator/documents.ts'
import { formatAgo } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import type { Cell } from '../runtime/terminal.ts'
import { askDaemon } from './ask-daemon.ts'
import { checkId } from './failure.ts'

/** Prints the boot trace of an instance that the daemon at `operator` serves. */
export async function trace(output: Output, id: string, operator: string): Promise<void> {
  checkId(id)
  const read = await askDaemon(
    operator,
    QUESTIONS.trace(id),
    new CommandFailure(
      EXIT.notFound,
      `the daemon at ${operator} does not serve ${id}: ask on the hypervisor of its record`,
      { id },
    ),
  )
  if (output.json) {
    output.printJson(read)
    return
  }
  const { title, events } = formatTrace(read, Date.now())
  output.print(title.join('\n'))
  output.rows(events)
}

/** A trace as text: lines, and the rows of the time line. User agents are quoted here; the output escapes their control characters. */
export function formatTrace(
  { id, revision, publishedAt, boot }: Trace,
  nowMs: number,
): { readonly title: readonly string[]; readonly events: readonly (readonly Cell[])[] } {
  const published =
    publishedAt === undefined
      ? 'published at an unknown time'
      : `published at ${publishedAt}, ${formatAgo(publishedAt, nowMs)}`
  const instance = `${id}, revision ${revision}, ${published}`
  if (boot === undefined)
    return {
      title: [instance, 'its guest has sent no request since the daemon started, or since it came here'],
      events: [],
    }
  const { firstRequestAt, requests, withToken, userAgents } = boot
  const offset = (at: string) => `+${((Date.parse(at) - Date.parse(firstRequestAt)) / 1000).toFixed(3)} s`
  const events = [
    ...boot.topics.map(({ topic, requests: count, served, firstAt, lastAt }) => ({
      at: firstAt,
      what: topic,
      text: `${plural(count)}, ${served === count ? 'served' : `${served} served`}${until(firstAt, lastAt)}`,
    })),
    ...boot.refusals.map(({ reason, status, requests: count, lastAt }) => ({
      at: lastAt,
      what: { text: `${status} ${reason}`, style: 'yellow' as const },
      text: `${plural(count)} refused, the last one now`,
    })),
    ...(boot.crawlEndedAt === undefined ? [] : [{ at: boot.crawlEndedAt, what: 'end of the crawl', text: '' }]),
    { at: boot.lastRequestAt, what: 'last request', text: formatAgo(boot.lastRequestAt, nowMs) },
  ].sort((a, b) => Date.parse(a.at) - Date.parse(b.at))
  const offsets = Math.max(...events.map(({ at }) => offset(at).length))
  return {
    title: [
      instance,
      `${boot.recognised ? 'booted' : 'no boot seen, first request'} at ${firstRequestAt}, ${formatAgo(firstRequestAt, nowMs)}: ${plural(requests)}, ${withToken} with a session token`,
      ...userAgents.map((agent) => `user agent ${JSON.stringify(agent)}`),
    ],
    events: events.map(({ at, what, text }) => [offset(at).padStart(offsets), what, text]),
  }

  function until(firstAt: string, lastAt: string): string {
    return firstAt === lastAt ? '' : `, until ${offset(lastAt)}`
  }
}

function plural(count: number): string {
  return count === 1 ? '1 request' : `${count} requests`
}
