/** The client of a daemon's operator API. It validates the documents that it receives. */
import type { Static, TSchema } from 'typebox'
import Value from 'typebox/value'
import { EXIT, Failure } from '../runtime/failure.ts'
import { formatRefusals, type FirewallRefusal } from '../firewall/refusal.ts'
import { parseFirewallDocument, type FirewallDocument } from '../firewall/document.ts'
import { ExplanationSchema, InstanceStateSchema, type Explanation, type InstanceState } from './api.ts'
import { PATHS } from './paths.ts'

/** `refused`: an answer without a valid document, or with a status that has none. `unreachable`: there was no answer, for this reason. */
export type Answer<T> =
  | { readonly kind: 'answered', readonly status: number, readonly value: T }
  | { readonly kind: 'refused', readonly status: number }
  | { readonly kind: 'unreachable', readonly reason: string }
  | { readonly kind: 'timeout' }

/** The document of an answer. Throws a Failure with exit status 69 that says what the daemon at `operator` answered instead. */
export function valueOf<T>(answer: Answer<T>, operator: string): T {
  switch (answer.kind) {
    case 'answered': return answer.value
    case 'refused': throw new Failure(EXIT.unavailable, `the daemon at ${operator} answered with status ${String(answer.status)}${answer.status === 200 ? ' and a document that this version cannot read' : ''}`)
    case 'timeout': throw new Failure(EXIT.unavailable, `the daemon at ${operator} does not answer`)
    case 'unreachable': throw new Failure(EXIT.unavailable, `the daemon at ${operator} cannot be reached: ${answer.reason}`)
  }
}

/** Asks the launch gate for an instance. `withReason`: also why the instance is not served as the store has it, which may ask the store. */
export function getInstanceState(base: string, id: string, withReason: boolean, signal: AbortSignal): Promise<Answer<InstanceState>> {
  const path = PATHS.instance.replace(':id', encodeURIComponent(id))
  return get(base, path, withReason ? { reason: '' } : {}, [200, 404, 409], parserOf(InstanceStateSchema), signal)
}

/** Asks what a guest at an address would get. Status 400: it is not an address. */
export function getExplanation(base: string, network: string, address: string, signal: AbortSignal): Promise<Answer<Explanation>> {
  return get(base, PATHS.explain, { address, network }, [200], parserOf(ExplanationSchema), signal)
}

/** The report of the firewall agent with its request: the version that its rules are made from (undefined for none), and the interfaces that it left out. */
export interface AgentReport { readonly applied: string | undefined, readonly refused: readonly FirewallRefusal[] }

/**
 * Asks for the firewall's document. With a report the daemon answers once it has another version than the applied one, or after 5 s.
 * Status 503: the daemon has none yet.
 */
export function getFirewallDocument(base: string, report: AgentReport | undefined, signal: AbortSignal): Promise<Answer<FirewallDocument>> {
  const applied = report?.applied ?? '' // an empty version reports that no rules are applied
  const query: Record<string, string> = report === undefined ? {} : { after: applied, applied, refused: formatRefusals(report.refused) }
  return get(base, PATHS.firewall, query, [200], parseFirewallDocument, signal)
}

async function get<T>(
  base: string, path: string, query: Readonly<Record<string, string>>, statuses: readonly number[],
  parse: (body: unknown) => T | undefined, signal: AbortSignal,
): Promise<Answer<T>> {
  try {
    const url = new URL(path, base)
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value)
    const response = await fetch(url, { signal })
    const { status } = response
    const text = await response.text()
    const value = statuses.includes(status) ? parse(parseJson(text)) : undefined
    return value === undefined ? { kind: 'refused', status } : { kind: 'answered', status, value }
  } catch (error) {
    if ((error as Error).name === 'TimeoutError') return { kind: 'timeout' }
    return { kind: 'unreachable', reason: String((error as { cause?: Error }).cause?.message ?? error) }
  }
}

function parserOf<S extends TSchema>(schema: S): (body: unknown) => Static<S> | undefined {
  return (body) => Value.Check(schema, body) ? body : undefined
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
