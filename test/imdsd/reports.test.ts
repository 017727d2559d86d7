/**
 * H9 of the contract over real sockets: bodies that are slow, endless or cut off, and `imdsctl reports`.
 * test/contract/reports.test.ts has the rules.
 */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import { executed } from '../tools/documents.ts'

const ROUTE = 'route="/latest/reports"'

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
  const [id, address] = [`srv-${String(n)}`, `127.0.3.${String(n)}`]
  await store.put(
    anInstance({
      id,
      interfaces: [
        {
          id: `int-${String(n)}`,
          macAddress: `02:24:19:00:03:${n.toString(16).padStart(2, '0')}`,
          ipv4Addresses: [`${address}/8`],
        },
      ],
      options: { reports: 'enabled' },
    }),
  )
  await until(async () => (await daemon.get('/', address)).status === 200, 'the instance')
  const ttl = 'PUT /latest/api/token HTTP/1.1\r\nX-aws-ec2-metadata-token-ttl-seconds: 60\r\nConnection: close\r\n\r\n'
  const token = bodyOf(await send(address, ttl))
  const head = (path: string, headers: string) =>
    `PUT /latest/reports/${path} HTTP/1.1\r\nX-aws-ec2-metadata-token: ${token}\r\n${headers}\r\n\r\n`
  const report = (path: string, body: string) =>
    send(address, `${head(path, `Content-Length: ${String(Buffer.byteLength(body))}`)}${body}`)
  return { id, address, head, report }
}

const bodyOf = (response: string) => response.slice(response.indexOf('\r\n\r\n') + 4)
const statusOf = (response: string) => Number(response.slice('HTTP/1.1 '.length, 12))
const open = (address: string): Socket =>
  connect({ host: '127.0.0.1', port: daemon.guestPort, localAddress: address }).on('error', () => {
    /* a reset */
  })

/** Sends parts with a pause before each but the first, and returns everything that the daemon sends. */
async function send(address: string, ...parts: string[]): Promise<string> {
  const socket = open(address)
  const received = text(socket).catch(() => '')
  for (const [i, part] of parts.entries()) {
    if (i > 0) await sleep(50)
    socket.write(part)
  }
  return received
}

const imdsctl = (...args: string[]) =>
  run([process.execPath, IMDSCTL, ...args], {
    env: { ...programEnvironment(), IMDS_OPERATOR_SOCKET: daemon.operatorSocket.replace('unix:', '') },
  })

async function documentOf(id: string): Promise<Record<string, unknown>> {
  return JSON.parse((await daemon.operator(`/instances/${id}/reports`)).body.toString()) as Record<string, unknown>
}

t.test('H9: a body may come in pieces, with a length or chunked', async (t) => {
  const { id, address, head } = await aGuest()
  t.equal(statusOf(await send(address, head('boot', 'Content-Length: 7'), 'run', 'ning')), 200)
  const chunked = head('attributes/a', 'Transfer-Encoding: chunked')
  t.equal(statusOf(await send(address, chunked, '2\r\nab\r\n', '1\r\nc\r\n0\r\n\r\n')), 200)
  const expecting = await send(address, head('attributes/b', 'Expect: 100-continue\r\nContent-Length: 1'), 'x')
  t.same([statusOf(expecting), statusOf(bodyOf(expecting))], [100, 200])
  t.match(await documentOf(id), {
    claimedByGuest: { boot: { phase: 'running' }, attributes: [{ value: 'abc' }, { value: 'x' }] },
  })
})

t.test('H9: an endless body gets 413 once it is too long, whatever its framing', async (t) => {
  const { id, address, head } = await aGuest()
  const chunk = `1000\r\n${'x'.repeat(4096)}\r\n`
  t.equal(statusOf(await send(address, head('attributes/a', 'Transfer-Encoding: chunked'), chunk.repeat(5))), 413)
  t.equal(statusOf(await send(address, head('attributes/a', 'Content-Length: 16385'))), 413)
  t.equal(statusOf(await send(address, head('attributes/a', 'Content-Length: 99999999999'), 'x')), 413)
  t.match(await documentOf(id), { claimedByGuest: { attributes: [] } })
})

t.test(
  'H9: a body that does not arrive gets 400 and counts in no other way; one that is cut off nothing',
  async (t) => {
    const { id, address, head } = await aGuest()
    t.equal(statusOf(await send(address, head('boot', 'Content-Length: 4'), 'do')), 400)
    const socket = open(address)
    socket.write(`${head('boot', 'Content-Length: 4')}do`)
    await once(socket, 'connect')
    socket.resetAndDestroy()
    t.equal((await daemon.get('/latest/meta-data/instance-id', address)).body.toString(), id)
    t.match(await documentOf(id), { claimedByGuest: { attributes: [] } })
  },
)

t.test('H9: a guest that floods with reports gets 429, and another one reports meanwhile', async (t) => {
  const [flooder, other] = [await aGuest(), await aGuest()]
  const flood = Promise.all(Array.from({ length: 200 }, () => flooder.report('attributes/a', 'x'.repeat(1024))))
  t.equal(statusOf(await other.report('boot', 'done')), 200)
  const statuses = (await flood).map(statusOf)
  t.equal(statuses.filter((status) => status === 200).length, 10)
  t.match(await documentOf(other.id), { claimedByGuest: { boot: { phase: 'done' } } })
  const refusals = `imds_requests_total{${ROUTE},method="PUT",status="429",reason="too-many-reports"}`
  t.ok((await daemon.metric(refusals)) > 0)
  t.equal(statusOf(await flooder.report('boot', 'done')), 429)
})

t.test('H9: a report whose instance leaves the hypervisor while its body arrives is not kept', async (t) => {
  const { id, address, head } = await aGuest()
  const socket = open(address)
  const received = text(socket)
  socket.write(head('boot', 'Content-Length: 4'))
  await sleep(50)
  await store.remove(id)
  await until(async () => (await daemon.get('/', address)).status === 503, 'the removal')
  socket.write('done')
  t.equal(statusOf(await received), 503)
  t.equal((await daemon.operator(`/instances/${id}/reports`)).status, 404)
})

t.test('imdsctl reports prints what the guest claims, in the documented shape, and says so', async (t) => {
  const { id, report } = await aGuest()
  const key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD'
  t.match((await imdsctl('reports', id)).stdout.toString(), 'its guest has reported nothing')
  await report('boot', 'done 2026-11-20T15:04:05Z')
  await report('ssh-host-keys', key)
  await report('attributes/release', 'a\tb')
  const { stdout } = await imdsctl('reports', id)
  for (const part of ['what its guest claims', 'boot: done', ` ${key}\n`, 'attribute release: "a\\tb"'])
    t.match(stdout.toString(), part)
  const documented = JSON.parse(executed('docs/json.md', 'json reports')) as unknown
  t.same(shapeOf(JSON.parse((await imdsctl('--json', 'reports', id)).stdout.toString())), shapeOf(documented))
  const { status, stderr } = await imdsctl('reports', 'srv-none')
  t.equal(status, 1)
  t.match(stderr, 'does not serve srv-none')
})

/** The value with the types of its parts. */
function shapeOf(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(shapeOf)
  if (typeof value !== 'object' || value === null) return typeof value
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, shapeOf(part)]))
}
