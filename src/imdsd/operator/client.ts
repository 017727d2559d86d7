/**
 * The client of a daemon's operator API, over its unix socket. It validates the documents that it receives.
 */
import { request, type IncomingMessage, type RequestOptions } from 'node:http'
import type { Static, TSchema } from 'typebox'
import Value from 'typebox/value'
import type { Parsed } from '../../metadata/parsed.ts'
import { parseUnixSocket } from '../../runtime/host-port.ts'
import { parseJson } from '../../runtime/json.ts'
import { formatReport, type AgentReport } from '../firewall/agent-report.ts'
import { parseFirewallDocument, type FirewallDocument } from '../firewall/document.ts'
import {
  ExplanationSchema,
  InstanceExplanationSchema,
  InstanceStateSchema,
  ReadinessSchema,
  ReportsSchema,
} from './documents.ts'
import { PATHS } from './paths.ts'

/**
 * `refused`: an answer without a valid document, or with a status that has none. `unreachable`: there was no answer,
 * for this reason.
 */
export type Answer<T> =
  | { readonly kind: 'answered'; readonly status: number; readonly value: T }
  | { readonly kind: 'refused'; readonly status: number }
  | { readonly kind: 'unreachable'; readonly reason: string }
  | { readonly kind: 'timeout' }

/** The document of an answer; the fault says what the daemon at `operator` answered instead. */
export function parsedAnswer<T>(answer: Answer<T>, operator: string): Parsed<T, string> {
  if (answer.kind === 'answered') return { ok: true, value: answer.value }
  return { ok: false, faults: [`the daemon at ${operator} ${describe(answer)}`] }
}

function describe(answer: Exclude<Answer<unknown>, { kind: 'answered' }>): string {
  switch (answer.kind) {
    case 'refused':
      return (
        `answered with status ${answer.status}` +
        (answer.status === 200 ? ' and a document that this version cannot read' : '')
      )
    case 'timeout':
      return 'does not answer'
    case 'unreachable':
      return `cannot be reached: ${answer.reason}`
  }
}

/**
 * A question to a daemon: a GET, or a POST of a JSON body. `statuses`: those of which the document is read, default 200.
 */
export interface DaemonQuestion<T> {
  readonly path: string
  readonly body?: string
  readonly parse: (text: string) => T | undefined
  readonly statuses?: readonly number[]
}

/** A question whose answer has a schema. */
type Asked<S extends TSchema> = DaemonQuestion<Static<S>>

export const QUESTIONS = {
  /**
   * Asks the launch gate for an instance. `withReason`: also why the instance is not served as the store has it, which
   * may ask the store.
   */
  instance: (id: string, withReason: boolean): Asked<typeof InstanceStateSchema> => ({
    path: pathOf(PATHS.instance, id) + (withReason ? '?reason=' : ''),
    parse: parserOf(InstanceStateSchema),
    statuses: [200, 404, 409],
  }),
  /** What the guest of an instance has reported. */
  reports: (id: string): Asked<typeof ReportsSchema> => ({
    path: pathOf(PATHS.reports, id),
    parse: parserOf(ReportsSchema),
  }),
  /** What a guest at an address would get. Status 400: it is not an address, or not the name of a network. */
  address: (network: string, address: string): Asked<typeof ExplanationSchema> => ({
    path: `${PATHS.explain}?${new URLSearchParams({ address, network }).toString()}`,
    parse: parserOf(ExplanationSchema),
  }),
  /**
   * What the guest of an instance would get at each of its addresses. Status 404: the daemon does not serve it; the
   * document says why.
   */
  addresses: (id: string): Asked<typeof InstanceExplanationSchema> => ({
    path: `${PATHS.explain}?${new URLSearchParams({ id }).toString()}`,
    parse: parserOf(InstanceExplanationSchema),
    statuses: [200, 404],
  }),
  /**
   * The firewall's document. With a report of the firewall agent the daemon answers once the
   * document has another version than the applied one, or after 3 s. Status 503: the daemon has none yet.
   */
  firewall: (report: AgentReport | undefined): DaemonQuestion<FirewallDocument> => ({
    path: PATHS.firewall,
    ...(report !== undefined && { body: formatReport(report) }),
    parse: (text) => parseFirewallDocument(parseJson(text)),
  }),
  /** Whether the daemon is ready, and what it serves. */
  readiness: { path: PATHS.ready, parse: parserOf(ReadinessSchema), statuses: [200, 503] },
}

/** The most bytes of a response. The firewall's document of 2,000 guests has about 1 MB. */
const MAX_RESPONSE_BYTES = 64 * 1024 * 1024

function pathOf(path: string, id: string): string {
  return path.replace(':id', encodeURIComponent(id))
}

/** Asks a daemon. `operator`: its unix socket, such as `unix:/run/imds/operator.sock`. */
export async function ask<T>(operator: string, question: DaemonQuestion<T>, signal: AbortSignal): Promise<Answer<T>> {
  const { parse, statuses = [200] } = question
  try {
    const { status, text } = await send(operator, question, signal)
    const value = statuses.includes(status) ? parse(text) : undefined
    return value === undefined ? { kind: 'refused', status } : { kind: 'answered', status, value }
  } catch (error) {
    if (signal.aborted && (signal.reason as Error).name === 'TimeoutError') return { kind: 'timeout' }
    return { kind: 'unreachable', reason: reasonOf(error as NodeJS.ErrnoException) }
  }
}

/** Sends one request on a connection of its own. (fetch cannot use a unix socket.) */
async function send(
  operator: string,
  { path, body }: DaemonQuestion<unknown>,
  signal: AbortSignal,
): Promise<{ readonly status: number; readonly text: string }> {
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const options: RequestOptions = {
    socketPath: socketPathOf(operator),
    path,
    signal,
    agent: false,
    // The daemon refuses other names: they may be those of a site in a browser (pages/access.ts).
    headers: { host: 'localhost', ...(body !== undefined && { 'content-type': 'application/json' }) },
    ...(body !== undefined && { method: 'POST' }),
  }
  request(options, resolve).on('error', reject).end(body)
  const response = await promise
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of response as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > MAX_RESPONSE_BYTES) throw new Error(`its response has more than ${MAX_RESPONSE_BYTES} bytes`)
    chunks.push(chunk)
  }
  return { status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString() }
}

/** The path of a unix socket. Throws for a text of another form. */
function socketPathOf(operator: string): string {
  const socket = parseUnixSocket(operator)
  if (socket === undefined) throw new Error('it is not unix:/ABSOLUTE/PATH')
  return socket.path
}

/** Why there was no answer, with the remedy. */
function reasonOf({ code, message }: NodeJS.ErrnoException): string {
  switch (code) {
    case 'EACCES':
      return (
        'EACCES: this user may not connect. Use root, or add the user to the group imds (usermod -aG imds USER) ' +
        'and log in again'
      )
    case 'ENOENT':
      return (
        'ENOENT: the socket does not exist. Start the daemon (systemctl start imds), ' +
        'or correct IMDS_OPERATOR_SOCKET'
      )
    case 'ECONNREFUSED':
      return 'ECONNREFUSED: the daemon that made the socket has ended. Start it (systemctl start imds)'
    default:
      return message
  }
}

function parserOf<S extends TSchema>(schema: S): (text: string) => Static<S> | undefined {
  return (text) => {
    const body = parseJson(text)
    return Value.Check(schema, body) ? body : undefined
  }
}
