/**
 * Connections that the daemon ends while the guest is still sending: the response arrives (contract A4, A9), and the
 * daemon reads only a limited amount after it (F2).
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { MAX_LINGER_BYTES, LINGER_IDLE_MS, LINGER_MS } from '../../src/imdsd/guest/linger.ts'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aGuestServer } from '../support/fixtures/guest-server.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { testDirectory } from '../support/test-directory.ts'

const ID = '/latest/meta-data/instance-id'
const MIB = 2 ** 20
/** How long the daemon reads from a connection that it refuses, in ms (connection-guard.ts). */
const SHORT_LINGER_MS = 1_000
/** The repetitions of each case, because a response may be lost only sometimes. */
const TIMES = 3
const [GUEST, OTHER] = ['127.0.0.2', '127.0.0.3']
/**
 * Addresses that two instances claim. Each has its own share, which is that of an unknown peer and smaller than a
 * guest's.
 */
const CONTESTED = Array.from({ length: 17 }, (_, i) => `127.0.1.${i + 1}`)

/** A daemon whose guests have the default share, or an unlimited one. */
async function aDaemon(t: Test, share: 'default' | 'unlimited'): Promise<TestDaemon> {
  const directory = testDirectory(t)
  const record = (id: string, ...addresses: string[]) =>
    anInstance({ id, interfaces: loopback(1, { ipv4Addresses: addresses.map((address) => `${address}/8`) }) })
  const store = await openStore({ url: `file:${directory}` })
  await store.put(record('srv-guest', GUEST))
  await store.put(record('srv-other', OTHER))
  for (const n of [3, 4])
    writeFileSync(join(directory, `srv-${n}.json`), JSON.stringify(record(`srv-${n}`, ...CONTESTED)))
  const daemon = await startDaemon(t, {
    IMDS_STORE: `file:${directory}`,
    ...(share === 'default' && { IMDS_GUEST_BURST: '600', IMDS_GUEST_CONNECTIONS: '64' }),
  })
  await until(
    async () => (await daemon.operator('/readyz')).status === 200 && (await daemon.get(ID, GUEST)).status === 200,
    'the instances',
  )
  return daemon
}

interface Sent {
  readonly text: string
  readonly error: string | undefined
  readonly sentAll: boolean
}

/**
 * As `sendOnce`, and sends again if that took so long that the daemon may close the connection: on a busy machine, this
 * process or the daemon may not run for a second.
 */
async function send(
  to: Pick<TestDaemon, 'guestPort'>,
  bytes: string,
  { withinMs = LINGER_MS, ...options }: { from?: string | undefined; pauseMs?: number; withinMs?: number } = {},
): Promise<Sent> {
  for (let attempt = 1; ; attempt++) {
    const { longestPauseMs, tookMs, ...sent } = await sendOnce(to, bytes, options)
    if ((longestPauseMs < LINGER_IDLE_MS / 2 && tookMs < withinMs / 2) || attempt === 20) return sent
  }
}

/**
 * Sends like a client that reads nothing before it has sent everything (Python's http.client, most C clients): if the
 * connection is reset before that, the response is lost. `pauseMs` is the pause after each 64 KiB.
 */
async function sendOnce(
  { guestPort }: Pick<TestDaemon, 'guestPort'>,
  bytes: string,
  { from = GUEST, pauseMs = 0 }: { from?: string | undefined; pauseMs?: number } = {},
): Promise<Sent & { readonly longestPauseMs: number; readonly tookMs: number }> {
  const beganMs = performance.now()
  const socket = connect({ port: guestPort, host: '127.0.0.1', localAddress: from })
  const closed = new Promise((resolve) => socket.on('close', resolve))
  let [text, error] = ['', undefined as string | undefined]
  socket.on('error', (problem: NodeJS.ErrnoException) => {
    error = problem.code
  })
  await Promise.race([once(socket, 'connect').catch(() => undefined), closed])
  socket.pause()
  const data = Buffer.from(bytes, 'latin1')
  let longestPauseMs = 0
  for (let at = 0; at < data.length && !socket.destroyed; at += 65_536) {
    const startedMs = performance.now()
    const written = new Promise((resolve) => socket.write(data.subarray(at, at + 65_536), resolve))
    await Promise.race([written, closed])
    if (pauseMs > 0) await sleep(pauseMs)
    longestPauseMs = Math.max(longestPauseMs, performance.now() - startedMs)
  }
  const sentAll = !socket.destroyed && error === undefined
  const tookMs = performance.now() - beganMs
  socket
    .setEncoding('latin1')
    .on('data', (chunk: string) => {
      text += chunk
    })
    .resume()
  await closed
  return { text, error, sentAll, longestPauseMs, tookMs }
}

const statusesOf = (text: string) => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status).join()
/** A connection as text: the statuses, then the error, `all sent` or `cut`. */
const summary = ({ text, error, sentAll }: Sent) => `${statusesOf(text)} ${error ?? (sentAll ? 'all sent' : 'cut')}`
const chunked = (size: number) =>
  `${(65_000).toString(16)}\r\n${'x'.repeat(65_000)}\r\n`.repeat(Math.ceil(size / 65_000)) + '0\r\n\r\n'
const request = (line: string, size: number, ...headers: string[]) =>
  `${[line, 'Host: x', `Content-Length: ${size}`, ...headers].join('\r\n')}\r\n\r\n${'x'.repeat(size)}`
const TTL = 'X-aws-ec2-metadata-token-ttl-seconds: 60'
const POST = request(`POST ${ID} HTTP/1.1`, MIB)
const ENDLESS = `POST ${ID} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n`

let uses = 0
const anUnknownPeer = () => `127.1.0.${(uses++ % 250) + 1}`
const aContestedAddress = () => CONTESTED[uses++ % CONTESTED.length]!

const CASES: readonly (readonly [
  what: string,
  bytes: (size: number) => string,
  status: string,
  from?: () => string,
])[] = [
  ['GET', (size) => request(`GET ${ID} HTTP/1.1`, size), '200'],
  [
    'GET in chunks',
    (size) => `GET ${ID} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n${chunked(size)}`,
    '200',
  ],
  ['POST', (size) => request(`POST ${ID} HTTP/1.1`, size), '405'],
  ['PUT for a token', (size) => request('PUT /latest/api/token HTTP/1.1', size, TTL), '200'],
  ['PUT of an unknown peer', (size) => request('PUT /latest/api/token HTTP/1.1', size, TTL), '503', anUnknownPeer],
  ['GET of a contested address', (size) => request(`GET ${ID} HTTP/1.1`, size), '503', aContestedAddress],
  [
    'POST whose body becomes malformed',
    (size) =>
      `POST ${ID} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nZ\r\n${'x'.repeat(size)}`,
    '405',
  ],
  ['garbage', (size) => `garbage\r\n\r\n${'x'.repeat(size)}`, '400'],
  ['endless head', (size) => `GET ${ID} HTTP/1.1\r\nX: ${'x'.repeat(size)}`, '400'],
  ['CONNECT', (size) => `CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n${'x'.repeat(size)}`, '405'],
  [
    'upgrade',
    (size) => `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n${'x'.repeat(size)}`,
    '200',
  ],
  [
    'last request, followed by other bytes',
    (size) => `GET ${ID} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n${'x'.repeat(size)}`,
    '200',
  ],
]

t.test('A9: the response arrives while the guest is still sending', async (t) => {
  const daemon = await aDaemon(t, 'unlimited')
  for (const [what, bytes, status, from] of CASES) {
    await t.test(what, async (t) => {
      for (const [size, pauseMs] of [
        [MIB, 0],
        [5 * MIB, 0],
        [MIB, 30],
      ] as const) {
        const sent: Sent[] = []
        for (let i = 0; i < (pauseMs === 0 ? TIMES : 1); i++)
          sent.push(await send(daemon, bytes(size), { pauseMs, from: from?.() }))
        t.same(
          sent.map(summary),
          sent.map(() => `${status} all sent`),
          `${size / MIB} MiB${pauseMs === 0 ? '' : ', slowly'}`,
        )
      }
    })
  }
  t.same(
    daemon.log.filter(({ level }) => level === 'error' || level === 'fatal'),
    [],
  )
})

t.test('A9: a guest with too many connections gets its response while it is still sending', async (t) => {
  const daemon = await aDaemon(t, 'default')
  const open = await Promise.all(Array.from({ length: 64 }, () => openConnection(daemon, GUEST)))
  for (let i = 0; i < TIMES; i++)
    t.equal(summary(await send(daemon, POST, { withinMs: SHORT_LINGER_MS })), '503 all sent')
  for (const socket of open) socket.destroy()
})

t.test('A9: a guest beyond its request share gets its response while it is still sending', async (t) => {
  const burst = 600
  const { server, view, put } = aGuestServer({ share: { burst, perSecond: 1e-9, connections: 64 } })
  const { id } = put(anInstance({ interfaces: loopback(2) }))
  Object.defineProperty(view.get(id)!, 'paths', { value: 0 }) // a tree would make the burst larger
  await server.listen({ port: 0, host: '127.0.0.1' })
  t.teardown(() => server.close())
  const guest = { guestPort: (server.server.address() as AddressInfo).port }
  const socket = await openConnection(guest, GUEST)
  let text = ''
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
  })
  socket.write(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(burst))
  await until(() => text.split('HTTP/1.1 200').length > burst, 'the responses of the share')
  for (let i = 0; i < TIMES; i++)
    t.equal(summary(await send(guest, POST, { withinMs: SHORT_LINGER_MS })), '503 all sent')
  socket.destroy()
})

t.test('F2: the daemon reads a limited amount from a connection after its last response', async (t) => {
  const daemon = await aDaemon(t, 'default')
  /** The number of bytes that the daemon has read so far. */
  const bytesRead = () =>
    Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${String(daemon.process.pid)}/io`, 'utf8'))?.[1])

  await t.test('a connection is read up to a number of bytes', async (t) => {
    const before = bytesRead()
    const socket = await openConnection(daemon, GUEST, ENDLESS)
    await sendEndlessly(socket)
    t.ok(
      bytesRead() - before >= MAX_LINGER_BYTES && bytesRead() - before < MAX_LINGER_BYTES + MIB,
      `${bytesRead() - before} bytes`,
    )
  })

  await t.test('a silent connection ends before a slow sender; until then both count for the guest', async (t) => {
    const openSome = (many: number) =>
      Promise.all(Array.from({ length: many }, () => openConnection(daemon, OTHER, ENDLESS)))
    const slow = await openSome(63)
    const extra: Socket[] = []
    const sending = setInterval(() => {
      for (const socket of [...slow, ...extra]) if (socket.writable) socket.write('x')
    }, 100)
    t.teardown(() => clearInterval(sending))
    const [silent] = await openSome(1)
    const another = async () => statusesOf((await send(daemon, `GET ${ID} HTTP/1.0\r\n\r\n`, { from: OTHER })).text)
    t.equal(await another(), '503', 'the guest may not have another connection')
    extra.push(...(await openSome(1)))
    await closed(extra[0]!)
    t.same(
      slow.filter((socket) => socket.closed),
      [],
      'a connection beyond the share ends before older ones',
    )
    await until(async () => (await another()) === '200', 'the silent connection to end')
    const [next] = await openSome(1)
    t.equal(await another(), '503', 'only the silent connection has ended')
    await Promise.all(slow.map(closed))
    for (const socket of [silent!, next!]) socket.destroy()
  })

  await t.test("all connections together are read up to the guest's share", async (t) => {
    const [before, startedMs] = [bytesRead(), performance.now()]
    let connections = 0
    for (; performance.now() - startedMs < 3_000; connections += 32)
      await Promise.all(
        Array.from({ length: 32 }, async () => sendEndlessly(await openConnection(daemon, GUEST, ENDLESS))),
      )
    const read = bytesRead() - before
    const discarded = ((601 + (100 * (performance.now() - startedMs)) / 1_000) * MIB) / 8
    const withHeads = (connections * MIB) / 8 // Node reads 64 KiB at a time, twice before it stops
    t.ok(
      read < discarded + withHeads + MIB, // a MiB: what else the daemon reads
      `${Math.round(read / MIB)} MiB; the limit is ${Math.round(discarded / MIB)}, and ${Math.round(withHeads / MIB)} with the heads of ${connections} connections`,
    )
  })

  await t.test('a stopping daemon reads no more, even after a CONNECT, which Node no longer counts', async (t) => {
    for (const bytes of [ENDLESS, 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n']) {
      const socket = await openConnection(daemon, OTHER, bytes)
      await once(socket, 'end')
      const sending = setInterval(() => {
        if (socket.writable) socket.write('x')
      }, 100)
      t.teardown(() => {
        clearInterval(sending)
        socket.destroy()
      })
    }
    const stopped = daemon.stop()
    const lingering = sleep(LINGER_MS / 2, 'lingering', { ref: false })
    t.equal(await Promise.race([stopped.then(() => 'stopped'), lingering]), 'stopped')
    await stopped
  })
})

function closed(socket: Socket): Promise<void> {
  return new Promise((resolve) => {
    if (socket.closed) resolve()
    else socket.on('close', () => resolve())
  })
}

/** Sends bytes until the daemon closes the connection. */
async function sendEndlessly(socket: Socket): Promise<void> {
  const [zeros, end] = [Buffer.alloc(65_536), closed(socket)]
  while (!socket.destroyed) await Promise.race([new Promise((resolve) => socket.write(zeros, resolve)), end])
}

/** Opens a connection and sends bytes on it. */
async function openConnection({ guestPort }: Pick<TestDaemon, 'guestPort'>, from: string, bytes = ''): Promise<Socket> {
  const socket = connect({ port: guestPort, host: '127.0.0.1', localAddress: from, allowHalfOpen: true })
  socket.resume().on('error', () => undefined)
  await Promise.race([once(socket, 'connect').catch(() => undefined), closed(socket)])
  if (bytes !== '') socket.write(bytes, 'latin1')
  return socket
}
