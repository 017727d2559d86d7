/**
 * The servers of the operator API: a unix socket with all of it, where the kernel says who asks, and a TCP listener with
 * metrics and health, for Prometheus and probes. Guests can reach neither.
 */
import Fastify, { type FastifyInstance, type FastifyReply } from 'fastify'
import type { Log } from '../../runtime/log-codes.ts'
import { NO_SCHEMA_COMPILERS, refuseOtherVersionsOfOperators } from '../../runtime/http.ts'
import { buildNetworkTest } from '../../metadata/address.ts'
import { guardHost } from '../../pages/access.ts'
import { buildPageTurns } from '../../pages/page-turns.ts'
import { sendPage } from '../../pages/send.ts'
import type { Question } from '../../pages/search.ts'
import { ID_RULE, isId, isName } from '../../metadata/identifiers.ts'
import { parseReport, MAX_REPORT_BYTES, type AgentReport } from '../firewall/agent-report.ts'
import type { Firewall } from '../firewall/firewall.ts'
import type { Explanation, InstanceExplanation, InstanceState, Readiness, ReportsDocument } from './documents.ts'
import { buildAdmission } from './connections.ts'
import type { GateState } from './launch-gate.ts'
import { PATHS } from './paths.ts'

export interface OperatorParts {
  readonly metrics: { readonly contentType: string; metrics(): Promise<string> }
  readonly readiness: () => Readiness
  readonly launchGate: (id: string) => GateState | undefined
  readonly firewall: Pick<Firewall, 'next'>
  /** What a guest at an address on a network would get, and why; undefined if it is not an address. */
  readonly explain: (network: string, address: string) => Promise<Explanation | undefined>
  /** What the guest of an instance would get at each of its addresses. */
  readonly explainInstance: (id: string) => Promise<InstanceExplanation>
  /** What a guest has reported, or undefined if its instance is not served here. */
  readonly reports: (id: string) => ReportsDocument | undefined
  /** The status page; undefined: too many of its readers wait already. */
  readonly page: (question: Question) => Promise<string | undefined>
  /** Why an instance is not served as the store has it, or undefined. */
  readonly diagnose: (id: string) => Promise<string | undefined>
}

/** The bounds of the TCP listener. `allow`: networks in CIDR form that may use it, besides loopback; empty: all. */
interface TcpBounds {
  readonly allow: readonly string[]
  readonly maxConnections: number
  readonly now: () => number
  readonly log: Pick<Log, 'warn'>
}

/** Loopback addresses may always use the TCP listener. */
const THIS_HOST = ['127.0.0.0/8', '::1/128']
/** A connection on which nothing moves is closed after this time, in ms. The slowest response waits for 3 s. */
const IDLE_MS = 15_000

/**
 * Builds the TCP server; it does not listen yet.
 *
 *   GET /metrics        200, Prometheus' text format
 *   GET /livez          200 while the event loop runs
 *   GET /readyz         200 when ready, else 503; a Readiness either way
 *
 * 400 for versions of HTTP other than 1.0 and 1.1.
 */
export function buildTcpServer(
  parts: Pick<OperatorParts, 'metrics' | 'readiness'>,
  { allow, maxConnections, now, log }: TcpBounds,
): FastifyInstance {
  const server = buildServer(parts)
  const isListed = buildNetworkTest([...allow, ...THIS_HOST])
  const isAllowed = (address: string) => allow.length === 0 || isListed(address)
  server.server.on('connection', buildAdmission({ isAllowed, maxConnections, now, log }))
  return server
}

/**
 * Builds the server of the unix socket; it does not listen yet. At most `maxConnections` are open at a time. It has
 * the paths of the TCP server, and:
 *
 *   GET /               200, the status page; 503 when too many of its readers wait. `q`: an id or an address to search
 *                       for, `page`: a part of the instances
 *   GET /instances/ID   the launch gate, an InstanceState: 200 when the guest may be started, 409 when not yet (with
 *                       `final`: never with this record), 404 when the instance is not served here. With `?reason`,
 *                       `reason` says why it is not served as the store has it. 400 if it is not an id
 *   GET /instances/ID/reports
 *                       200 with what the guest has reported; 404 when the instance is not served here; 400 if it is
 *                       not an id
 *   GET /explain?address=ADDRESS&network=NETWORK
 *                       200 with an Explanation; 400 if it is not an address or not the name of a network
 *   GET /explain?id=ID  200 with an InstanceExplanation, 404 with one when the instance is not served here; 400 if it is
 *                       not an id
 *   GET /firewall       200 with the FirewallDocument; 503 when there is none yet, after 3 s
 *   POST /firewall      the same with the report of the firewall agent (firewall/agent-report.ts): the response is sent
 *                       once the document has another version than the applied one, or after 3 s; 400 if it is not a
 *                       report
 *
 * 421 if the Host header is a name other than localhost (pages/access.ts): ssh can forward a port to the socket, and a
 * page of another site in the browser there could otherwise use it.
 */
export function buildSocketServer(parts: OperatorParts, maxConnections: number): FastifyInstance {
  const server = buildServer(parts)
  guardHost(server)
  server.server.maxConnections = maxConnections
  server.get(PATHS.page, (request, reply) => sendPage(request, reply, parts.page))
  server.get<Asked>(PATHS.instance, async ({ params: { id }, query }, reply) => {
    if (!isId(id)) return reply.code(400).send(NO_ID)
    const why = query.reason === undefined ? undefined : await parts.diagnose(id)
    const state = parts.launchGate(id)
    const status = state === undefined ? 404 : state.reason === undefined ? 200 : 409
    const reasons = [state?.reason, why].filter((text) => text !== undefined)
    return reply.code(status).send({
      id,
      revision: null,
      ...state,
      ...(reasons.length > 0 && { reason: reasons.join('; ') }),
    } satisfies InstanceState)
  })
  server.get<Asked>(PATHS.reports, ({ params: { id } }, reply) => {
    if (!isId(id)) return reply.code(400).send(NO_ID)
    const found = parts.reports(id)
    return found === undefined ? reply.code(404).send({ error: `${id} is not served here` }) : reply.send(found)
  })
  server.get<Asked>(PATHS.explain, async ({ query: { address = '', network = 'default', id } }, reply) => {
    if (id !== undefined) {
      if (!isId(id)) return reply.code(400).send(NO_ID)
      const explained = await parts.explainInstance(id)
      return reply.code(explained.revision === undefined ? 404 : 200).send(explained)
    }
    const explanation = isName(network) ? await parts.explain(network, address) : undefined
    return explanation === undefined
      ? reply.code(400).send({ error: 'that is not an address on a network' })
      : reply.send(explanation)
  })
  const sendDocument = async (reply: FastifyReply, report: AgentReport | undefined) => {
    const document = await parts.firewall.next(report)
    return document === undefined
      ? reply.code(503).send({ error: 'the view is not complete yet' })
      : reply.type('application/json').send(document.json)
  }
  server.get(PATHS.firewall, (_request, reply) => sendDocument(reply, undefined))
  server.post(PATHS.firewall, { bodyLimit: MAX_REPORT_BYTES }, async (request, reply) => {
    const report = parseReport(request.body)
    if (report === undefined) return reply.code(400).send({ error: 'that is not a report of the firewall agent' })
    return sendDocument(reply, report)
  })
  return server
}

/** What requests have: the id of an instance in the path, and a query. */
interface Asked {
  readonly Params: { readonly id: string }
  readonly Querystring: Readonly<Partial<Record<'id' | 'reason' | 'address' | 'network', string>>>
}
const NO_ID = { error: `that is not ${ID_RULE}` }

/** Builds a server with the paths of both. */
function buildServer(parts: Pick<OperatorParts, 'metrics' | 'readiness'>): FastifyInstance {
  const { metrics } = parts
  const server = Fastify({
    logger: false,
    schemaController: NO_SCHEMA_COMPILERS,
    requestTimeout: 10_000,
    connectionTimeout: IDLE_MS,
    http: { connectionsCheckingInterval: 1_000 },
    // a peer that pipelines requests and never reads would make the daemon hold all their responses
    maxRequestsPerSocket: 1,
  })
  refuseOtherVersionsOfOperators(server.server)
  let collecting: Promise<string | undefined> | undefined
  const { take } = buildPageTurns()
  server.get(PATHS.metrics, async (_request, reply) => {
    // Collecting a text takes milliseconds, in which no guest is served. Requests at the same time share one.
    collecting ??= take(() => metrics.metrics()).finally(() => {
      collecting = undefined
    })
    return reply.type(metrics.contentType).send(await collecting)
  })
  server.get(PATHS.live, (_request, reply) => reply.type('text/plain').send('ok\n'))
  server.get(PATHS.ready, (_request, reply) => {
    const state = parts.readiness()
    return reply.code(state.ready ? 200 : 503).send(state)
  })
  return server
}
