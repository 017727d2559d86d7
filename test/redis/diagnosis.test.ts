/**
 * `imdsctl explain` and a timeout of `imdsctl wait` name the cause: the state of the store, or a faulty record. All causes
 * are in test/unit/imdsd/operator/diagnosis.test.ts and explain.test.ts.
 */
import t from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startDaemon, type TestDaemon, until } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'

const KEYS = keysOf('gb1')

/** The output of `imdsctl explain` for an address, and of `imdsctl wait` for a revision of an instance. */
async function ask(
  daemon: TestDaemon,
  address: string,
  id: string,
  revision: number,
): Promise<{ explained: string; waited: string }> {
  const run = (...args: string[]) => imdsctl([...args, '--operator', daemon.operatorSocket])
  const [explained, waited] = await Promise.all([
    run('explain', address),
    run('wait', id, '--revision', String(revision), '--timeout', '3'), // a busy daemon may take a second
  ])
  if (explained.status !== 0 || waited.status !== 75)
    throw new Error(`${String(explained.status)} ${explained.stderr} ${String(waited.status)} ${waited.stderr}`)
  return { explained: explained.stdout, waited: waited.stderr }
}

t.test('a faulty record and a lost store are named as the cause, and no value of a record', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  for (const [n, id] of ['srv-a', 'srv-b'].entries())
    await store.put(anInstance({ id, fqdn: 's3cret.example.com', interfaces: loopback(n + 1) }))
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RESYNC_SECONDS: '1',
  })
  await until(async () => (await daemon.metric('imds_view_instances')) === 2, 'the instances')
  const write = async (id: string, value: string) => {
    await redis.client
      .multi()
      .hset(KEYS.instance(id), { record: value, digest: value.length })
      .hset(KEYS.hypervisor('hv1'), id, value.length)
      .publish(KEYS.notices('hv1'), id)
      .exec()
  }
  await write('srv-b', JSON.stringify(anInstance({ id: 'srv-b', revision: 2, fqdn: 7 })))
  await write('srv-f', '{"s3cret":')
  await redis.client.hset(KEYS.addresses('default'), '127.0.0.6', 'srv-f')
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 2, 'the faults')

  t.match(await daemon.condition('record-faulty'), /: srv-b: \/fqdn /)
  t.match(await daemon.condition('record-not-served'), /: srv-f: the record is not JSON$/)
  for (const [address, id, revision, explained, waited] of [
    [
      '127.0.0.2',
      'srv-b',
      2,
      /metadata \(200\)[^]*store +the record of srv-b in the store is faulty: \/fqdn .*; revision 1 is served\n/,
      /it has revision 1; the record of srv-b in the store is faulty: \/fqdn/,
    ],
    [
      '127.0.0.6',
      'srv-f',
      1,
      /; the store names srv-f as its owner: the record of srv-f in the store is faulty: the record is not JSON\n$/,
      /: the record of srv-f in the store is faulty: the record is not JSON\n$/,
    ],
    ['127.0.0.1', 'srv-a', 2, /metadata \(200\), since it is srv-a's\n(?![^]*store )/, /: it serves revision 1\n$/],
  ] as const) {
    const output = await ask(daemon, address, id, revision)
    t.match(output.explained, explained)
    t.match(output.waited, waited)
    t.notMatch(output.explained + output.waited, /s3cret/)
  }
  await redis.stop()
  await until(async () => (await daemon.condition('store-lost')) !== undefined, 'the loss')
  const lost = await ask(daemon, '127.0.0.9', 'srv-a', 2)
  t.match(lost.explained, /on network default; redis:\S+ was lost \d+ s ago: .+\n$/)
  t.match(lost.waited, /: it has revision 1; redis:\S+ was lost \d+ s ago: /)
})

t.test('a store that was never reached, and a store without data of the region, are named as the cause', async (t) => {
  const away = await startDaemon(t, { IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  await until(() => away.log.some(({ code }) => code === 'store-lost'), 'the first attempt')
  const never = await ask(away, '127.0.0.1', 'srv-a', 1)
  for (const text of Object.values(never))
    t.match(text, /redis:\S+ was not reached since the start \d+ s ago: connect ECONNREFUSED/)
  t.equal((await away.operator('/readyz')).status, 503)

  const redis = await startRedis(t)
  const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  await until(async () => (await daemon.metric('imds_resyncs_total{result="uninitialised"}')) > 0, 'the resync')
  const empty = await ask(daemon, '127.0.0.1', 'srv-a', 1)
  for (const text of Object.values(empty))
    t.match(text, /; redis:\S+ has nothing of this region; no instance is served/)
})
