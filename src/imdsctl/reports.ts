/** `imdsctl reports`: prints what the guest of an instance has reported, marked as its claim. */
import { QUESTIONS } from '../imdsd/operator/client.ts'
import type { ReportsDocument } from '../imdsd/operator/documents.ts'
import { formatAgo } from '../runtime/ago.ts'
import { CommandFailure, EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { askDaemon } from './ask-daemon.ts'
import { checkId } from './failure.ts'

/** Prints the reports of an instance that the daemon at `operator` serves. */
export async function reports(output: Output, id: string, operator: string): Promise<void> {
  checkId(id)
  const read = await askDaemon(
    operator,
    QUESTIONS.reports(id),
    new CommandFailure(
      EXIT.notFound,
      `the daemon at ${operator} does not serve ${id}: ask on the hypervisor of its record`,
      { id },
    ),
  )
  output.result(read, formatReports(read, Date.now()))
}

/** Reports as text. The texts are quoted here; the output escapes their control characters. */
function formatReports({ id, allowed, claimedByGuest }: ReportsDocument, nowMs: number): string {
  const { reports: all, knownHosts } = claimedByGuest
  if (all.length === 0)
    return allowed
      ? `${id}: its guest has reported nothing`
      : `${id}: its guest may not report: set options.reports to enabled in its record`
  return [
    `${id}: what its guest claims, which nothing verifies`,
    ...all.map(
      ({ name, text, receivedAt }) => `${name}: ${JSON.stringify(text)}, received ${formatAgo(receivedAt, nowMs)}`,
    ),
    ...(knownHosts.length === 0 ? [] : ['its SSH host keys, as lines of known_hosts:', ...knownHosts]),
  ].join('\n')
}
