/**
 * Parts A4 to A7 of the contract that depend on the bytes on a socket, and refusals before a request has been parsed.
 */
import { once } from 'node:events'
import { METHODS } from 'node:http'
import { connect } from 'node:net'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import type { Publisher } from '../../src/store/publisher.ts'
import { request, startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aLocalInstance, anInstance, loopback } from '../support/fixtures/instance.ts'
import { exchange, parseAnswer } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'

const ID = '/latest/meta-data/instance-id'

let daemon: TestDaemon
let store: Publisher
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  store = await openStore({ url })
  await store.put(anInstance({ interfaces: loopback() }), Buffer.from('data'))
  daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_LISTEN: '127.0.0.1:0' })
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
})

const counted = (reason: string, method: string, status: number) =>
  daemon.metric(`imds_requests_total{route="unknown",method="${method}",status="${status}",reason="${reason}"}`)

const SERVED: [string, string, string][] = [
  ['A5', 'Connection: close', `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`],
  ['A5', 'HTTP/1.0 without a Host', `GET ${ID} HTTP/1.0\r\n\r\n`],
  ['A5', 'HTTP/1.1 without a Host', `GET ${ID} HTTP/1.1\r\nConnection: close\r\n\r\n`],
  [
    'A5',
    'an absolute-form target, whatever host it names',
    `GET http://evil.example:81${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`,
  ],
  [
    'A5',
    'a request for an upgrade, which is ignored,',
    `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n`,
  ],
  [
    'A4',
    'a body of any type',
    `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n{`,
  ],
  [
    'A4',
    'an empty chunked body',
    `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
  ],
  ['A5', 'an unknown expectation', `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: miracles\r\n\r\n`],
  [
    'A6',
    'a client that accepts gzip',
    `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: gzip, br\r\n\r\n`,
  ],
]
for (const [number, what, bytes] of SERVED) {
  t.test(`${number}: ${what} is served`, async (t) => {
    const { status, headers, body } = await exchange(daemon.guestPort, bytes)
    t.same([status, body], [200, 'srv-abcde'])
    t.same(Object.keys(headers).sort(), ['connection', 'content-length', 'content-type', 'date', 'etag'])
    t.match(headers, { 'content-type': 'text/plain', 'content-length': '9' })
  })
}

t.test('A5: a request with Expect: 100-continue gets a 100, then its response', async (t) => {
  const { text } = await exchange(
    daemon.guestPort,
    `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx`,
  )
  t.match(text, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 200 OK\r\n/)
})

t.test('A5: 30 pipelined requests on one connection are answered in order', async (t) => {
  const one = (path: string, last = false) =>
    `GET ${path} HTTP/1.1\r\nHost: x\r\n${last ? 'Connection: close\r\n' : ''}\r\n`
  const { text } = await exchange(daemon.guestPort, one(ID).repeat(29) + one('/latest/user-data', true))
  t.equal(text.match(/HTTP\/1\.1 200 OK/g)?.length, 30)
  t.match(text, /srv-abcdeHTTP.*\r\n\r\ndata$/s)
})

t.test('A5: the server announces and closes an idle connection', async (t) => {
  const socket = connect(daemon.guestPort, '127.0.0.1', () => socket.write(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`))
  let text = ''
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
  })
  await once(socket, 'close')
  t.match(parseAnswer(text).headers, { connection: 'keep-alive', 'keep-alive': 'timeout=3' })
})

const REFUSED: [string, string, string, string, number, string][] = [
  ['A7', 'garbage', 'garbage\r\n\r\n', 'malformed-request', 400, 'other'],
  ['A7', 'a raw space in the target', 'GET /latest/a b HTTP/1.1\r\nHost: x\r\n\r\n', 'malformed-request', 400, 'other'],
  ['A7', 'a method that does not exist', `FROB ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`, 'malformed-request', 400, 'other'],
  ['A7', 'a TLS hello', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 'malformed-request', 400, 'other'],
  [
    'F2',
    'headers without end',
    `GET ${ID} HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`,
    'headers-too-large',
    400,
    'other',
  ],
  ['F2', 'an endless target', `GET /${'x'.repeat(20_000)} HTTP/1.1\r\n\r\n`, 'headers-too-large', 400, 'other'],
  ['A4', 'CONNECT', 'CONNECT evil.example:80 HTTP/1.1\r\nHost: x\r\n\r\n', 'method-not-allowed', 405, 'other'],
]
for (const [number, what, bytes, reason, status, method] of REFUSED) {
  t.test(`${number}: ${what} is refused, counted as ${reason}, and the connection closed`, async (t) => {
    const before = (await counted(reason, method, status)) || 0
    const answer = await exchange(daemon.guestPort, bytes)
    t.equal(answer.status, status)
    t.equal(answer.headers['connection'], 'close')
    t.equal(answer.headers['content-length'], String(answer.body.length))
    t.equal(answer.headers['server'], undefined)
    if (status === 400)
      t.match(answer, { headers: { 'content-type': 'text/html' }, body: /<title>400 - Bad Request<\/title>/ })
    t.equal(await counted(reason, method, status), before + 1)
  })
}

t.test("A4: methods but GET and HEAD get 405 with Allow, those that Node's parser does not know 400", async (t) => {
  const ask = (method: string, target = method === 'CONNECT' ? 'x:1' : ID) =>
    exchange(daemon.guestPort, `${method} ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`)
  for (const method of METHODS.filter((name) => name !== 'GET' && name !== 'HEAD')) {
    t.match(
      await ask(method),
      { status: 405, headers: { allow: 'GET, HEAD', 'content-length': '0' }, body: '' },
      method,
    )
  }
  t.match([await ask('OPTIONS', '*'), await ask('GET', '*')], [{ status: 405 }, { status: 404 }], 'the whole server')
  for (const method of ['FOO', 'get', 'GETS', 'G', 'DESCRIBE', 'PRI']) {
    t.match(
      await ask(method),
      { status: 400, headers: { 'content-type': 'text/html' }, body: /<title>400 - Bad Request<\/title>/ },
      method,
    )
  }
})

/** Every other version that Node's parser accepts; the first has none, which is HTTP/0.9. */
const OTHER_VERSIONS = ['', ' HTTP/0.9', ' HTTP/2.0', ' RTSP/2.0']

t.test('A5: a request of any version but 1.0 and 1.1 gets 400, no token, and a closed connection', async (t) => {
  const before = [
    (await counted('malformed-request', 'GET', 400)) || 0,
    (await counted('malformed-request', 'PUT', 400)) || 0,
  ]
  for (const version of OTHER_VERSIONS) {
    const page = await exchange(daemon.guestPort, `GET ${ID}${version}\r\nHost: x\r\nConnection: keep-alive\r\n\r\n`)
    t.match(
      page,
      {
        status: 400,
        headers: { connection: 'close', 'content-type': 'text/html' },
        body: /<title>400 - Bad Request<\/title>/,
      },
      `GET${version}`,
    )
  }
  for (const version of OTHER_VERSIONS.slice(0, 3)) {
    const put = await exchange(
      daemon.guestPort,
      `PUT /latest/api/token${version}\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\nContent-Length: 1\r\n\r\nx`,
    )
    t.match(put, { status: 400, headers: { connection: 'close', 'content-length': '0' }, body: '' }, `PUT${version}`)
    const connect = await exchange(daemon.guestPort, `CONNECT x:1${version}\r\n\r\n`)
    t.match(connect, { status: 400, headers: { connection: 'close' } }, `CONNECT${version}`)
  }
  t.same(
    [await counted('malformed-request', 'GET', 400), await counted('malformed-request', 'PUT', 400)],
    [before[0]! + 4, before[1]! + 3],
  )
  t.match(
    await exchange(daemon.guestPort, `GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\nGET ${ID}\r\nHost: x\r\n\r\n`),
    { text: /^HTTP\/1\.1 200 [^]*srv-abcdeHTTP\/1\.1 400 / },
    'after a response',
  )
})

t.test(
  "the operators' listener refuses every version but 1.0 and 1.1 with 400 and closes the connection",
  async (t) => {
    for (const version of OTHER_VERSIONS) {
      for (const path of ['/readyz', '/nothing', '/%zz']) {
        const answer = await exchange(
          daemon.operatorPort,
          `GET ${path}${version}\r\nHost: x\r\nConnection: keep-alive\r\n\r\n`,
        )
        t.match(
          answer,
          { status: 400, headers: { connection: 'close', 'content-type': 'application/json' } },
          `GET ${path}${version}`,
        )
        t.same(JSON.parse(answer.body), { error: 'the version of HTTP is not 1.0 or 1.1' })
      }
    }
    t.match(await exchange(daemon.operatorPort, 'GET /livez HTTP/1.0\r\n\r\n'), { status: 200, body: 'ok\n' })
  },
)

t.test('F2: an incomplete request times out and is counted with its reason; others are served', async (t) => {
  const before = (await counted('request-timeout', 'other', 400)) || 0
  const slow = exchange(daemon.guestPort, `GET ${ID} HTTP/1.1\r\nHost: x\r\nX-Slow: `)
  t.equal((await daemon.get(ID)).status, 200)
  t.match(await slow, { status: 400 })
  t.equal(await counted('request-timeout', 'other', 400), before + 1)
})

t.test('A8: no dots or backslashes lead to another path, as they did in CloudStack and nova', async (t) => {
  for (const target of [
    '/latest/meta-data/../user-data',
    '/latest/meta-data/../../10.0.0.6/user-data',
    '/latest/meta-data/%2e%2e/%2e%2e/etc/passwd',
    '/latest/meta-data/..%2fuser-data',
    '/latest\\meta-data\\..\\user-data',
  ])
    t.match(await exchange(daemon.guestPort, `GET ${target} HTTP/1.0\r\n\r\n`), { status: 404 }, target)
})

t.test('invariant 6: a connection that is reset at any moment affects no other', async (t) => {
  for (const bytes of [
    'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n',
    'garbage\r\n\r\n',
    `GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`,
    'CONNECT x:1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx',
    'CONNECT x:1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na',
    `POST ${ID} HTTP/1.1\r\nContent-Length: 9\r\n\r\nx`,
    'GET /',
  ]) {
    for (let i = 0; i < 20; i++) {
      const socket = connect(daemon.guestPort, '127.0.0.1')
      await once(socket, 'connect')
      socket.write(bytes)
      if (i % 2) await new Promise(setImmediate)
      socket.resetAndDestroy()
    }
  }
  t.equal((await daemon.get(ID)).status, 200)
  t.same(
    daemon.log.filter(({ level }) => level === 'error' || level === 'fatal'),
    [],
  )
})

t.test('F2: a flood of line breaks is reset; for 5 s its peer is refused, and others are served', async (t) => {
  await store.put(aLocalInstance(2), 'none')
  const get = (from: string) => request(daemon.guestPort, ID, from)
  await until(async () => (await get('127.0.0.2')).status === 200, 'the flooder')
  const settings = { port: daemon.guestPort, host: '127.0.0.1', localAddress: '127.0.0.2' }
  const socket = connect(settings, () => socket.write(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`))
  socket.resume().on('error', () => undefined)
  const lines = '\r\n'.repeat(32_768)
  const flood = () => {
    while (!socket.destroyed && socket.write(lines));
  }
  socket.on('drain', flood)
  flood()
  await new Promise((resolve) => socket.on('close', resolve))
  t.equal(await daemon.metric('imds_connections_dropped_total{reason="over-share"}'), 1)
  t.match(await Promise.all(['127.0.0.2', '127.0.0.1'].map(get)), [{ status: 503 }, { status: 200 }])
  await until(async () => (await get('127.0.0.2')).status === 200, 'the peer to be read again')
})

t.test('F2: the daemon closes a refused connection that the peer keeps open', async (t) => {
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', allowHalfOpen: true }, () => {
    socket.write('CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n')
  })
  socket.resume().on('error', () => undefined)
  const trickle = setInterval(() => socket.write('x'), 50)
  t.teardown(() => clearInterval(trickle))
  await new Promise((resolve) => socket.on('close', resolve))
  t.pass('closed by the daemon')
})
