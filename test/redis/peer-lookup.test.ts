/**
 * Unknown peers: a guest whose notice was lost is looked up, and neither a flood from unused addresses nor one unknown
 * peer affects others (contract E2, F1).
 */
import { readFileSync } from 'node:fs'
import { connect } from 'node:net'
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { until, type TestDaemon } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, connected, serves } from '../support/redis/shapes.ts'
import { parseAnswer } from '../support/fixtures/socket.ts'

const ID = '/latest/meta-data/instance-id'
const KEYS = keysOf('gb1')
const address = (n: number) => `127.0.0.${n}`

const redis = await startRedis(t)
let store: Publisher
let daemon: TestDaemon
t.before(async () => {
  store = await aStore(t, redis.url)
  await store.put(aLocalInstance(99))
  daemon = await aDaemon(t, redis.url)
  await serves(daemon, 1, 99)
})

/** Writes a record without the publisher, so that no notice is sent, as if the notice had been lost. */
async function putWithoutNotice(n: number): Promise<void> {
  const id = `srv-n${n}`
  await redis.client.hset(
    KEYS.instance(id),
    'record',
    JSON.stringify({ ...aLocalInstance(n), order: Date.now() * 1_000 }),
    'digest',
    'x',
  )
  await redis.client.hset(KEYS.addresses('default'), address(n), id)
}

const lookups = (result: string) => daemon.metric(`imds_peer_lookups_total{result="${result}"}`)
t.test('a guest whose notice was lost is served at its first request', async (t) => {
  const before = await lookups('found')
  await putWithoutNotice(1)
  t.match(await daemon.get(ID), { status: 200, body: Buffer.from('srv-n1') })
  t.equal(await lookups('found'), before + 1)
  t.equal((await daemon.get(ID)).status, 200)
  t.equal(await lookups('found'), before + 1, 'a known guest causes no lookup')
})

t.test("E2: a peer with the address of another hypervisor's instance gets 503, and the view stays", async (t) => {
  const [before, instances] = [await lookups('unknown'), await daemon.metric('imds_view_instances')]
  await store.put(aLocalInstance(2, 1, { hypervisors: ['hv2'] }), Buffer.from('theirs'))
  await store.put(aLocalInstance(3, 1, { hypervisors: ['hv2'] }))
  await redis.client.hset(KEYS.instance('srv-n3'), 'record', '{', 'digest', 'x')
  for (const n of [2, 3]) {
    const { status, headers, body } = await daemon.get('/latest/user-data', address(n))
    t.match({ status, headers }, { status: 503, headers: { 'retry-after': '1' } })
    t.notMatch(body.toString(), /srv-|theirs/)
  }
  t.equal(await lookups('unknown'), before + 2)
  t.equal(await daemon.metric('imds_view_instances'), instances)
  t.equal(
    await daemon.metric('imds_record_faults_total{reason="unreadable"}'),
    0,
    'a faulty record of another hypervisor is not reported here',
  )
  t.notMatch((await daemon.operator('/explain?address=127.0.0.2')).body.toString(), /theirs|02:24:19|srv-n2\./)
  t.equal((await daemon.operator('/instances/srv-n2')).status, 404)
  await until(async () => (await daemon.metric('imds_journal_rewrites_total{result="written"}')) > 0, 'a journal')
  t.notMatch(readFileSync(`${daemon.directory}/view.journal`, 'utf8'), /srv-n2|srv-n3|theirs/)
})

t.test('E2, A9: an unknown address waits at most a second for a store that does not answer', async (t) => {
  await connected(daemon)
  const failed = await lookups('failed')
  redis.process().kill('SIGSTOP')
  t.teardown(() => redis.process().kill('SIGCONT'))
  const socket = connect({ port: daemon.guestPort, host: '127.0.0.1', localAddress: address(8), allowHalfOpen: true })
  socket.end(`GET ${ID} HTTP/1.1\r\nHost: x\r\n\r\n`)
  const text = Buffer.concat((await socket.toArray()) as Buffer[]).toString()
  t.match(parseAnswer(text), { status: 503, headers: { 'retry-after': '1' } }, 'also a guest that half-closes')
  t.equal(await lookups('failed'), failed + 1)
  t.equal((await daemon.get(ID, address(99))).status, 200)
})
