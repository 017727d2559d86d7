/** The report of the firewall agent to the daemon: which rules are applied, and the counters of the rules. */
import { COUNTERS, parsePackets, type Packets } from './counters.ts'

/**
 * `applied`: the version of the document whose rules the kernel has, as the agent has just seen; undefined: of none, or
 * another program has changed them. `failed`: why newer rules cannot be applied. `packets`: undefined if they were not
 * counted.
 */
export interface AgentReport {
  readonly applied: string | undefined
  readonly failed: string | undefined
  readonly packets: Packets | undefined
}

const MAX_CHARACTERS = 320
/** The most bytes of a report: a character takes 6 bytes at most (`\u0000`), beside the names of the fields. */
export const MAX_REPORT_BYTES = 2 * (MAX_CHARACTERS * 6 + 64) + COUNTERS.length * 64

export function formatReport({ applied, failed, packets }: AgentReport): string {
  return JSON.stringify({ applied: applied ?? null, failed: failed?.slice(0, MAX_CHARACTERS), packets })
}

/** Parses the body of a request; undefined if it is not a report. */
export function parseReport(body: unknown): AgentReport | undefined {
  if (typeof body !== 'object' || body === null) return undefined
  const { applied, failed, packets } = body as Readonly<Record<string, unknown>>
  if (!(applied === null || isText(applied)) || !(failed === undefined || isText(failed))) return undefined
  return { applied: applied ?? undefined, failed, packets: parsePackets(packets) }
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.length <= MAX_CHARACTERS
}
