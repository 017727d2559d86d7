/** Where imds-api listens: several addresses and unix sockets, with TLS and behind a proxy. */
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { request, type RequestOptions, type ServerResponse } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { connect, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { setImmediate } from 'node:timers/promises'
import { connect as connectTls } from 'node:tls'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import {
  ClientConnections,
  noteOwner,
  type ClosedReason,
  type ConnectionsParts,
} from '../../src/imds-api/http/connections.ts'
import { DatabaseReport } from '../../src/imds-api/http/database-errors.ts'
import { buildServer, type ApiServerSettings } from '../../src/imds-api/http/server.ts'
import type { HostPort, ListenAddress } from '../../src/runtime/host-port.ts'
import { listenAt } from '../../src/runtime/listen.ts'
import { withoutDetails } from '../support/error-bodies.ts'
import { startImdsApi, startProcess } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { shortDirectory } from '../support/test-directory.ts'

const LOOPBACK = { host: '127.0.0.1', port: 0 }
/** Nine such responses are more than all connections may leave unread. */
const UNREAD_BYTES = 8_000_000
/** Connections that wait to be accepted at the same time. */
const TOGETHER = 100

const nothing = () => undefined
const LOG = pino({ level: 'silent' })
const SETTINGS: ApiServerSettings = {
  tls: undefined,
  trustedProxies: [],
  onUnreadable: nothing,
  onShed: nothing,
  databaseReport: new DatabaseReport(LOG),
  log: LOG,
}

/** A server at several places with a route that shows the address of its client. */
async function start(
  t: Test,
  places: readonly ListenAddress[],
  settings: Partial<ApiServerSettings> = {},
  bounds: Partial<ConnectionsParts> = {},
) {
  const server = buildServer({ ...SETTINGS, ...settings })
  t.teardown(() => server.close())
  server.get('/ip', ({ address }) => ({ ip: address === '' ? 'none' : address }))
  server.post(
    '/begun',
    {
      onRequest: (_request, reply, done) => {
        reply.raw.writeHead(200, { 'Content-Length': 8 }).write('half')
        done()
      },
    },
    (request) => request.body,
  )
  server.post('/body', (request) => request.body)
  server.get('/unread', (request, reply) => {
    reply.hijack().raw.writeHead(200).flushHeaders()
    Object.defineProperty(request.raw.socket, 'writableLength', { value: UNREAD_BYTES })
  })
  const released = Promise.withResolvers<boolean>()
  const waits = { begun: 0 }
  server.get('/wait', async () => {
    waits.begun++
    return { released: await released.promise }
  })
  server.get('/owner/:owner', (request) => {
    noteOwner(request.raw.socket, (request.params as { owner: string }).owner)
    return {}
  })
  const responses: ServerResponse[] = []
  server.server.on('request', (_request, response: ServerResponse) => responses.push(response))
  const closed: ClosedReason[] = []
  const connections = new ClientConnections({
    maxConnections: 100,
    maxPerAddress: 100,
    trustedProxies: [],
    onClose: (reason) => closed.push(reason),
    now: () => performance.now(),
    log: pino({ level: 'silent' }),
    ...bounds,
  })
  connections.start(server)
  const listening = await listenAt(server, places, 'IMDS_API_LISTEN', () => connections.endWaiting())
  return {
    server,
    connections,
    closed,
    responses,
    waits,
    release: () => released.resolve(true),
    places: listening,
    /** The first of them. */
    place: listening[0]!,
  }
}

/** The certificate of a server, and the authority that clients trust. */
async function aCertificate(t: Test) {
  const authority = await anAuthority(shortDirectory(t), 'test')
  const { certFile, keyFile } = await authority.issue('api')
  return {
    tls: { cert: readFileSync(certFile, 'utf8'), key: readFileSync(keyFile, 'utf8') },
    ca: readFileSync(authority.caFile, 'utf8'),
  }
}

/** A new connection to a place. What the server does to it later is no error of the test. */
function connectTo(place: ListenAddress, localAddress?: string): Socket {
  const socket =
    place.path === undefined
      ? connect({ host: place.host, port: place.port, ...(localAddress !== undefined && { localAddress }) })
      : connect(place.path)
  return socket.on('error', () => undefined)
}

/** A new TLS session at a place. */
function connectSecurely(place: ListenAddress, ca: string): Socket {
  const { port, host } = place as HostPort
  return connectTls({ port, host, ca, checkServerIdentity: () => undefined })
}

/** A log that keeps its lines. */
function aLog() {
  const lines: object[] = []
  return { lines, log: pino({}, { write: (line) => lines.push(JSON.parse(line) as object) }) }
}

/** Asks at a place, each time by a new connection. */
async function ask(
  place: ListenAddress,
  path: string,
  { headers = {}, ca }: { readonly headers?: Record<string, string>; readonly ca?: string } = {},
): Promise<unknown> {
  const where: RequestOptions =
    place.path === undefined ? { host: place.host, port: place.port } : { socketPath: place.path }
  const options = { ...where, path, headers, agent: false, ...(ca !== undefined && { ca, servername: '' }) }
  const sent = (ca === undefined ? request : httpsRequest)(options).end()
  const [response] = (await once(sent, 'response')) as [NodeJS.ReadableStream & AsyncIterable<Buffer>]
  const parts: Buffer[] = []
  for await (const part of response) parts.push(part)
  return withoutDetails(JSON.parse(Buffer.concat(parts).toString()))
}

t.test('imds-api serves at every place; owner and group may use a unix socket; a killed one is replaced', async (t) => {
  const directory = shortDirectory(t)
  chmodSync(directory, 0o755)
  const path = join(directory, 'api.sock')
  const api = await startImdsApi(t, { IMDS_API_LISTEN: `127.0.0.1:0, [::1]:0,unix:${path}` })
  const listening = api.log.find(({ msg }) => msg === 'listening')!['listening'] as string[]
  t.match(listening, [/^127\.0\.0\.1:\d+$/, /^\[::1\]:\d+$/, `unix:${path}`])
  const places = [
    ...listening.slice(0, 2).map((text) => ({
      host: new URL(`http://${text}`).hostname.replace(/[[\]]/g, ''),
      port: Number(new URL(`http://${text}`).port),
    })),
    { path },
  ]
  for (const place of places) t.match(await ask(place, '/1.0/account'), { error_name: 'unauthorized' })
  t.equal(statSync(path).mode & 0o777, 0o660)
  api.process.kill('SIGKILL')
  await until(() => api.process.signalCode !== null, 'imds-api to be killed')
  t.ok(existsSync(path), 'the socket is left')
  const next = await startProcess(t, api.env)
  t.match(await ask({ path }, '/1.0/account'), { error_name: 'unauthorized' })
  t.equal(await next.stop(), 0)
  t.notOk(existsSync(path), 'a stop removes it')
})

t.test('a place that cannot be used is named with the remedy, and nothing keeps listening', async (t) => {
  const directory = shortDirectory(t)
  const [live, file, free] = [join(directory, 'live'), join(directory, 'file'), join(directory, 'free')]
  const other = createServer((socket) => socket.on('error', () => undefined).end('mine')).listen(live)
  await once(other, 'listening')
  t.teardown(() => other.close())
  writeFileSync(file, 'text')
  for (const [path, reason] of [
    [live, `unix:${live}: another program listens there already: end it, or correct IMDS_API_LISTEN`],
    [file, `unix:${file}: a file that is no socket has this name: remove it, or choose another name`],
    [
      join(directory, 'x/y'),
      `unix:${directory}/x/y: its directory must exist, and this user must be able to write to it`,
    ],
  ] as const) {
    const server = buildServer(SETTINGS)
    await t.rejects(listenAt(server, [{ path: free }, { path }], 'IMDS_API_LISTEN', nothing), {
      message: `IMDS_API_LISTEN: cannot listen on ${reason}`,
    })
    await server.close()
    t.notOk(existsSync(free))
  }
  t.equal(readFileSync(file, 'utf8'), 'text')
  const client = connect(live)
  t.equal(String((await once(client, 'data'))[0]), 'mine', 'the other process is not disturbed')
})

t.test('an address on which a process of the same user listens is refused', async (t) => {
  const { place } = await start(t, [LOOPBACK])
  await t.rejects(start(t, [place]), { message: /another program listens there already/ })
})

t.test('many connections that arrive at once are accepted in few turns of the event loop', async (t) => {
  const {
    server: { server },
    place,
  } = await start(t, [LOOPBACK], {}, { maxConnections: 300, maxPerAddress: 150 })
  const { port } = place as HostPort
  let [accepted, turns] = [0, 0]
  server.on('connection', (socket: Socket) => {
    accepted++
    socket.destroy()
  })
  execFileSync('bash', ['-c', `for i in {1..${TOGETHER}}; do exec {fd}<>/dev/tcp/127.0.0.1/${port}; done`])
  for (; accepted < TOGETHER; turns++) await setImmediate()
  t.ok(turns < TOGETHER / 2, `${TOGETHER} connections took ${turns} turns`)
})

t.test('the address of a client comes from a proxy that is trusted, also on a unix socket', async (t) => {
  const path = join(shortDirectory(t), 'api.sock')
  const ips = async (trustedProxies: readonly string[]) => {
    const { server, places } = await start(t, [LOOPBACK, { path }], { trustedProxies })
    const answers = await Promise.all(
      places.map(
        async (place) =>
          ((await ask(place, '/ip', { headers: { 'x-forwarded-for': '198.51.100.9, 192.0.2.1' } })) as { ip: string })
            .ip,
      ),
    )
    await server.close()
    return answers
  }
  t.strictSame(await ips([]), ['127.0.0.1', 'none'])
  t.strictSame(await ips(['127.0.0.0/8']), ['192.0.2.1', 'none'])
  t.strictSame(await ips(['unix:']), ['127.0.0.1', '192.0.2.1'])
  t.strictSame(await ips(['unix:', '127.0.0.1', '192.0.2.0/24']), ['198.51.100.9', '198.51.100.9'])
})

t.test('with a certificate every place speaks HTTPS', async (t) => {
  const { tls, ca } = await aCertificate(t)
  const { places } = await start(t, [LOOPBACK, LOOPBACK, { path: join(shortDirectory(t), 's') }], { tls })
  for (const place of places.slice(0, 2)) {
    t.strictSame(await ask(place, '/ip', { ca }), { ip: '127.0.0.1' })
    await t.rejects(ask(place, '/ip'), { code: 'ECONNRESET' })
  }
  await t.rejects(ask(places[2]!, '/ip'), { code: 'ECONNRESET' })
})

/**
 * Sends bytes on a new connection. Returns the responses until the server closes it, each as status, headers and JSON.
 */
async function exchange(
  place: ListenAddress,
  bytes: string,
): Promise<{ readonly status: number; readonly headers: string; readonly body: unknown }[]> {
  const socket = connectTo(place)
  socket.write(bytes)
  let text = ''
  socket.setEncoding('utf8').on('data', (part: string) => {
    text += part
  })
  await once(socket, 'close')
  return text
    .split(/(?=HTTP\/1\.1 )/)
    .filter((response) => response !== '')
    .map((response) => {
      const [head, body] = response.split('\r\n\r\n') as [string, string]
      if (/^content-length: (\d+)$/im.exec(head)?.[1] !== String(Buffer.byteLength(body)))
        throw new Error(`another length: ${response}`)
      return { status: Number(head.slice(9, 12)), headers: head, body: withoutDetails(JSON.parse(body)) }
    })
}

const POST = 'POST /body HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'
/** A request whose body does not end. */
const UNFINISHED = `${POST}Content-Length: 9\r\n\r\n{`

t.test('a request that Node cannot read is refused as JSON, at every place and over TLS', async (t) => {
  const [tcp, unix] = (await start(t, [LOOPBACK, { path: join(shortDirectory(t), 's') }])).places
  const refusals: readonly (readonly [bytes: string, text: string, status?: number, name?: string])[] = [
    ['nonsense\r\n\r\n', 'the request is not HTTP/1.1: Invalid method encountered'],
    ['GET /ip HTTP/1.2\r\nHost: a\r\n\r\n', 'the request is not HTTP/1.1: Invalid HTTP version'],
    [
      `${POST}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n`,
      "the request is not HTTP/1.1: Transfer-Encoding can't be present with Content-Length",
    ],
    [
      `${POST}Transfer-Encoding: chunked\r\n\r\nnonsense\r\n`,
      'the request is not HTTP/1.1: Invalid character in chunk size',
    ],
    ['CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n', 'CONNECT is not a method of this API', 405, 'method_not_allowed'],
    ['GET /ip HTTP/1.1\r\nHost: a\r\nConnection: close\r\nhost: a\r\n\r\n', 'the header Host is given more than once'],
    [
      `GET /ip HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`,
      'the headers are too large',
      431,
      'header_fields_too_large',
    ],
    [
      `${POST}Transfer-Encoding: chunked\r\n\r\n1;${'x'.repeat(20_000)}\r\n`,
      'the chunk extensions of the body are too large',
      413,
      'payload_too_large',
    ],
    ['GET /ip HTTP/1.1\r\nConnection: close\r\n\r\n', 'the header Host is missing'],
  ]
  for (const [i, [bytes, text, status = 400, error_name = 'bad_request']] of refusals.entries()) {
    const answers = await exchange(i % 2 === 0 ? tcp! : unix!, bytes)
    t.match(
      answers,
      [{ status, headers: /content-type: application\/json/i, body: { error_name, errors: [text] } }],
      bytes.slice(0, 60),
    )
    t.match(answers[0]!.headers, /^connection: close$/im)
    t.match(answers[0]!.headers, /^x-request-id: [\w-]{36}$/im)
    t.equal(answers.length, 1)
  }
  const { tls, ca } = await aCertificate(t)
  const { place: secure } = await start(t, [LOOPBACK], { tls })
  t.match(await ask(secure, '/ip', { ca, headers: { x: 'x'.repeat(20_000) } }), {
    error_name: 'header_fields_too_large',
  })
})

t.test('a client that sends all of a body above the limit before it reads gets its answer', async (t) => {
  const { places } = await start(t, [LOOPBACK, { path: join(shortDirectory(t), 's') }])
  const { tls, ca } = await aCertificate(t)
  const { place: secure } = await start(t, [LOOPBACK], { tls })
  const [head, body] = [POST, Buffer.alloc(4 << 20, 'x')]
  for (const open of [...places.map((place) => () => connectTo(place)), () => connectSecurely(secure, ca)]) {
    for (const framed of [
      [`${head}Content-Length: ${body.length}\r\n\r\n`, body],
      [`${head}Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n`, body, '\r\n0\r\n\r\n'],
    ]) {
      const socket = open()
      for (const part of framed) if (!socket.write(part)) await once(socket, 'drain')
      let text = ''
      socket.setEncoding('utf8').on('data', (part: string) => {
        text += part
      })
      await once(socket, 'close')
      t.match(
        text,
        /^HTTP\/1\.1 413 [^]*\r\n\r\n\{"error_name":"payload_too_large","errors":\["the body must be at most 65536 bytes"\],"details":\[.*\],"request_id":"[\w-]+"\}$/,
      )
    }
  }
  const socket = connectTo(places[0]!)
  const received = once(socket.setEncoding('utf8'), 'data')
  socket.write(`${head}Content-Length: 9000000\r\n\r\n`)
  t.match(await received, [/^HTTP\/1\.1 413 /], 'a body that is much longer is not read')
  await once(socket, 'close')
})

t.test('a client that ends before its body does is not logged as a fault of the database', async (t) => {
  const { lines, log } = aLog()
  const { server, place } = await start(t, [LOOPBACK], { log })
  const socket = connectTo(place)
  socket.write(UNFINISHED)
  const [, response] = (await once(server.server, 'request')) as [unknown, ServerResponse]
  socket.destroy()
  await once(response, 'close')
  t.match(await ask(place, '/ip'), { ip: '127.0.0.1' }, 'a later request is answered')
  t.strictSame(lines, [])
})

/** Every version but 1.0 and 1.1 that Node's parser accepts; the first has none, which is HTTP/0.9. */
const OTHER_VERSIONS = ['', ' HTTP/0.9', ' HTTP/2.0']

t.test('a request that Node cannot read is counted, and logged at the level debug', async (t) => {
  const compute = join(shortDirectory(t), 'compute.sock')
  const api = await startImdsApi(t, {
    IMDS_API_LOG_LEVEL: 'debug',
    IMDS_API_COMPUTE: 'reported',
    IMDS_API_COMPUTE_LISTEN: `unix:${compute}`,
  })
  const at = (url: string) => ({ host: '127.0.0.1', port: Number(new URL(url).port) })
  const place = at(api.baseUrl)
  await exchange(place, 'nonsense\r\n\r\n')
  await exchange(place, `GET /docs HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`)
  const metrics = await api.metrics()
  t.strictSame(metrics.match(/(?<=^imds_api_unreadable_requests_total).*$/gm), [
    '{reason="bad_request"} 1',
    '{reason="request_timeout"} 0',
    '{reason="header_fields_too_large"} 1',
    '{reason="payload_too_large"} 0',
  ])
  t.match(
    api.log.filter(({ level }) => level === 'debug'),
    [
      { reason: 'bad_request', code: /^HPE_/, address: '127.0.0.1', msg: 'a request cannot be read: it was refused' },
      { reason: 'header_fields_too_large', code: 'HPE_HEADER_OVERFLOW' },
    ],
  )
  await t.test(
    "API, compute interface and operators' listener refuse every version but 1.0 and 1.1 before all else",
    async (t) => {
      const refusal = { error_name: 'bad_request', errors: ['the request is not HTTP/1.1'] }
      const places = [
        [at(api.baseUrl), refusal, ['/docs', '/1.0/servers', '/nothing', '/%zz']],
        [{ path: compute }, refusal, ['/hypervisors/hv-1/actions', '/%zz']],
        [
          at(api.operatorUrl),
          { error: 'the version of HTTP is not 1.0 or 1.1' },
          ['/livez', '/metrics', '/nothing', '/%zz'],
        ],
      ] as const
      for (const version of OTHER_VERSIONS) {
        for (const [place, body, paths] of places) {
          for (const path of paths) {
            const answers = await exchange(place, `GET ${path}${version}\r\nConnection: keep-alive\r\n\r\n`)
            t.strictSame(
              answers.map(({ status, body: sent }) => [status, sent]),
              [[400, body]],
              `GET ${path}${version}`,
            )
            t.match(answers[0]!.headers, /^connection: close$/im)
            if (body === refusal) t.match(answers[0]!.headers, /^x-request-id: [\w-]{36}$/im)
          }
        }
      }
      t.match(await exchange(at(api.operatorUrl), 'GET /livez HTTP/1.0\r\n\r\n'), [{ status: 200 }])
      const after = await api.metrics()
      t.match(
        after,
        '\nimds_api_unreadable_requests_total{reason="bad_request"} 19\n',
        'those of API and compute interface are counted',
      )
    },
  )
})

t.test('a request that arrives too late is refused as JSON; a response that has begun stays whole', async (t) => {
  const { server, place } = await start(t, [LOOPBACK])
  t.equal(server.server.requestTimeout, 60_000)
  server.server.headersTimeout = 100
  server.server.requestTimeout = 200
  const late = {
    status: 408,
    headers: /content-type: application\/json/i,
    body: { error_name: 'request_timeout', errors: ['the request did not arrive in time'] },
  }
  for (const bytes of ['GET /ip HTTP/1.1\r\nHost: a\r\n', UNFINISHED])
    t.match(await exchange(place, bytes), [late], bytes)
  const socket = connectTo(place)
  socket.write(
    'POST /begun HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n',
  )
  let text = ''
  socket.setEncoding('utf8').on('data', (part: string) => {
    if (text === '') socket.write('nonsense\r\n')
    text += part
  })
  await once(socket, 'close')
  t.match(text, /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nhalf$/, 'and nothing follows')
})

/** An open connection that has sent some bytes. */
async function held(t: Test, place: ListenAddress, localAddress: string, bytes: string): Promise<Socket> {
  const socket = connectTo(place, localAddress).resume()
  t.teardown(() => socket.destroy())
  await once(socket, 'connect')
  socket.write(bytes)
  return socket
}

/** Sends a request on an open connection, and keeps it open. Returns the beginning of the response. */
async function askOn(socket: Socket, path: string): Promise<string> {
  socket.write(`GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`)
  return String((await once(socket, 'data'))[0])
}

t.test('beyond its connections, an address gets no further one, and others do', async (t) => {
  const { place, closed } = await start(t, [LOOPBACK], {}, { maxPerAddress: 2 })
  const [idle] = [await held(t, place, '127.0.0.1', ''), await held(t, place, '127.0.0.1', UNFINISHED)]
  await once(await held(t, place, '127.0.0.1', ''), 'close')
  t.strictSame(closed, ['address'])
  for (const socket of [idle, await held(t, place, '127.0.0.2', '')])
    t.match(await askOn(socket, '/ip'), /^HTTP\/1\.1 200/)
  await once(idle.end(), 'close')
  t.match(await askOn(await held(t, place, '127.0.0.1', ''), '/ip'), /^HTTP\/1\.1 200/, 'one has ended')
})

t.test('when all are in use, those without a token make room, then those of the account with the most', async (t) => {
  const { lines, log } = aLog()
  const { place, closed } = await start(t, [LOOPBACK], {}, { maxConnections: 5, maxPerAddress: 2, log })
  const open = async (address: string, owner: string) => {
    const socket = await held(t, place, address, '')
    t.match(await askOn(socket, `/owner/${owner}`), /^HTTP\/1\.1 200/)
    return socket
  }
  const few = await open('127.0.0.1', 'acc-1')
  const [first] = [await open('127.0.0.2', 'acc-2'), await open('127.0.0.3', 'acc-2')]
  const ownerless = [await held(t, place, '127.0.0.4', 'GET /'), await held(t, place, '127.0.0.4', UNFINISHED)]
  for (const [i, replaced] of [...ownerless, first].entries()) {
    const ended = once(replaced, 'close')
    await open(`127.0.0.${5 + i}`, `acc-${5 + i}`)
    await ended
    t.strictSame(closed, Array(i + 1).fill('all'))
  }
  t.match(await askOn(few, '/ip'), /^HTTP\/1\.1 200/)
  t.match(lines, [{ level: 40, connections: 5, msg: /^all connections are in use/ }])
})

t.test('a connection on whose request imds-api works is not closed for another, which is closed itself', async (t) => {
  const { place, release, closed, responses } = await start(t, [LOOPBACK], {}, { maxConnections: 2 })
  const working = [await held(t, place, '127.0.0.1', ''), await held(t, place, '127.0.0.2', '')]
  const answers = Promise.all(working.map((socket) => askOn(socket, '/wait')))
  await until(() => responses.length === 2, 'the requests to arrive')
  await once(await held(t, place, '127.0.0.3', ''), 'close')
  t.strictSame(closed, ['all'])
  release()
  for (const answer of await answers) t.match(answer, /^HTTP\/1\.1 200/)
})

t.test('trusted proxies and unix sockets have the connections of all addresses', async (t) => {
  const { places, closed } = await start(
    t,
    [LOOPBACK, { path: join(shortDirectory(t), 's') }],
    {},
    { maxPerAddress: 1, trustedProxies: ['127.0.0.3', 'unix:'] },
  )
  for (const place of places) {
    const sockets = [await held(t, place, '127.0.0.3', ''), await held(t, place, '127.0.0.3', '')]
    for (const socket of sockets) t.match(await askOn(socket, '/ip'), /^HTTP\/1\.1 200/)
  }
  t.strictSame(closed, [])
})

t.test('TLS connections without a handshake, and idle sessions, count and make room', async (t) => {
  const { tls, ca } = await aCertificate(t)
  const { place, closed } = await start(t, [LOOPBACK], { tls }, { maxConnections: 2, maxPerAddress: 1 })
  const silent = await held(t, place, '127.0.0.2', '')
  const session = connectSecurely(place, ca)
  await once(session, 'secureConnect')
  t.match(await askOn(session, '/owner/acc-1'), /^HTTP\/1\.1 200/)
  await t.rejects(ask(place, '/ip', { ca }), { code: 'ECONNRESET' })
  const ended = once(silent, 'close')
  const other = await held(t, place, '127.0.0.3', '')
  await ended
  t.match(await askOn(session, '/ip'), /^HTTP\/1\.1 200/)
  t.equal(other.destroyed, false)
  t.strictSame(closed, ['address', 'all'])
})

t.test('a peer that does not read a response loses its connection; one that has read keeps it', async (t) => {
  const { place, connections, closed, responses } = await start(t, [LOOPBACK])
  const reads = await held(t, place, '127.0.0.1', '')
  t.match(await askOn(reads, '/ip'), /^HTTP\/1\.1 200/)
  await held(t, place, '127.0.0.1', 'GET /unread HTTP/1.1\r\nHost: a\r\n\r\n')
  await until(() => responses[1]?.headersSent === true, 'the response to begin')
  const socket = responses[1]!.socket!
  t.equal(socket.timeout, 0)
  connections.checkUnread()
  t.equal(socket.timeout, 30_000)
  t.not(responses[0]!.req.socket.timeout, 30_000)
  socket.emit('timeout') // as Node does
  t.equal(socket.destroyed, true)
  t.strictSame(closed, ['unread'])
  t.match(await askOn(reads, '/nothing'), /^HTTP\/1\.1 404/)
})

t.test('unread responses above 64 MiB end, the oldest of the address with the most first', async (t) => {
  const { place, connections, closed, responses } = await start(t, [LOOPBACK])
  for (const [i, address] of ['127.0.0.2', ...Array.from({ length: 8 }, () => '127.0.0.1')].entries()) {
    await held(t, place, address, 'GET /unread HTTP/1.1\r\nHost: a\r\n\r\n')
    await until(() => responses[i]?.headersSent === true, 'the response to begin')
  }
  const isOpen = () => responses.map(({ socket }) => !(socket?.destroyed ?? true))
  for (let checks = 0; checks < 2; checks++) connections.checkUnread() // at the first one it may be in flight
  t.strictSame(isOpen(), [true, false, ...Array<boolean>(7).fill(true)])
  t.strictSame(closed, ['unread'])
})

t.test('of more than 16 pipelined requests, 16 are answered, no other is begun, and the connection ends', async (t) => {
  const { place, waits, closed, release } = await start(t, [LOOPBACK])
  const bytes = 'GET /wait HTTP/1.1\r\nHost: a\r\n\r\n'
  const polite = await held(t, place, '127.0.0.1', bytes.repeat(16))
  await until(() => waits.begun === 1, 'the first request to arrive')
  const greedy = await held(t, place, '127.0.0.1', '')
  const ended = once(greedy, 'close')
  greedy.write(bytes.repeat(500))
  await until(() => closed.length > 0, 'the 17th request to arrive')
  t.equal(waits.begun, 2, 'one of each connection')
  const texts = [polite, greedy].map((socket) => {
    const parts: string[] = []
    socket.setEncoding('utf8').on('data', (part: string) => parts.push(part))
    return parts
  })
  const answers = () => texts.map((parts) => parts.join('').split('HTTP/1.1 200').length - 1)
  release()
  await ended
  await until(() => answers()[0] === 16, 'all answers')
  t.strictSame(answers(), [16, 16])
  t.equal(waits.begun, 32)
  t.equal(polite.destroyed, false)
  t.strictSame(closed, ['pipelined'])
})

t.test('an expectation that the server does not know is ignored', async (t) => {
  const { place } = await start(t, [LOOPBACK])
  t.match(await exchange(place, 'GET /ip HTTP/1.1\r\nHost: a\r\nExpect: x\r\nConnection: close\r\n\r\n'), [
    { status: 200, body: { ip: '127.0.0.1' } },
  ])
})

t.test('a stop answers the requests in flight at every place, and closes idle connections', async (t) => {
  const { server, places, waits, release } = await start(t, [
    LOOPBACK,
    LOOPBACK,
    { path: join(shortDirectory(t), 's') },
  ])
  let accepted = 0
  server.server.on('connection', () => {
    accepted++
  })
  const answers = Promise.all(places.map((place) => ask(place, '/wait')))
  const idle = places.map((place) => connectTo(place).resume())
  const late = places.map((place) => connectTo(place))
  const ended = Promise.all(idle.map((socket) => once(socket, 'close')))
  await until(() => waits.begun === 3 && accepted === 9, 'the connections and requests to arrive')
  const closed = server.close()
  const lateAnswers = late.map(async (socket) => {
    socket.write('GET /ip HTTP/1.1\r\nHost: a\r\n\r\n')
    return (await socket.toArray()).join('')
  })
  release()
  await closed
  for (const answer of lateAnswers)
    t.match(await answer, /^HTTP\/1\.1 200 OK\r\n[^]*connection: close/i, 'a request on an open connection too')
  t.strictSame(
    await answers,
    places.map(() => ({ released: true })),
  )
  await ended
  for (const place of places) await t.rejects(ask(place, '/ip'), { code: /ECONNREFUSED|ENOENT/ })
})

t.test('a stop waits for requests on which imds-api works, but not for clients that send nothing', async (t) => {
  const { server, waits, release, place } = await start(t, [LOOPBACK])
  const answer = ask(place, '/wait')
  const half = await held(t, place, '127.0.0.1', 'POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{')
  await until(() => waits.begun === 1, 'the request to arrive')
  const ended = once(half, 'close')
  const closed = server.close()
  await ended
  release()
  t.strictSame(await answer, { released: true })
  await closed
})
