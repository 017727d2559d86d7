/**
 * The report of the firewall agent to the daemon: which rules are applied, the interfaces that nft refuses, which the
 * agent leaves out, and the counters of the rules.
 */
import { COUNTERS, parsePackets, type Packets } from './counters.ts'

export interface FirewallRefusal {
  readonly instance: string
  readonly interface: string
  readonly message: string
}

/**
 * `applied`: the version of the document that the rules are made from; undefined when none are applied. `packets`:
 * undefined if they were not counted.
 */
export interface AgentReport {
  readonly applied: string | undefined
  readonly refused: readonly FirewallRefusal[]
  readonly packets: Packets | undefined
}

/** The most interfaces that are left out. If nft refuses more, the fault is not in the interfaces. */
export const MAX_REFUSED = 16
const MAX_CHARACTERS = 160
/** The most bytes of a report: a character takes 6 bytes at most (`\u0000`), beside the names of the fields. */
export const MAX_REPORT_BYTES = (MAX_REFUSED * 3 + 1) * (MAX_CHARACTERS * 6 + 64) + COUNTERS.length * 64

export function formatReport({ applied, refused, packets }: AgentReport): string {
  return JSON.stringify({
    applied: applied ?? null,
    refused: refused.map((one) => ({ ...one, message: one.message.slice(0, MAX_CHARACTERS) })),
    packets,
  })
}

/** Parses the body of a request; undefined if it is not a report. */
export function parseReport(body: unknown): AgentReport | undefined {
  if (typeof body !== 'object' || body === null) return undefined
  const { applied, refused, packets } = body as Readonly<Record<string, unknown>>
  if (
    !(applied === null || isText(applied)) ||
    !Array.isArray(refused) ||
    refused.length > MAX_REFUSED ||
    !refused.every(isRefusal)
  )
    return undefined
  return {
    applied: applied ?? undefined,
    refused: refused.map(({ instance, interface: id, message }) => ({ instance, interface: id, message })),
    packets: parsePackets(packets),
  }
}

function isRefusal(value: unknown): value is FirewallRefusal {
  if (typeof value !== 'object' || value === null) return false
  const { instance, interface: id, message } = value as Readonly<Record<string, unknown>>
  return [instance, id, message].every(isText)
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.length <= MAX_CHARACTERS
}
