/** The data in Redis is lost, old or incomplete (invariants 3, 4 and 8) while guests read their trees. */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startFaultHost } from '../support/netns/fault-host.ts'
import { underFault } from '../support/load/during-fault.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'

const KEYS = keysOf('gb1')

t.test('no guest notices a fault of the data in Redis', { skip: withoutNamespaces() }, async (t) => {
  const host = await startFaultHost(t)
  const {
    redis: { client, kill, start },
    guests,
  } = host

  await t.test('flushed by mistake', (t) =>
    underFault(t, host, 'Redis flushed by mistake', async (operator) => {
      await client.flushall()
      await operator.seesMetric('imds_view_absent_instances', guests.length)
      await operator.seesIncrease('imds_resyncs_total{result="uninitialised"}')
      await operator.seesLogLine('store-empty')
      await host.publish()
    }),
  )

  await t.test('restored from an old backup', (t) =>
    underFault(t, host, 'restored from an old backup', async (operator) => {
      await client.save()
      await host.publish()
      await host.arrived()
      await kill()
      await start()
      await operator.seesMetric('imds_condition{code="store-behind",severity="failure"}', 1)
      await operator.seesLogLine('store-behind')
      await host.publish()
    }),
  )

  await t.test('evicting keys', (t) =>
    underFault(t, host, 'Redis evicts (allkeys-lru)', async (operator) => {
      const used = Number(/used_memory:(\d+)/.exec(await client.info('memory'))![1])
      await client.config('SET', 'maxmemory-policy', 'allkeys-lru', 'maxmemory', used + 500_000)
      for (let i = 0; (await client.exists(KEYS.region)) === 1; i++)
        await client.set(`filler:${i}`, Buffer.alloc(10_000))
      await operator.seesMetric('imds_view_absent_instances', guests.length)
      await operator.seesLogLine('store-empty')
      await client.config('SET', 'maxmemory-policy', 'noeviction', 'maxmemory', 0)
      await host.publish()
    }),
  )

  await t.test('half written: a record or user-data without the other', (t) =>
    underFault(t, host, 'records half written', async (operator) => {
      const half = async (id: string, fields: Readonly<Record<string, string | Buffer>>, without: string) => {
        const digest = `half ${id}`
        await client
          .multi()
          .hset(KEYS.instance(id), { ...fields, digest })
          .hdel(KEYS.instance(id), without)
          .hset(KEYS.hypervisor('hv1'), id, digest)
          .publish(KEYS.notices('hv1'), id)
          .exec()
      }
      const [first, second] = [host.next(0), host.next(1)]
      await half(first.id, { record: first.text }, 'user-data')
      await half(second.id, { 'user-data': second.userData }, 'none') // with the record of the last revision
      await half(guests[2]!.id, {}, 'record')
      await operator.seesMetric('imds_view_faulty_records', 2)
      await operator.seesLogLine('record-faulty')
      await operator.seesMetric('imds_view_absent_instances', 1)
      await operator.seesLogLine('instance-absent')
      await host.publishAgain()
    }),
  )

  await t.test('half written: an index entry without its record', (t) =>
    underFault(t, host, 'a record missing, its index left', async (operator) => {
      await client.hset(KEYS.hypervisor('hv1'), 'srv-ghost', 'digest')
      await operator.seesMetric('imds_view_faulty_records', 1)
      await operator.seesLogLine('record-not-served')
      await host.publish()
      await host.arrived()
      await client.hdel(KEYS.hypervisor('hv1'), 'srv-ghost')
    }),
  )
})
