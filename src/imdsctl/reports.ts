/**
 * `imdsctl reports`: prints what the guest of an instance has reported, marked as its claim.
 */
import { ID_RULE, isId } from '../metadata/identifiers.ts'
import { getReports, valueOf } from '../imdsd/operator/client.ts'
import type { ReportsDocument } from '../imdsd/operator/documents.ts'
import { formatAgo } from '../runtime/ago.ts'
import { EXIT } from '../runtime/exit-status.ts'
import type { Output } from '../runtime/output.ts'
import { CommandFailure } from './failure.ts'

const TIMEOUT_MS = 5_000

/** Prints the reports of an instance that the daemon at `operator` serves. */
export async function reports(output: Output, id: string, operator: string): Promise<void> {
  if (!isId(id)) throw new CommandFailure(EXIT.usage, `"${String(id)}" is not ${ID_RULE}`)
  const got = await getReports(operator, id, AbortSignal.timeout(TIMEOUT_MS))
  if (got.kind === 'refused' && got.status === 404)
    throw new CommandFailure(
      EXIT.notFound,
      `the daemon at ${operator} does not serve ${id}, or has no reports on this listener: ` +
        'ask on the hypervisor of its record, by the unix socket',
      { id },
    )
  const read = valueOf(got, operator)
  if (!read.ok) throw new CommandFailure(EXIT.unavailable, read.faults.join())
  output.result(read.value, formatReports(read.value, Date.now()))
}

/** Reports as text. Values of attributes are quoted here; the output escapes their control characters. */
export function formatReports({ id, allowed, claimedByGuest }: ReportsDocument, nowMs: number): string {
  const { boot, sshHostKeys, attributes } = claimedByGuest
  const knownHosts = sshHostKeys?.knownHosts ?? []
  const lines = [
    ...(boot === undefined
      ? []
      : [
          `boot: ${boot.phase}${boot.time === undefined ? '' : ` at ${boot.time} by its clock`}, ` +
            `received ${formatAgo(boot.receivedAt, nowMs)}`,
        ]),
    ...(sshHostKeys === undefined
      ? []
      : [
          `SSH host keys, received ${formatAgo(sshHostKeys.receivedAt, nowMs)}:`,
          ...(knownHosts.length > 0 ? knownHosts : ['none of a known type']),
        ]),
    ...attributes.map(
      ({ name, value, receivedAt }) =>
        `attribute ${name}: ${JSON.stringify(value)}, received ${formatAgo(receivedAt, nowMs)}`,
    ),
  ]
  if (lines.length > 0) return [`${id}: what its guest claims, which nothing verifies`, ...lines].join('\n')
  return allowed
    ? `${id}: its guest has reported nothing`
    : `${id}: its guest may not report: set options.reports to enabled in its record`
}
