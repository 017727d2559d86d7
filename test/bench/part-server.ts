/**
 * A server that has some of the parts of the daemon: `node part-server.ts PORT LEVEL`. Level 0 is the bare server beside a
 * view with 500 instances; each level adds one part (parts.ts).
 */
import { createServer, type RequestListener, type ServerOptions, type ServerResponse } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { TargetCache } from '../../src/metadata/target.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { parseStored } from '../../src/metadata/record.ts'
import { authorize, type Rules } from '../../src/imdsd/guest/authorize.ts'
import { LastRequests } from '../../src/imdsd/guest/last-requests.ts'
import { ConnectionGuard } from '../../src/imdsd/guest/connection-guard.ts'
import { buildHttpServer } from '../../src/imdsd/guest/http-server.ts'
import { HeldRequests } from '../../src/imdsd/guest/held-requests.ts'
import { limitHops } from '../../src/imdsd/guest/hop-limit.ts'
import { finderAt, peerAddress } from '../../src/imdsd/guest/identify.ts'
import { RequestMeter } from '../../src/imdsd/guest/meter.ts'
import { RefusalLog } from '../../src/imdsd/guest/refusal-log.ts'
import { GuestReports } from '../../src/imdsd/guest/reports.ts'
import { resolve } from '../../src/imdsd/guest/resolve.ts'
import { buildGuestServer } from '../../src/imdsd/guest/server.ts'
import { Shares, UNKNOWN_PEERS } from '../../src/imdsd/guest/share.ts'
import { Tokens } from '../../src/imdsd/guest/token.ts'
import { View } from '../../src/imdsd/view/view.ts'
import { buildLog, standardOutput } from '../../src/runtime/log.ts'
import { turnOffPretenuring } from '../../src/imdsd/pretenuring.ts'
import { idOf, recordOf, userDataOf } from './population.ts'

turnOffPretenuring()
const [port, level] = process.argv.slice(2).map(Number)
const body = idOf(0)
const log = buildLog('info', standardOutput(undefined))
const now = () => performance.now()
const view = new View({}, now, false)
for (let i = 0; i < 500; i++) {
  const userData = userDataOf(i)
  const parsed = parseStored({
    ...recordOf(i, 'gb1', 1),
    userData: { size: userData.length, sha256: sha256(userData) },
  })
  if (!parsed.ok) throw new Error(JSON.stringify(parsed.faults))
  view.replace({
    instance: parsed.value,
    userData: Buffer.from(userData),
    digest: sha256(Buffer.from(String(i))),
    order: 1,
    lost: [],
  })
}
const finder = finderAt('127.0.0.1', { find: view.find.bind(view), lookUp: () => undefined })
const shares = new Shares({ burst: 1e9, perSecond: 1e9, connections: 1e9 }, UNKNOWN_PEERS)
const meter = new RequestMeter()
const requests = new LastRequests()
const refusalLog = new RefusalLog(log, now)
const rules: Rules = {
  tokens: new Tokens([Buffer.alloc(32, 7)], () => Date.now() / 1000),
  forwarded: 'refuse',
  limitHops,
  mintToken: undefined,
}
const network = 'default'
const parts = { network, maxConnections: 10_000, shares, meter, requests, refusalLog }
const guard = new ConnectionGuard({ ...parts, finder: () => finder })
const targets = new TargetCache()

/** Those of imdsd/guest/http-server.ts. */
const OPTIONS: ServerOptions = {
  keepAliveTimeout: 3_500,
  requestTimeout: 10_000,
  maxHeaderSize: 16_384,
  headersTimeout: 10_000,
  connectionsCheckingInterval: 1_000,
  requireHostHeader: false,
  optimizeEmptyRequests: true,
}

const answer = (response: ServerResponse) => {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': body.length })
  response.end(body)
}

/** Serves with Fastify, and the steps of a request up to a level. */
function buildSteps(upTo: number): FastifyInstance {
  const fastify = buildHttpServer(guard)
  fastify.addHook('onRequest', ({ raw: request, originalUrl: rawTarget }, reply) => {
    reply.hijack()
    const response = reply.raw
    if (upTo < 5) {
      answer(response)
      return
    }
    const startedMs = performance.now()
    const address = peerAddress(request.socket)
    const found = finder.find(network, address)
    const exchange = { network, address, found, request, body: request, rawTarget, response, startedMs, had: {} }
    if (!guard.isOpen(exchange)) return
    if (upTo >= 6 && !guard.takeFromShare(exchange)) return
    if (upTo < 7) {
      answer(response)
      return
    }
    const authorization = authorize(exchange, targets.parse(rawTarget), rules, meter)
    const result = authorization.kind === 'refused' ? authorization : resolve(exchange, authorization, rules)
    if (result.kind !== 'served') throw new Error('it is refused')
    if (upTo < 8) {
      answer(response)
      return
    }
    response.writeHead(200, result.content.headers as string[])
    response.end(result.content.body, 'latin1')
  })
  fastify.all('/', () => undefined)
  return fastify
}

function buildAll(): FastifyInstance {
  const [held, reports] = [new HeldRequests(), new GuestReports(now, () => Date.now())]
  return buildGuestServer({ ...parts, finder: { ...finder, onChange: () => undefined }, rules, held, reports, log })
}

/** Serves by node:http alone. */
function buildPlain(): ReturnType<typeof createServer> {
  const listener: RequestListener = (_request, response) => answer(response)
  const server = level === 0 ? createServer(listener) : createServer(OPTIONS, listener)
  if (level === 2) server.on('connection', (socket) => peerAddress(socket))
  if (level === 3) guard.start(server)
  return server
}

if (level! < 4) buildPlain().listen(port, '127.0.0.1')
else {
  const fastify = level! < 9 ? buildSteps(level!) : buildAll()
  await fastify.ready()
  fastify.server.listen(port, '127.0.0.1')
}
