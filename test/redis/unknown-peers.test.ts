/**
 * One unknown peer does not affect another (contract F1). A guest whose notice was lost is an unknown peer too, until
 * it is looked up.
 */
import { connect, type Socket } from 'node:net'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'

const ID = '/latest/meta-data/instance-id'
const KEYS = keysOf('gb1')
const ATTACKER = '127.0.0.66'
const at = (n: number) =>
  anInstance({
    id: `srv-n${String(n)}`,
    hypervisors: ['hv1'],
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`127.0.0.${String(n)}/8`] }],
  })

let redis: TestRedis
let daemon: TestDaemon
t.before(async () => {
  redis = await startRedis(t)
  const store = await openStore({ url: redis.url, region: 'gb1' })
  await store.put(at(99))
  await store.close()
  daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RESYNC_SECONDS: '3600',
  })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
})

/** Writes a record without the publisher, so that no notice is sent, as if the notice had been lost. */
async function putWithoutNotice(n: number): Promise<void> {
  await redis.client.hset(KEYS.instance(`srv-n${String(n)}`), 'record', JSON.stringify(at(n)), 'digest', 'x')
  await redis.client.hset(KEYS.addresses('default'), `127.0.0.${String(n)}`, `srv-n${String(n)}`)
}

function open(bytes = ''): Socket {
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress: ATTACKER })
  return socket
    .resume()
    .on('error', () => {
      /* reset by the daemon */
    })
    .on('connect', () => {
      socket.write(bytes)
    })
}

const refusals = async (method: string, reason: string) =>
  (await daemon.metric(`imds_requests_total{route="unknown",method="${method}",status="503",reason="${reason}"}`)) || 0
const resets = async () => await daemon.metric('imds_connections_dropped_total{reason="over-share"}')

t.test('F1: an unknown peer that pipelines beyond its share does not block others', async (t) => {
  const sockets = Array.from({ length: 40 }, () => open(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(3_600)))
  await Promise.all(
    sockets.map(
      (socket) =>
        new Promise((resolve) => {
          socket.on('close', resolve)
        }),
    ),
  )
  t.ok((await resets()) > 0, 'the connections of the attacker are reset')
  await putWithoutNotice(1)
  t.match(
    await daemon.get(ID, '127.0.0.1'),
    { status: 200, body: Buffer.from('srv-n1') },
    'a guest whose notice was lost is served at its first request',
  )
  t.equal((await daemon.get(ID, '127.0.0.67')).status, 503)
  await until(() => daemon.log.some(({ address }) => address === '127.0.0.67'), 'the refusal in the log')
  matchAll(
    t,
    daemon.log.filter(({ address }) => address === '127.0.0.67'),
    [{ msg: 'request refused', reason: 'unknown-peer' }],
    'another unknown peer has its own share',
  )
  const penalized = await refusals('other', 'over-share')
  await daemon.get(ID, ATTACKER).catch(() => null)
  t.equal(await refusals('other', 'over-share'), penalized + 1, "the attacker's requests are not read")
})

t.test('F1: an unknown peer with 1,024 open connections does not block others', async (t) => {
  const sockets = new Set<Socket>()
  let isOver = false
  const keepOpen = (): void => {
    if (isOver) return
    const socket = open()
    sockets.add(socket)
    socket.on('close', () => {
      sockets.delete(socket)
      setTimeout(keepOpen, 100)
    })
  }
  const before = await resets()
  for (let i = 0; i < 1_024; i++) keepOpen()
  await until(async () => (await resets()) > before, 'connections beyond the share to be reset')
  await until(
    async () => (await refusals('other', 'too-many-connections')) > 0,
    'connections beyond the share to be refused',
  )
  await putWithoutNotice(2)
  t.match(
    await daemon.get(ID, '127.0.0.2'),
    { status: 200, body: Buffer.from('srv-n2') },
    'a guest whose notice was lost is served at its first request',
  )
  t.equal((await daemon.get(ID, '127.0.0.99')).status, 200, 'a known guest is served')
  isOver = true
  for (const socket of sockets) socket.destroy()
})
