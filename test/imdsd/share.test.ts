/**
 * Part F of the contract over real sockets: the responses to a guest beyond its share, and that other guests are not
 * affected.
 */
import diagnostics from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { UNKNOWN_PEERS } from '../../src/imdsd/guest/share.ts'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { exchange, parseAnswer } from '../support/fixtures/socket.ts'
import { testDirectory } from '../support/test-directory.ts'

const ID = '/latest/meta-data/instance-id'
const REQUEST = `GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`
const [FLOODER, OTHER] = ['127.0.0.2', '127.0.0.3']

let daemon: TestDaemon
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url, userDataMaxBytes: 1_000_000 })
  for (const i of [0, 1])
    await store.put(anInstance({ id: `srv-${i}`, interfaces: loopback(i + 2) }), Buffer.alloc(256 * 1024, 'x'))
  daemon = await startDaemon(t, {
    IMDS_STORE: url,
    IMDS_GUEST_BURST: '600',
    IMDS_GUEST_CONNECTIONS: '16',
    IMDS_USER_DATA_MAX_BYTES: '1000000',
  })
  for (const address of [FLOODER, OTHER])
    await until(async () => (await daemon.get(ID, address)).status === 200, `the instance of ${address}`)
})

const metric = async (name: string) => (await daemon.metric(name)) || 0

/** Opens a connection of the flooder and sends bytes. `text` returns everything that was received. */
async function aConnection(bytes = ''): Promise<{ socket: Socket; text: () => string; closed: Promise<unknown> }> {
  let text = ''
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress: FLOODER })
  const closed = new Promise((resolve) => socket.on('error', () => undefined).on('close', resolve))
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
  })
  await once(socket, 'connect').catch(() => undefined)
  if (bytes !== '') socket.write(bytes)
  return { socket, text: () => text, closed }
}

async function othersAreServed(t: Test, times = 20): Promise<void> {
  for (let i = 0; i < times; i++) t.match(await daemon.get(ID, OTHER), { status: 200, body: Buffer.from('srv-1') })
}

// first: it uses most of a whole share, and takes so long that the share is whole again
t.test('F2: a guest that never reads its responses is disconnected and counted as stalled', async (t) => {
  const sockets = await Promise.all(Array.from({ length: 3 }, () => aConnection()))
  for (const { socket } of sockets) {
    socket.pause()
    socket.write('GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(190))
  }
  await othersAreServed(t)
  await until(
    async () => (await metric('imds_connections_dropped_total{reason="stalled"}')) === 3,
    'the stalled connections to be closed',
    60_000,
  )
  for (const { socket } of sockets) socket.destroy()
  await othersAreServed(t)
})

t.test('F1: a guest gets 503 beyond 16 connections and a reset beyond four times it; others are served', async (t) => {
  const open = []
  for (let i = 0; i < 16; i++) open.push(await aConnection())
  const refused = await aConnection()
  await until(() => refused.text() !== '', 'a response')
  t.match(parseAnswer(refused.text()), { status: 503, headers: { 'retry-after': '1', connection: 'close' } })
  await othersAreServed(t)
  const more = await Promise.all(Array.from({ length: 600 }, () => aConnection()))
  await until(
    async () => (await metric('imds_connections_dropped_total{reason="over-share"}')) > 0,
    'connections that are reset',
  )
  await othersAreServed(t)
  for (const { socket } of [...open, refused, ...more]) socket.destroy()
  await until(
    async () => (await daemon.get(ID, FLOODER).catch(() => null))?.status === 200,
    'a response after the guest has closed its connections',
  )
  matchAll(
    t,
    daemon.log.filter(({ msg, reason }) => msg === 'request refused' && reason === 'too-many-connections'),
    [{ level: 'warn', instance: 'srv-0', address: FLOODER }],
  )
})

t.test('F1: guests are served while many unknown peers have connections open', async (t) => {
  const open: Socket[] = []
  for (let i = 0; i < 1_500; i++) {
    const socket = connect({
      port: daemon.guestPort,
      host: '127.0.0.1',
      localAddress: `127.1.${i >> 8}.${i & 255}`,
    }).on('error', () => undefined)
    open.push(socket)
  }
  await until(
    async () =>
      (await metric('imds_requests_total{route="unknown",method="other",status="503",reason="too-many-connections"}')) >
      300,
    '503 for unknown peers',
  )
  await othersAreServed(t)
  for (const socket of open) socket.destroy()
})

t.test('F1: a guest that pipelines beyond its share is refused in its turn, and other guests are served', async (t) => {
  const { text, socket } = await aConnection(REQUEST.repeat(3_000))
  await until(() => text().includes('HTTP/1.1 503'), 'a refusal')
  await othersAreServed(t)
  socket.destroy()
})

/** What is refused without a request that could be served: the bytes, and the status of a refusal within the share. */
const UNSERVABLE: readonly (readonly [what: string, bytes: string, status: number])[] = [
  ['bytes that are not HTTP', 'garbage\r\n\r\n', 400],
  ['an unknown method', `FROB ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`, 400],
  ['another version of HTTP', `GET ${ID}\r\n\r\n`, 400],
  ['headers that are too large', `GET ${ID} HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, 400],
  ['CONNECT', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', 405],
  // never served without those that come last
  ['too many headers', `GET ${ID} HTTP/1.1\r\n${'a:\r\n'.repeat(1_000)}X-Forwarded-For: x\r\n\r\n`, 400],
]

/** A server in this process for the guests FLOODER and OTHER, whose share has three requests and is not refilled. */
async function withSmallShares(t: Test): Promise<{ readonly port: number; readonly drops: () => number }> {
  const guest = aGuestServer({ share: { burst: 3, perSecond: 1e-9, connections: 16 } })
  for (const i of [0, 1]) {
    const { id } = guest.put(anInstance({ id: `srv-${i}`, interfaces: loopback(i + 2) }))
    Object.defineProperty(guest.view.get(id)!, 'paths', { value: 0 }) // a tree would make the burst larger
  }
  await guest.server.listen({ port: 0, host: '127.0.0.1' })
  t.teardown(() => guest.server.close())
  return { port: (guest.server.server.address() as AddressInfo).port, drops: () => guest.meter.drops['over-share'] }
}
const statusOf = async (port: number, bytes: string, localAddress: string) =>
  (await exchange(port, bytes, { localAddress })).status
const LAST = `GET ${ID} HTTP/1.0\r\n\r\n`

t.test('F1: a guest beyond its share gets 503 on a connection that stays open; another guest is served', async (t) => {
  const { port } = await withSmallShares(t)
  const socket = connect({ port, host: '127.0.0.1', localAddress: FLOODER })
  t.teardown(() => socket.destroy())
  let text = ''
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
  })
  for (const status of [200, 200, 200, 503, 503]) {
    text = ''
    socket.write(REQUEST)
    await until(() => /\r\n\r\n./.test(text), 'a response')
    t.match(parseAnswer(text), { status })
  }
  t.match(parseAnswer(text), { headers: { 'retry-after': '1', 'content-type': 'text/html' } })
  t.notMatch(parseAnswer(text).headers, { connection: 'close' })
  t.equal(await statusOf(port, LAST, OTHER), 200)
})

for (const [what, bytes, status] of UNSERVABLE) {
  t.test(`F1: ${what} costs a guest one request of its share; beyond it 503; another is served`, async (t) => {
    const { port } = await withSmallShares(t)
    for (const expected of [status, status, status, 503, 503]) t.equal(await statusOf(port, bytes, FLOODER), expected)
    t.equal(await statusOf(port, LAST, FLOODER), 503, 'also for a request')
    const refused = await exchange(port, bytes, { localAddress: FLOODER })
    t.match(refused, { status: 503, headers: { 'retry-after': '1', connection: 'close' } })
    t.equal(await statusOf(port, LAST, OTHER), 200)
  })
}

t.test('F1: a request with a malformed body costs one request of the share', async (t) => {
  const { port } = await withSmallShares(t)
  const bytes = `GET ${ID} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZ\r\n`
  for (const expected of [200, 200, 200, 503]) t.equal(await statusOf(port, bytes, FLOODER), expected)
})

t.test('F1: what a guest sends behind a request whose refusal is delayed is refused after it', async (t) => {
  for (const [bytes, isLast] of [
    [REQUEST, false],
    ...UNSERVABLE.map(([, unservable]) => [unservable, true] as const),
  ] as const) {
    const { port } = await withSmallShares(t)
    for (let i = 0; i < 3; i++) t.equal(await statusOf(port, LAST, FLOODER), 200)
    const { text } = await exchange(port, REQUEST + bytes + (isLast ? '' : LAST), { localAddress: FLOODER })
    t.same(
      [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status),
      isLast ? ['503', '503'] : ['503', '503', '503'],
    )
    t.equal(await statusOf(port, LAST, OTHER), 200)
  }
})

t.test("F1: pipelining beyond an unknown peer's share creates almost no request objects", async (t) => {
  const { server } = aGuestServer()
  await server.listen({ port: 0, host: '127.0.0.1' })
  t.teardown(() => server.close())
  let created = 0
  const count = () => {
    created += 1
  }
  diagnostics.subscribe('http.server.request.start', count)
  t.teardown(() => diagnostics.unsubscribe('http.server.request.start', count))
  const socket = connect((server.server.address() as AddressInfo).port, '127.0.0.1')
  t.teardown(() => socket.destroy())
  socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(3_600))
  let text = ''
  for await (const chunk of socket.setEncoding('latin1') as AsyncIterable<string>) {
    text += chunk
    if (text.split('HTTP/1.1 ').length > UNKNOWN_PEERS.perPeer.burst + 1) break // the first refusal beyond the share
  }
  t.ok(created < 2 * UNKNOWN_PEERS.perPeer.burst, `${created} of 3,600`)
})
