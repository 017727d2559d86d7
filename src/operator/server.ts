/**
 * The server of the operator API. Guests cannot reach it: it listens on loopback, or on an address with a list of networks that may use it.
 */
import Fastify, { type FastifyInstance } from 'fastify'
import { NO_SCHEMA_COMPILERS } from '../runtime/fastify-settings.ts'
import { refuseOtherVersions, TO_OPERATORS } from '../runtime/http-version.ts'
import { buildNetworkTest } from '../runtime/networks.ts'
import type { FirewallDocument } from '../firewall/document.ts'
import type { Explanation, InstanceState, Readiness } from './api.ts'
import type { GateState } from './launch-gate.ts'
import { PATHS } from './paths.ts'

/** What the operator server needs of the firewall. */
export interface OperatorFirewall {
  /**
   * The document once its version is not `after`, or after 5 s; undefined when there is none yet. `applied`: the version that the agent's rules
   * are made from; `refused`: what it left out of them (src/firewall/refusal.ts).
   */
  next(after: string | undefined, applied: string | undefined, refused: string | undefined): Promise<FirewallDocument | undefined>
}

/** The parts of an operator server. */
export interface OperatorServerParts {
  /** Networks in CIDR form that may use the operator API; empty: all. */
  readonly allow: readonly string[]
  readonly metrics: { readonly contentType: string, metrics(): Promise<string> }
  readonly readiness: () => Readiness
  readonly launchGate: (id: string) => GateState
  readonly firewall: OperatorFirewall
  /** What a guest at an address on a network would get, and why; undefined if it is not an address. */
  readonly explain: (network: string, address: string) => Promise<Explanation | undefined>
  /** Why an instance is not served as the store has it, or undefined. */
  readonly diagnose: (id: string) => Promise<string | undefined>
}

/** imdsctl and the firewall agent on this hypervisor may always use the operator API. */
const THIS_HOST = ['127.0.0.0/8', '::1/128']

/**
 * Builds the operator server; it does not listen yet.
 *
 *   GET /metrics        200, Prometheus' text format
 *   GET /livez          200 while the event loop runs
 *   GET /readyz         200 when ready, else 503; a Readiness either way
 *   GET /instances/ID   the launch gate, an InstanceState: 200 when the guest may be started, 409 when not yet (with `final`: never with this
 *                       record), 404 when the instance is not served here. With `?reason`, `reason` says why it is not served as the store has it
 *   GET /firewall?after=VERSION&applied=VERSION&refused=REFUSALS
 *                       200 with the FirewallDocument, once its version is not `after` or after 5 s; 503 when there is none yet.
 *                       Only the firewall agent sends `applied` and `refused` (src/firewall/refusal.ts)
 *   GET /explain?address=ADDRESS&network=NETWORK
 *                       200 with an Explanation; 400 if it is not an address
 *
 * 403 for addresses outside of `allow`, except loopback addresses. 400 for versions of HTTP other than 1.0 and 1.1.
 */
export function buildOperatorServer({ allow, metrics, readiness, launchGate, firewall, explain, diagnose }: OperatorServerParts): FastifyInstance {
  const server = Fastify({ logger: false, schemaController: NO_SCHEMA_COMPILERS, requestTimeout: 10_000, connectionTimeout: 30_000, keepAliveTimeout: 5_000 })
  refuseOtherVersions(server.server, TO_OPERATORS, () => { /* not counted */ })
  const isAllowed = buildNetworkTest([...allow, ...THIS_HOST])

  server.addHook('onRequest', (request, reply, done) => {
    if (allow.length === 0 || isAllowed(request.socket.remoteAddress ?? '')) done()
    else void reply.code(403).send({ error: 'this address may not use the operator API: see IMDS_OPERATOR_ALLOW' })
  })
  server.get(PATHS.metrics, async (_request, reply) => {
    const text = await metrics.metrics()
    return reply.type(metrics.contentType).send(text)
  })
  server.get(PATHS.live, (_request, reply) => reply.type('text/plain').send('ok\n'))
  server.get(PATHS.ready, (_request, reply) => {
    const state = readiness()
    return reply.code(state.ready ? 200 : 503).send(state)
  })
  server.get<{ Params: { id: string }, Querystring: { reason?: string } }>(PATHS.instance, async (request, reply) => {
    const { id } = request.params
    const why = request.query.reason === undefined ? undefined : await diagnose(id)
    const { status, ...state } = formatGateState(id, launchGate(id), why)
    return reply.code(status).send(state)
  })
  server.get<{ Querystring: { after?: string, applied?: string, refused?: string } }>(PATHS.firewall, async ({ query: { after, applied, refused } }, reply) => {
    const view = await firewall.next(after, applied, refused)
    return view === undefined ? reply.code(503).send({ error: 'the view is not complete yet' }) : reply.send(view)
  })
  server.get<{ Querystring: { address?: string, network?: string } }>(PATHS.explain, async ({ query: { address = '', network = 'default' } }, reply) => {
    const explanation = await explain(network, address)
    return explanation === undefined ? reply.code(400).send({ error: 'that is not an address' }) : reply.send(explanation)
  })
  return server
}

function formatGateState(id: string, state: GateState, why: string | undefined): InstanceState & { readonly status: number } {
  const reasons = [...state.kind === 'held' ? [state.reason] : [], ...why === undefined ? [] : [why]]
  const reason = reasons.length > 0 && { reason: reasons.join('; ') }
  switch (state.kind) {
    case 'not-served': return { status: 404, id, revision: null, ...reason }
    case 'open': return { status: 200, id, revision: state.revision, ...reason }
    case 'held': return { status: 409, id, revision: state.revision, ...reason, ...state.isFinal && { final: true } }
  }
}
