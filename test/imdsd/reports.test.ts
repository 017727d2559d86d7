/**
 * H9 of the contract over real sockets: bodies that are slow, endless or cut off, and `imdsctl reports`.
 * test/contract/reports.test.ts has the rules.
 */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import t from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import { executed } from '../tools/documents.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

let store: Publisher
let daemon: TestDaemon
let guests = 0
t.before(async () => {
  const url = `file:${testDirectory(t)}`
  store = await openTestStore(t, { url })
  daemon = await startDaemon(t, { IMDS_STORE: url })
})

/** A guest that may report, with its token, and how it sends the head of a PUT. */
async function aGuest() {
  const n = (guests += 1)
  const [id, address] = [`srv-${n}`, `127.0.3.${n}`]
  await store.put(
    anInstance({
      id,
      interfaces: loopback(1, { ipv4Addresses: [`${address}/8`] }),
      options: { reports: 'enabled' },
    }),
  )
  await until(async () => (await daemon.get('/', address)).status === 200, 'the instance')
  const ttl = 'PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\nConnection: close\r\n\r\n'
  const token = bodyOf(await send(address, ttl))
  const head = (path: string, headers: string) =>
    `PUT /latest/reports/${path} HTTP/1.1\r\nX-aws-ec2-metadata-token: ${token}\r\n${headers}\r\n\r\n`
  const report = (path: string, body: string) =>
    send(address, `${head(path, `Content-Length: ${Buffer.byteLength(body)}`)}${body}`)
  return { id, address, head, report }
}

const bodyOf = (response: string) => response.slice(response.indexOf('\r\n\r\n') + 4)
const statusOf = (response: string) => Number(response.slice('HTTP/1.1 '.length, 12))
const open = (address: string): Socket =>
  connect({ host: '127.0.0.1', port: daemon.guestPort, localAddress: address }).on('error', () => undefined)

/** Sends parts, each when the daemon has read those before, and returns everything that it sends. */
async function send(address: string, ...parts: string[]): Promise<string> {
  const socket = open(address)
  const received = text(socket).catch(() => '')
  await once(socket, 'connect')
  for (const [i, part] of parts.entries()) {
    // a request on a later connection is answered after what was sent before is read
    if (i > 0) await daemon.get('/', address)
    socket.write(part)
  }
  return received
}

const run = (...args: string[]) => imdsctl([...args, '--operator', daemon.operatorSocket])

async function documentOf(id: string): Promise<Record<string, unknown>> {
  return JSON.parse((await daemon.operator(`/instances/${id}/reports`)).body.toString()) as Record<string, unknown>
}

t.test('H9: a body may come in pieces, with a length or chunked', async (t) => {
  const { id, address, head } = await aGuest()
  t.equal(statusOf(await send(address, head('boot', 'Content-Length: 7'), 'run', 'ning')), 200)
  const chunked = head('a', 'Transfer-Encoding: chunked')
  t.equal(statusOf(await send(address, chunked, '2\r\nab\r\n', '1\r\nc\r\n0\r\n\r\n')), 200)
  const expecting = await send(address, head('b', 'Expect: 100-continue\r\nContent-Length: 1'), 'x')
  t.same([statusOf(expecting), statusOf(bodyOf(expecting))], [100, 200])
  t.match(await documentOf(id), {
    claimedByGuest: { reports: [{ text: 'abc' }, { text: 'x' }, { name: 'boot', text: 'running' }] },
  })
})

t.test('H9: an endless body gets 413 once it is too long, whatever its framing', async (t) => {
  const { id, address, head } = await aGuest()
  const chunk = `1000\r\n${'x'.repeat(4096)}\r\n`
  t.equal(statusOf(await send(address, head('a', 'Transfer-Encoding: chunked'), chunk.repeat(5))), 413)
  t.equal(statusOf(await send(address, head('a', 'Content-Length: 16385'))), 413)
  t.equal(statusOf(await send(address, head('a', 'Content-Length: 99999999999'), 'x')), 413)
  t.match(await documentOf(id), { claimedByGuest: { reports: [] } })
})

t.test('H9: a body that does not arrive gets 400 and counts in no other way; one cut off nothing', async (t) => {
  const { id, address, head } = await aGuest()
  t.equal(statusOf(await send(address, head('boot', 'Content-Length: 4'), 'do')), 400)
  const socket = open(address)
  socket.write(`${head('boot', 'Content-Length: 4')}do`)
  await once(socket, 'connect')
  socket.resetAndDestroy()
  t.equal((await daemon.get('/latest/meta-data/instance-id', address)).body.toString(), id)
  t.match(await documentOf(id), { claimedByGuest: { reports: [] } })
})

t.test('imdsctl reports prints what the guest claims, in the documented shape, and says so', async (t) => {
  const { id, report } = await aGuest()
  const key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD'
  t.match((await run('reports', id)).stdout, 'its guest has reported nothing')
  await report('boot', 'done')
  await report('ssh-host-keys', key)
  await report('release', 'a\tb')
  const { stdout } = await run('reports', id)
  for (const part of ['what its guest claims', 'boot: "done", received', 'release: "a\\tb"', ` ${key}\n`])
    t.match(stdout, part)
  const documented = JSON.parse(executed('docs/json.md', 'json reports')) as unknown
  t.same(shapeOf(JSON.parse((await run('--json', 'reports', id)).stdout)), shapeOf(documented))
  const { status, stderr } = await run('reports', 'srv-none')
  t.equal(status, 1)
  t.match(stderr, 'does not serve srv-none')
})

/** The value with the types of its parts. */
function shapeOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shapeOf)
  if (typeof value !== 'object' || value === null) return typeof value
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, shapeOf(part)]))
}
