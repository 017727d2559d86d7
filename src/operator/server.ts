/**
 * How do we look in?
 *
 * A listener of its own that no guest reaches: loopback, or an address with the list of networks that may ask. Knows nothing of
 * instances: it is handed the metrics' text and the state.
 */
import Fastify, { type FastifyInstance } from 'fastify'
import { BlockList, isIPv6 } from 'node:net'

/** What `/readyz` says; `ready` decides its status. */
export interface Readiness extends Readonly<Record<string, unknown>> { readonly ready: boolean }

/** What the firewall asks for and tells. */
export interface OperatorFirewall {
  /**
   * The view once it is another one than version `after`, or after some seconds; undefined when there is none yet. `applied`: what the rules are
   * made from; `refused`: what was left out of them (src/firewall/refusal.ts).
   */
  next(after: string | undefined, applied: string | undefined, refused: string | undefined): Promise<object | undefined>
}

/** What an operator server is made of. */
export interface OperatorServerParts {
  /** Networks in CIDR form that may ask; empty: everyone who reaches the listener. */
  readonly allow: readonly string[]
  readonly metrics: { readonly contentType: string, metrics(): Promise<string> }
  readonly readiness: () => Readiness
  /** The revision of an instance that guests are answered for here, or null. */
  readonly revisionOf: (id: string) => number | null
  /** Why the guest of an instance that is answered for cannot be started yet, or null. `isFinal`: it never can with this record. */
  readonly holds: (id: string) => { readonly reason: string, readonly isFinal: boolean } | null
  readonly firewall: OperatorFirewall
  /** What an address would be answered on a network, and why; undefined where it is none. */
  readonly explain: (network: string, address: string) => Promise<object | undefined>
  /** Why an instance is not answered for as the store has it, or null. */
  readonly diagnose: (id: string) => Promise<string | null>
}

/** imdsctl and imds-firewall may always ask. */
const THIS_HOST = ['127.0.0.0/8', '::1/128']

/** No route has a schema: Fastify's own compilers need 20 ms of every start, and memory. */
const NO_SCHEMAS = { compilersFactory: { buildValidator: () => noSchema, buildSerializer: () => noSchema } }

/**
 * Builds the operators' server; it does not listen yet.
 *
 *   GET /metrics   200, Prometheus' text format
 *   GET /livez     200 while the event loop turns
 *   GET /readyz    200 once the first full resync is done, 503 before; JSON with the state either way
 *   GET /instances/ID   the launch gate: 200 with `{id, revision}` when the instance is answered for here, 409 when its guest cannot be started yet
 *                       (with `final`: never with this record), 404 otherwise. With `?reason`, `reason` says why it is not answered for as
 *                       the store has it, if it is not
 *   GET /firewall?after=VERSION&applied=VERSION&refused=REFUSALS   200 with what the firewall's rules are made from (src/firewall/document.ts), once it is
 *                       another version than "after" or after 5 s; 503 when the view is not whole yet. `applied` and `refused`
 *                       (src/firewall/refusal.ts) are for the firewall alone to say
 *
 *   GET /explain?address=ADDRESS&network=NETWORK   200 with what a guest at that address would be answered and why; 400 where it is no address
 *
 * 403 for anyone outside of `allow`, but for this host's loopback addresses.
 */
export function buildOperatorServer({ allow, metrics, readiness, revisionOf, holds, firewall, explain, diagnose }: OperatorServerParts): FastifyInstance {
  const server = Fastify({ logger: false, schemaController: NO_SCHEMAS, requestTimeout: 10_000, connectionTimeout: 30_000, keepAliveTimeout: 5_000 })
  const allowed = blockListOf([...allow, ...THIS_HOST])

  server.addHook('onRequest', (request, reply, done) => {
    const address = request.socket.remoteAddress ?? ''
    if (allow.length === 0 || allowed.check(address, isIPv6(address) ? 'ipv6' : 'ipv4')) done()
    else void reply.code(403).send({ error: 'this address may not ask: see IMDS_OPERATOR_ALLOW' })
  })
  server.get('/metrics', async (_request, reply) => {
    const text = await metrics.metrics()
    return reply.type(metrics.contentType).send(text)
  })
  server.get('/livez', (_request, reply) => reply.type('text/plain').send('ok\n'))
  server.get('/readyz', (_request, reply) => {
    const state = readiness()
    return reply.code(state.ready ? 200 : 503).send(state)
  })
  server.get<{ Params: { id: string }, Querystring: { reason?: string } }>('/instances/:id', async (request, reply) => {
    const { id } = request.params
    const why = request.query.reason === undefined ? null : await diagnose(id)
    const revision = revisionOf(id)
    const held = revision === null ? null : holds(id)
    const reason = [held?.reason ?? null, why].filter((part) => part !== null).join('; ')
    return reply.code(revision === null ? 404 : held === null ? 200 : 409).send({ id, revision, ...reason !== '' && { reason }, ...held?.isFinal === true && { final: true } })
  })
  server.get<{ Querystring: { after?: string, applied?: string, refused?: string } }>('/firewall', async ({ query: { after, applied, refused } }, reply) => {
    const view = await firewall.next(after, applied, refused)
    return view === undefined ? reply.code(503).send({ error: 'the view is not whole yet' }) : reply.send(view)
  })
  server.get<{ Querystring: { address?: string, network?: string } }>('/explain', async ({ query: { address = '', network = 'default' } }, reply) => {
    const explanation = await explain(network, address)
    return explanation === undefined ? reply.code(400).send({ error: 'that is no address' }) : reply.send(explanation)
  })
  return server
}

function blockListOf(networks: readonly string[]): BlockList {
  const list = new BlockList()
  for (const network of networks) {
    const [address = '', prefix] = network.split('/')
    list.addSubnet(address, Number(prefix), isIPv6(address) ? 'ipv6' : 'ipv4')
  }
  return list
}

function noSchema(): never {
  throw new Error('no route has a schema')
}
