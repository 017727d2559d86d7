/**
 * The lookup of unknown peers: a guest whose notice was lost, and a flood from unused addresses.
 */
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { request, startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { parseAnswer } from '../support/fixtures/socket.ts'
import { openTestStore } from '../support/test-store.ts'

const ID = '/latest/meta-data/instance-id'
const KEYS = keysOf('gb1')
const at = (n: number, hypervisor: string, revision = 1) =>
  anInstance({
    id: `srv-n${String(n)}`,
    revision,
    hypervisors: [hypervisor],
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`127.0.0.${String(n)}/8`] }],
  })

async function aHost(t: Test): Promise<{ redis: TestRedis; store: Publisher; daemon: TestDaemon }> {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await store.put(at(99, 'hv1'))
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RESYNC_SECONDS: '3600',
  })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  return { redis, store, daemon }
}

const lookups = (daemon: TestDaemon, result: string) => daemon.metric(`imds_peer_lookups_total{result="${result}"}`)

t.test('a guest whose notice was lost is served at its first request', async (t) => {
  const { redis, daemon } = await aHost(t)
  // Written without the publisher, so that no notice is sent.
  const record = JSON.stringify(at(1, 'hv1'))
  await redis.client.hset(KEYS.instance('srv-n1'), 'record', record, 'digest', 'x')
  await redis.client.hset(KEYS.addresses('default'), '127.0.0.1', 'srv-n1')
  t.match(await daemon.get(ID), { status: 200, body: Buffer.from('srv-n1') })
  t.equal(await lookups(daemon, 'found'), 1)
  t.equal((await daemon.get(ID)).status, 200)
  t.equal(await lookups(daemon, 'found'), 1, 'a known guest causes no lookup')
})

t.test(
  "E2: a peer with the address of another hypervisor's instance gets 503, and the view stays as it is",
  async (t) => {
    const { redis, store, daemon } = await aHost(t)
    await store.put(at(1, 'hv2'), Buffer.from('theirs'))
    await store.put(at(2, 'hv2'))
    await redis.client.hset(KEYS.instance('srv-n2'), 'record', '{', 'digest', 'x')
    for (const from of ['127.0.0.1', '127.0.0.2']) {
      const { status, headers, body } = await daemon.get('/latest/user-data', from)
      t.match({ status, headers }, { status: 503, headers: { 'retry-after': '1' } })
      t.notMatch(body.toString(), /srv-|theirs/)
    }
    t.equal(await lookups(daemon, 'unknown'), 2)
    t.equal(await daemon.metric('imds_view_instances'), 1)
    t.equal(
      await daemon.metric('imds_record_faults_total{reason="unreadable"}'),
      0,
      'a faulty record of another hypervisor is not reported here',
    )
    t.notMatch((await daemon.operator('/explain?address=127.0.0.1')).body.toString(), /theirs|02:24:19|srv-n1\./)
    t.equal((await daemon.operator('/instances/srv-n1')).status, 404)
    await until(async () => (await daemon.metric('imds_snapshot_writes_total{result="written"}')) > 0, 'a snapshot')
    t.notMatch(readFileSync(`${daemon.directory}/view.snapshot`, 'utf8'), /srv-n1|srv-n2|theirs/)
  },
)

t.test('E2: the former hypervisor stops serving when the notice of a move arrives, and logs it', async (t) => {
  const { store, daemon } = await aHost(t)
  await store.put(at(1, 'hv1'))
  await until(async () => (await daemon.get(ID)).status === 200, 'the guest')
  await store.put(anInstance({ ...at(1, 'hv1', 2), hypervisors: ['hv1', 'hv2'] }))
  await until(
    async () => (await daemon.operator('/instances/srv-n1')).body.toString().includes('"revision":2'),
    'the first record of the migration',
  )
  t.equal((await daemon.get(ID)).status, 200, 'both hypervisors answer during a migration')
  await store.put(at(1, 'hv2', 3))
  await until(async () => (await daemon.get(ID)).status === 503, 'the move')
  t.match(
    daemon.log.find(({ msg }) => msg.startsWith('instance left')),
    { level: 'info', instance: 'srv-n1', revision: 3, hypervisors: ['hv2'] },
  )
  const firstLookup = await lookups(daemon, 'unknown')
  while ((await lookups(daemon, 'unknown')) < firstLookup + 2) {
    // each result is remembered for a second
    t.match(await daemon.get(ID), { status: 503, headers: { 'retry-after': '1' } })
  }
  t.equal(await daemon.metric('imds_view_instances'), 1)
  t.equal((await daemon.get(ID, '127.0.0.99')).status, 200)
})

t.test('E2: many requests of an unknown address cause one lookup, which is remembered for a second', async (t) => {
  const { redis, daemon } = await aHost(t)
  const before = await commandsOf(redis, 'hget')
  const answers = await Promise.all(Array.from({ length: 50 }, () => daemon.get(ID)))
  t.ok(answers.every(({ status }) => status === 503))
  t.ok(
    (await commandsOf(redis, 'hget')) - before <= 3,
    'one lookup, or some more if the fifty requests took longer than a second',
  )
})

t.test('invariant 6: a flood from unknown addresses causes a bounded rate of lookups', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(at(1, 'hv1'))
  await until(async () => (await daemon.get(ID)).status === 200, 'the guest')
  const before = await commandsOf(redis, 'hget')
  const started = performance.now()
  const statuses = new Set<number>()
  for (let i = 0; i < 2000; i += 20) {
    const some = await Promise.all(
      Array.from({ length: 20 }, (_, k) =>
        request(daemon.guestPort, ID, `127.1.${String((i + k) >> 8)}.${String(1 + ((i + k) & 127))}`),
      ),
    )
    for (const { status } of some) statuses.add(status)
    if ((await daemon.get(ID)).status !== 200) t.fail('a known guest was refused')
  }
  const seconds = (performance.now() - started) / 1000
  t.same([...statuses], [503])
  const commands = (await commandsOf(redis, 'hget')) - before
  t.ok(commands <= 100 + 100 * seconds, `${String(commands)} lookups in ${seconds.toFixed(1)} s`)
  t.ok((await lookups(daemon, 'skipped')) > 0)
  t.ok(daemon.log.filter(({ msg }) => msg === 'request refused').length <= 257)
})

t.test('E2: an unknown address waits at most a second for a store that does not answer', async (t) => {
  const { redis, daemon } = await aHost(t)
  redis.process().kill('SIGSTOP')
  t.teardown(() => redis.process().kill('SIGCONT'))
  t.match(await daemon.get(ID), { status: 503, headers: { 'retry-after': '1' } })
  t.equal(await lookups(daemon, 'failed'), 1)
  t.equal((await daemon.get(ID, '127.0.0.99')).status, 200)
})

t.test('A9: a guest that half-closes while its address is looked up still gets a response', async (t) => {
  const { redis, daemon } = await aHost(t)
  redis.process().kill('SIGSTOP')
  t.teardown(() => redis.process().kill('SIGCONT'))
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', allowHalfOpen: true })
  socket.end(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`)
  const answer = Buffer.concat((await socket.toArray()) as Buffer[]).toString()
  t.match(parseAnswer(answer), { status: 503, headers: { 'retry-after': '1' } })
})

async function commandsOf(redis: TestRedis, command: string): Promise<number> {
  const stats = await redis.client.info('commandstats')
  return Number(new RegExp(`^cmdstat_${command}:calls=(\\d+)`, 'm').exec(stats)?.[1] ?? 0)
}
