/**
 * Requests that are pipelined behind one whose response is pending (contract A9, H1): whatever that one waits for, they
 * are not read before, and are answered after it, in order.
 */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { aGuestServer, type TestGuest } from '../support/fixtures/guest-server.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { until } from '../support/programs/daemon.ts'

/** Each test has its own server, and most wait: all run at once. */
t.jobs = 10
const ALONGSIDE = { buffered: true }
const ID = '/latest/meta-data/instance-id'
const TAG = '/latest/meta-data/tags/instance/state'
const MIB = 2 ** 20
const get = (path: string, headers = '') => `GET ${path} HTTP/1.1\r\n${headers}\r\n`

/** An instance at 127.0.0.1, with a tag. */
const record = (revision: number, state: string) =>
  anInstance({
    revision,
    interfaces: loopback(1),
    tags: { state },
    options: { instanceMetadataTags: 'enabled', reports: 'enabled' },
  })

/** A server of one guest, in this process, and a connection to it. With `lookUp` the guest is not known. */
async function serve(t: Test, settings: Parameters<typeof aGuestServer>[0] = {}, userData?: Buffer) {
  const guest = aGuestServer(settings)
  if (settings.lookUp === undefined) guest.put(record(1, 'old'), userData)
  await guest.server.listen({ port: 0, host: '127.0.0.1' })
  const socket = connect((guest.server.server.address() as AddressInfo).port, '127.0.0.1')
  await once(socket, 'connect')
  t.teardown(async () => {
    socket.destroy()
    await guest.server.close()
  })
  return { guest, socket }
}

/** Collects what a connection receives. */
function received(socket: Socket): () => string {
  let text = ''
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk
  })
  return () => text
}

/** The body of each response, or its status if that is not 200. */
const bodiesOf = (text: string) =>
  text
    .split(/(?=HTTP\/1\.1 \d)/)
    .filter((one) => one !== '')
    .map((one) => (one.startsWith('HTTP/1.1 200') ? one.slice(one.indexOf('\r\n\r\n') + 4) : one.slice(9, 12)))
const requestsOf = ({ meter }: TestGuest) => meter.counts().reduce((sum, { count }) => sum + count, 0)

/** Makes signatures when a test says so. */
function aSigner() {
  let made: () => void = () => undefined
  return {
    sign: () =>
      new Promise<{ signature: string; pkcs7: string }>((resolve) => {
        made = () => resolve({ signature: 'signed', pkcs7: 'p' })
      }),
    make: () => made(),
  }
}

t.test(
  'A9, H1: what is pipelined behind a held request is answered after it, in order, however late',
  ALONGSIDE,
  async (t) => {
    const { guest, socket } = await serve(t)
    const text = received(socket)
    const half = get(ID).length / 2
    socket.write(get(`${TAG}?wait_for_change=true`) + get(ID) + get('/latest/nothing') + get(TAG).slice(0, half))
    await until(() => guest.held.size === 1, 'the held request')
    socket.write(get(TAG).slice(half) + get(`${TAG}?wait_for_change=true`))
    socket.write(get('/latest/meta-data/local-ipv4'))
    await sleep(22_000) // longer than the timeouts of a request and of a connection that is stalled
    t.equal(text(), '')
    guest.put(record(2, 'new'))
    await until(() => guest.held.size === 1 && bodiesOf(text()).length === 4, 'the next held request')
    t.same(bodiesOf(text()), ['new', 'srv-abcde', '404', 'new'])
    guest.put(record(3, 'newer'))
    await until(() => bodiesOf(text()).length === 6, 'the rest')
    t.same(bodiesOf(text()).slice(4), ['newer', '127.0.0.1'])
    const before = text().length
    socket.write(get(ID))
    await until(() => text().slice(before).endsWith('srv-abcde'), 'a later request')
  },
)

t.test('A9: behind a request that waits for a signature', ALONGSIDE, async (t) => {
  const signer = aSigner()
  const { guest, socket } = await serve(t, { provider: { signer } })
  const text = received(socket)
  socket.write(get('/latest/dynamic/instance-identity/signature') + get(ID) + get('/latest/nothing'))
  await sleep(200)
  t.same([text(), requestsOf(guest)], ['', 0])
  signer.make()
  await until(() => bodiesOf(text()).length === 3, 'the responses')
  t.same(bodiesOf(text()), ['signed', 'srv-abcde', '404'])
})

t.test('A9: behind a report whose body has not arrived', ALONGSIDE, async (t) => {
  const { guest, socket } = await serve(t)
  const text = received(socket)
  const { body: token } = await guest.ask({
    method: 'PUT',
    url: '/latest/api/token',
    headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
    from: '127.0.0.1',
  })
  const body = 'done'
  const put = `PUT /latest/reports/boot HTTP/1.1\r\nX-aws-ec2-metadata-token: ${String(token)}\r\nContent-Length: ${body.length}\r\n\r\n`
  socket.write(put + body.slice(0, 3))
  await sleep(200)
  t.equal(text(), '')
  socket.write(body.slice(3) + get(ID) + put + body + get('/latest/nothing'))
  await until(() => bodiesOf(text()).length === 4, 'the responses')
  t.same(bodiesOf(text()), ['', 'srv-abcde', '', '404'])
})

t.test('A9: behind the lookup of an unknown peer', ALONGSIDE, async (t) => {
  const found = Promise.withResolvers<undefined>()
  let lookups = 0
  const lookUp = () => {
    lookups += 1
    return found.promise
  }
  const { guest, socket } = await serve(t, { lookUp })
  const text = received(socket)
  socket.write(get(ID) + get('/latest/nothing') + get(ID))
  await sleep(200)
  t.same([text(), requestsOf(guest), lookups], ['', 0, 1])
  guest.put(record(1, 'old'))
  found.resolve(undefined)
  await until(() => bodiesOf(text()).length === 3, 'the responses')
  t.same(bodiesOf(text()), ['srv-abcde', '404', 'srv-abcde'])
})

t.test('A9, F2: a slow reader of 16 MiB is served to the end, and then what is behind', ALONGSIDE, async (t) => {
  const { guest, socket } = await serve(t, {}, Buffer.alloc(16 * MIB, 'x'))
  let first: ServerResponse | undefined
  guest.server.server.on('request', (_request, response: ServerResponse) => {
    first ??= response
    if (response !== first && !first.writableFinished) t.fail('a request behind it was read')
  })
  socket.write(get('/latest/user-data'))
  const startedMs = performance.now()
  let [bytes, last] = [0, '']
  for await (const chunk of socket as AsyncIterable<Buffer>) {
    if (bytes === 0) socket.write(get(ID).repeat(100))
    bytes += chunk.length
    last = (last + chunk.toString('latin1')).slice(-9)
    if (bytes < 12 * MIB) {
      const aheadMs = bytes / (MIB / 2_000) - (performance.now() - startedMs)
      if (aheadMs > 0) await sleep(aheadMs)
    }
    if (requestsOf(guest) === 101 && last === 'srv-abcde') break
  }
  t.ok(bytes > 16 * MIB, `${bytes} bytes`)
  t.ok(performance.now() - startedMs > 20_500, 'longer than a stalled connection may take')
})

t.test('A9: no more than one request is parsed behind a held one, whatever is sent', ALONGSIDE, async (t) => {
  const { guest, socket } = await serve(t)
  let parsed = 0
  guest.server.server.on('request', () => {
    parsed += 1
  })
  const held = get(`${TAG}?wait_for_change=true`)
  const writeLongHeads = () => {
    for (let i = 0; i < 100; i++) socket.write(get(ID, `X: ${'x'.repeat(15_000)}\r\n`).repeat(4))
  }
  socket.write(held + held + get(ID).repeat(3_000))
  writeLongHeads()
  await until(() => guest.held.size === 1, 'the held request')
  await sleep(500)
  t.equal(parsed, 1)
  guest.put(record(2, 'new'))
  await until(() => guest.held.size === 1 && parsed === 2, 'the next held request')
  writeLongHeads() // Node resumes the socket when the first response has been sent
  await sleep(500)
  t.equal(parsed, 2)
  guest.put(record(3, 'newer'))
  await until(() => parsed === 3_802, 'all requests behind it')
})

t.test(
  'A9: a refusal, an upgrade, CONNECT and a body behind a held request come after it, and are the last',
  ALONGSIDE,
  async (t) => {
    for (const [bytes, ...expected] of [
      ['garbage\r\n\r\n', '400'],
      [get(ID) + 'garbage\r\n\r\n', 'srv-abcde', '400'],
      ['CONNECT x:1 HTTP/1.1\r\n\r\n', '405'],
      [get(ID) + 'CONNECT x:1 HTTP/1.1\r\n\r\n', 'srv-abcde', '405'],
      [get(ID, 'Connection: upgrade\r\nUpgrade: h2c\r\n') + get('/latest/nothing'), 'srv-abcde'],
      [get(ID, 'Content-Length: 4\r\n') + 'body' + get('/latest/nothing'), 'srv-abcde'],
      [`GET ${ID} HTTP/1.0\r\n\r\n` + get('/latest/nothing'), 'srv-abcde'],
    ] as const) {
      const { guest, socket } = await serve(t)
      const text = received(socket)
      socket.write(get(`${TAG}?wait_for_change=true`) + bytes)
      await until(() => guest.held.size === 1, 'the held request')
      await sleep(100)
      t.equal(text(), '', bytes)
      guest.put(record(2, 'new'))
      await once(socket, 'close')
      t.same(bodiesOf(text()), ['new', ...expected], bytes)
    }
  },
)

t.test(
  'E6: connections of an address end when its owner changes; the response on its way is cut',
  ALONGSIDE,
  async (t) => {
    const { guest, socket } = await serve(t, {}, Buffer.alloc(16 * MIB, 'x'))
    const other = connect({ port: socket.remotePort!, host: '127.0.0.1', localAddress: '127.0.0.2' })
    guest.put(anInstance({ id: 'srv-other', interfaces: loopback(2) }))
    socket.write(get('/latest/user-data'))
    other.write(get(ID))
    await once(other, 'data')
    await once(socket, 'readable')
    const ended = once(socket, 'error')
    guest.put(anInstance({ id: 'srv-new', interfaces: loopback(1) })) // contested, until one of them has it
    await until(() => guest.meter.drops['owner-changed'] === 1, 'the reset')
    socket.resume()
    t.match(await ended, [{ code: 'ECONNRESET' }])
    t.ok(socket.bytesRead < 16 * MIB)
    other.write(get('/latest/meta-data/local-ipv4'))
    t.match(String(await once(other, 'data')), '127.0.0.2', 'of another guest')
    other.destroy()
  },
)

t.test(
  'E6: a held request ends when its instance is removed, before another one has the address',
  ALONGSIDE,
  async (t) => {
    const { guest, socket } = await serve(t)
    const text = received(socket)
    const ended = once(socket, 'error')
    socket.write(get(`${TAG}?wait_for_change=true`) + get(ID))
    await until(() => guest.held.size === 1, 'the held request')
    guest.view.remove('srv-abcde', 1)
    guest.put(anInstance({ id: 'srv-new', interfaces: loopback(1) }))
    t.match(await ended, [{ code: 'ECONNRESET' }])
    t.same([text(), guest.held.size], ['', 0])
  },
)
