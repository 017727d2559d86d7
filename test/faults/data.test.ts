/**
 * What Redis holds is gone, old, half there, or told of wrongly (invariants 3, 4 and 8); guests read their trees all the while.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { keysOf } from '../../src/store/keys.ts'
import { startFaultHost, type State } from '../support/faults.ts'
import { underFault } from '../support/faults-seen.ts'
import { withoutNamespaces } from '../support/namespaces.ts'

const KEYS = keysOf('gb1')
const SCRIPT = readFileSync(new URL('../../src/store/publish.lua', import.meta.url), 'utf8')
const SILENT = SCRIPT.replace('redis.call(\'PUBLISH\'', 'tostring(\'no notice\'')

t.test('no guest notices what happens to the data in Redis', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const { redis: { client, kill, start }, guests } = host
  const published = ({ text, userData }: State) => [1, KEYS.region, 'put', text, 'set', userData] as const
  const told = async (ids: readonly string[]) => {
    const pipeline = client.pipeline()
    for (const id of ids) pipeline.publish(KEYS.notices('hv1'), id)
    await pipeline.exec()
  }

  await t.test('flushed by mistake', (t) => underFault(t, host, 'Redis flushed by mistake', async (operator) => {
    await client.flushall()
    await operator.sees('imds_view_unconfirmed_instances', guests.length)
    await operator.counts('imds_resyncs_total{result="uninitialised"}')
    await operator.reads('the store holds nothing of this region')
    await host.publish()
  }))

  await t.test('restored from an old backup', (t) => underFault(t, host, 'restored from an old backup', async (operator) => {
    await client.save()
    await host.publish()
    await host.arrived()
    await kill()
    await start()
    await operator.counts('imds_revisions_back_total')
    await operator.reads('the store went back to an older revision')
    await host.publish()
  }))

  await t.test('evicting', (t) => underFault(t, host, 'Redis evicts (allkeys-lru)', async (operator) => {
    const used = Number(/used_memory:(\d+)/.exec(await client.info('memory'))![1])
    await client.config('SET', 'maxmemory-policy', 'allkeys-lru', 'maxmemory', used + 500_000)
    for (let i = 0; await client.exists(KEYS.region) === 1; i++) await client.set(`filler:${String(i)}`, Buffer.alloc(10_000))
    await operator.sees('imds_view_unconfirmed_instances', guests.length)
    await client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', 0)
    await host.publish()
  }))

  await t.test('half-written: a record without its user-data, and user-data without its record', (t) => underFault(t, host, 'records half written', async (operator) => {
    const half = async (id: string, fields: Readonly<Record<string, string | Buffer>>, without: string[]) => {
      const digest = `half ${id}`
      await client.multi().hset(KEYS.instance(id), { ...fields, digest }).hdel(KEYS.instance(id), ...without).hset(KEYS.hypervisor('hv1'), id, digest).publish(KEYS.notices('hv1'), id).exec()
    }
    const [first, second] = [host.next(0), host.next(1)]
    await half(first.id, { record: first.text }, ['user-data'])
    await half(second.id, { 'user-data': second.userData }, ['record'])
    await operator.sees('imds_view_faulty_records', 1)
    await operator.reads('faulty record: the last good one stays')
    await half(second.id, { 'user-data': second.userData, record: first.text }, ['nothing'])
    await operator.sees('imds_view_faulty_records', 2)
    await host.publishAgain()
  }))

  await t.test('half-written: an index that names an instance of which there is no record', (t) => underFault(t, host, 'a record missing, its index left', async (operator) => {
    await client.hset(KEYS.hypervisor('hv1'), 'srv-ghost', 'digest')
    await operator.sees('imds_view_faulty_records', 1)
    await operator.reads('faulty record: this instance is not served')
    await host.publish()
    await host.arrived()
    await client.hdel(KEYS.hypervisor('hv1'), 'srv-ghost')
  }))

  await t.test('notices lost with their connection', (t) => underFault(t, host, 'notices lost: their connection cut', async (operator) => {
    const cut = client.multi().call('CLIENT', 'KILL', 'TYPE', 'pubsub')
    for (const n of guests.keys()) cut.eval(SCRIPT, ...published(host.next(n)))
    await cut.exec()
    await operator.reads('store lost')
    await operator.counts('imds_resyncs_total{result="completed"}')
  }))

  await t.test('notices that nobody sends', (t) => underFault(t, host, 'notices never sent', async (operator) => {
    for (const n of guests.keys()) await client.eval(SILENT, ...published(host.next(n)))
    await operator.counts('imds_resyncs_total{result="completed"}')
  }))

  await t.test('notices doubled, a hundred times each', (t) => underFault(t, host, 'notices doubled, 100 times each', async (operator) => {
    for (let i = 0; i < 10; i++) {
      await host.publish()
      await told(guests.flatMap(({ id }) => Array<string>(100).fill(id)))
    }
    await operator.counts('imds_notices_total')
  }))

  await t.test('notices out of order, of instances elsewhere, and of none', (t) => underFault(t, host, 'notices out of order, some of nobody', async (operator) => {
    for (let i = 0; i < 10; i++) {
      for (const n of guests.keys()) await client.eval(SILENT, ...published(host.next(n)))
      await told([...guests.map(({ id }) => id).reverse(), 'srv-nobody', ''])
    }
    await operator.counts('imds_notices_total')
  }))
})
