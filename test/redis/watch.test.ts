/**
 * The daemon follows a real Redis: what guests get, what is kept, and what is logged.
 */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

t.setTimeout(300_000) // as under `npm test`: the default of `node` alone, 30 s, is too short for many resyncs

const KEYS = keysOf('gb1')
const ID = '/latest/meta-data/instance-id'

/** A record for 127.0.0.N, whose host name contains the revision. */
function record(
  revision: number,
  { n = 1, id = `srv-n${String(n)}`, hypervisors = ['hv1'] }: { n?: number; id?: string; hypervisors?: string[] } = {},
): Record<string, unknown> {
  return anInstance({
    id,
    revision,
    hypervisors,
    fqdn: `r${String(revision)}.${id}.example.com`,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`127.0.0.${String(n)}/8`] }],
  })
}

interface Host {
  redis: TestRedis
  store: Publisher
  daemon: TestDaemon
}

async function aHost(
  t: Test,
  {
    args = [],
    env = {},
    hypervisor = 'hv1',
  }: { args?: string[]; env?: Record<string, string>; hypervisor?: string } = {},
): Promise<Host> {
  const redis = await startRedis(t, args)
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: hypervisor,
    IMDS_RESYNC_SECONDS: '1',
    ...env,
  })
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  return { redis, store, daemon }
}

const hostname = async (daemon: TestDaemon, from = '127.0.0.1') =>
  (await daemon.get('/latest/meta-data/hostname', from)).body.toString()
const serves = (daemon: TestDaemon, name: string, from?: string) =>
  until(async () => (await hostname(daemon, from)) === name, `${name} to be served`)
const resynced = async (daemon: TestDaemon) => {
  const before = await daemon.metric('imds_resyncs_total{result="completed"}')
  await until(
    async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > before + 1,
    'two more resyncs',
  )
}

t.test("a publish and its changes reach the guest's next GET; a removal makes it an unknown peer", async (t) => {
  const { store, daemon } = await aHost(t)
  t.equal((await daemon.get(ID)).status, 503)
  t.equal((await daemon.operator('/readyz')).status, 503, 'a daemon is not ready before anything was published')
  await store.put(record(1), Buffer.from('one'))
  await serves(daemon, 'r1.srv-n1.example.com')
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  await store.put(record(2), Buffer.from([0, 255, 31, 139]))
  await serves(daemon, 'r2.srv-n1.example.com')
  t.ok((await daemon.get('/latest/user-data')).body.equals(Buffer.from([0, 255, 31, 139])))
  await store.remove('srv-n1')
  await until(async () => (await daemon.get(ID)).status === 503, 'the removal')
})

t.test("E2: a daemon serves only its hypervisor's instances; during a migration both daemons serve one", async (t) => {
  const { redis, store, daemon } = await aHost(t)
  const second = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv2' })
  await store.put(record(1))
  await store.put(record(1, { n: 2, hypervisors: ['hv2'] }))
  await serves(daemon, 'r1.srv-n1.example.com')
  await serves(second, 'r1.srv-n2.example.com', '127.0.0.2')
  t.equal(await daemon.metric('imds_view_instances'), 1)
  await store.put(record(2, { hypervisors: ['hv1', 'hv2'] }))
  await serves(daemon, 'r2.srv-n1.example.com')
  await serves(second, 'r2.srv-n1.example.com')
  await store.put(record(3, { hypervisors: ['hv2'] }))
  await serves(second, 'r3.srv-n1.example.com')
  await until(async () => (await daemon.metric('imds_view_instances')) === 0, 'the old host to drop the instance')
})

t.test('invariant 4: the next resync finds a change whose notice was lost', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(record(1))
  await serves(daemon, 'r1.srv-n1.example.com')
  // the daemon's subscription ends and cannot be restored
  await redis.client.call('ACL', 'SETUSER', 'default', 'resetchannels')
  await redis.client.eval(`redis.call('HSET', KEYS[1], 'digest', 'x'); return 1`, 1, KEYS.instance('srv-n1'))
  await redis.client.call('ACL', 'SETUSER', 'default', 'allchannels')
  const changeWithoutNotice = `local t = redis.call('HGET', KEYS[1], 'record'); t = string.gsub(t, '"revision":1', '"revision":2'); t = string.gsub(t, 'r1[.]', 'r2.')
    redis.call('HSET', KEYS[1], 'record', t, 'digest', 'quiet'); redis.call('HSET', KEYS[2], 'srv-n1', 'quiet')`
  await redis.client.eval(changeWithoutNotice, 2, KEYS.instance('srv-n1'), KEYS.hypervisor('hv1'))
  await serves(daemon, 'r2.srv-n1.example.com')
})

t.test('invariants 2 and 4: a Redis restart under load causes no error, and missed changes arrive', async (t) => {
  const { redis, store, daemon } = await aHost(t, { args: ['--appendonly', 'yes', '--appendfsync', 'always'] })
  await store.put(record(1))
  await serves(daemon, 'r1.srv-n1.example.com')
  let requests = 0
  const failures: unknown[] = []
  let isRunning = true
  const load = Promise.all(
    Array.from({ length: 8 }, async () => {
      while (isRunning) {
        requests++
        const answer = await daemon.get('/latest/meta-data/hostname').catch((error: unknown) => error)
        if (!(answer instanceof Object && 'status' in answer && answer.status === 200)) failures.push(answer)
      }
    }),
  )
  const linesBefore = daemon.log.length
  await redis.kill()
  await until(async () => (await daemon.metric('imds_store_connected')) === 0, 'the daemon to notice the loss')
  const ready = JSON.parse((await daemon.operator('/readyz')).body.toString()) as Record<string, unknown>
  t.match(ready, { ready: true, connected: false, instances: 1 }, 'G1: readyz reports it')
  const age = await daemon.metric('imds_view_age_seconds')
  await until(async () => (await daemon.metric('imds_view_age_seconds')) > age + 0.2, 'the age to grow')
  await redis.restart()
  const later = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await later.put(record(2))
  await serves(daemon, 'r2.srv-n1.example.com')
  await until(() => requests > 100, 'a hundred requests')
  isRunning = false
  await load
  t.same(failures, [])
  t.equal(
    daemon.log.slice(linesBefore).filter(({ level, msg }) => level === 'warn' && msg.includes('store')).length,
    1,
    'one warning',
  )
})

t.test('G2: while Redis is down from the start, guests get 503 with Retry-After and never 404', async (t) => {
  const daemon = await startDaemon(t, { IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  for (const path of ['/', ID, '/latest/user-data', '/nothing'])
    t.match(await daemon.get(path), { status: 503, headers: { 'retry-after': '1' } })
  t.equal((await daemon.operator('/livez')).status, 200)
  t.match(JSON.parse((await daemon.operator('/readyz')).body.toString()), { ready: false, connected: false })
  matchAll(
    t,
    daemon.log.filter(({ level }) => level === 'warn').filter(({ msg }) => msg.startsWith('the store')),
    [{ reason: /ECONNREFUSED/ }],
    'the cause is logged once',
  )
})

t.test('invariant 8: absence is not removal', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  const publishBoth = async () => {
    await store.put(record(1), Buffer.from('mine'))
    await store.put(record(1, { n: 2 }))
    await serves(daemon, 'r1.srv-n1.example.com')
    await serves(daemon, 'r1.srv-n2.example.com', '127.0.0.2')
  }
  await publishBoth()
  const stillServed = async () => {
    await resynced(daemon)
    t.equal(await hostname(daemon), 'r1.srv-n1.example.com')
    t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine')
  }
  const emptyResyncs = async () => await daemon.metric('imds_resyncs_total{result="uninitialised"}')
  await t.test('if a key is evicted', async () => {
    await redis.client.del(KEYS.instance('srv-n1'))
    await stillServed()
  })
  await t.test('if it is evicted and its index names a newer digest, which is reported once', async () => {
    const linesBefore = daemon.log.length
    await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n1', 'newer')
    await stillServed()
    await resynced(daemon)
    t.equal(
      daemon.log.slice(linesBefore).filter(({ msg }) => msg.startsWith('the store no longer has this instance')).length,
      1,
    )
  })
  await t.test('if its indexes are lost', async () => {
    await redis.client.del(KEYS.hypervisor('hv1'), KEYS.instances)
    await stillServed()
    t.equal(
      await daemon.metric('imds_view_unconfirmed_instances'),
      1,
      'srv-n2 still has its record, which the resync reads',
    )
  })
  await t.test('if the store is flushed, which is reported once', async () => {
    const [linesBefore, resyncs] = [daemon.log.length, await emptyResyncs()]
    await redis.client.flushall()
    await until(async () => (await emptyResyncs()) > resyncs + 1, 'two resyncs of an empty store')
    t.equal(await hostname(daemon), 'r1.srv-n1.example.com')
    t.equal(daemon.log.slice(linesBefore).filter(({ msg }) => msg.includes('has nothing of this region')).length, 1)
    t.equal(await daemon.metric('imds_view_unconfirmed_instances'), 2)
  })
  await t.test('if the store is half restored', async () => {
    await store.put(record(1, { n: 2 }))
    await stillServed()
    t.equal(await daemon.metric('imds_view_unconfirmed_instances'), 1)
  })
  await t.test('a tombstone is a removal, even in a store without other traces of the instance', async () => {
    t.match(
      daemon.log.findLast(
        ({ msg, instance }) => msg.startsWith('the store no longer has this instance') && instance === 'srv-n1',
      )?.msg,
      /run imdsctl remove srv-n1 --revision 1$/,
    )
    await store.remove('srv-n1', 1)
    await until(async () => (await daemon.get(ID)).status === 503, 'the removal')
    t.equal(await hostname(daemon, '127.0.0.2'), 'r1.srv-n2.example.com')
  })
})

t.test('an older revision in the store is accepted, counted and logged', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(record(5))
  await serves(daemon, 'r5.srv-n1.example.com')
  await redis.client.flushall()
  await store.put(record(3))
  await serves(daemon, 'r3.srv-n1.example.com')
  t.equal(await daemon.metric('imds_revisions_back_total'), 1)
  t.match(
    daemon.log.find(({ msg }) => msg.includes('older revision')),
    { level: 'warn', instance: 'srv-n1', revision: 3, heldRevision: 5 },
  )
})

t.test('invariant 3: with a faulty record the last good state stays, and the fault is reported once', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(record(1), Buffer.from('good'))
  await serves(daemon, 'r1.srv-n1.example.com')
  const key = KEYS.instance('srv-n1')
  const good = await redis.client.hget(key, 'record')
  const writeFault = async (...fields: string[]) => {
    const digest = `broken ${fields.join()}`
    await redis.client.hset(key, ...fields, 'digest', digest)
    await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n1', digest)
    await redis.client.publish(KEYS.notices('hv1'), 'srv-n1')
  }
  for (const [what, reason, fields] of [
    ['a record that is not JSON', 'unreadable', ['record', '{']],
    ['a record of an unknown schema', 'record', ['record', JSON.stringify({ ...record(2), schema: 9 })]],
    ['a record with an invalid field', 'record', ['record', JSON.stringify({ ...record(2), fqdn: '' })]],
    ["another instance's record", 'id', ['record', JSON.stringify({ ...record(2), id: 'srv-other' })]],
    ['user-data that the record does not describe', 'user-data', ['record', good!, 'user-data', 'evil']],
    ['user-data of another size', 'user-data', ['record', good!, 'user-data', 'goo']],
  ] as [string, string, string[]][]) {
    const before = await daemon.metric(`imds_record_faults_total{reason="${reason}"}`)
    await writeFault(...fields)
    await until(async () => (await daemon.metric(`imds_record_faults_total{reason="${reason}"}`)) === before + 1, what)
    await resynced(daemon)
    t.equal(await daemon.metric(`imds_record_faults_total{reason="${reason}"}`), before + 1, `${what} is counted once`)
    t.equal(await daemon.metric('imds_view_faulty_records'), 1)
    t.equal(await hostname(daemon), 'r1.srv-n1.example.com')
    t.equal((await daemon.get('/latest/user-data')).body.toString(), 'good')
  }
  await writeFault('user-data', 'good')
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 0, 'the repair')
  t.equal(daemon.log.filter(({ msg }) => msg.startsWith('faulty record')).length, 6)
  t.notMatch(JSON.stringify(daemon.log), /evil|goo"/, 'invariant 9: no user-data in the log')
})

t.test('invariant 7: an address that two records claim is not served, and that is reported', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(record(1))
  await serves(daemon, 'r1.srv-n1.example.com')
  await redis.client.hdel(KEYS.addresses('default'), '127.0.0.1')
  await store.put(record(1, { id: 'srv-thief' }))
  await until(async () => (await daemon.get(ID)).status === 503, 'the contested address to be refused')
  t.equal(await daemon.metric('imds_view_contested_addresses'), 1)
  t.match(JSON.parse((await daemon.operator('/readyz')).body.toString()), {
    ready: true,
    contestedAddresses: 1,
    contested: ['default 127.0.0.1: srv-n1, srv-thief'],
  })
  t.match(
    daemon.log.find(({ msg }) => msg.includes('more than one instance claims')),
    { level: 'warn', address: 'default 127.0.0.1', instances: ['srv-n1', 'srv-thief'] },
  )
  t.match((await daemon.operator('/metrics')).body.toString(), /reason="contested-address"/)
  await store.remove('srv-thief')
  await serves(daemon, 'r1.srv-n1.example.com')
})

t.test('invariant 9: a password is read from a file and never logged', async (t) => {
  const directory = testDirectory(t, { password: 'PaSsWoRd\n' })
  const redis = await startRedis(t, ['--requirepass', 'PaSsWoRd'])
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_REDIS_PASSWORD_FILE: `${directory}/password`,
    IMDS_LOG_LEVEL: 'debug',
  })
  const store = await openTestStore(t, { url: redis.url, region: 'gb1', passwordFile: `${directory}/password` })
  await store.put(record(1))
  await serves(daemon, 'r1.srv-n1.example.com')
  t.notMatch(JSON.stringify(daemon.log) + (await daemon.operator('/readyz')).body.toString(), /PaSsWoRd/)
})

t.test('invariant 6: one malformed record affects no other instance', async (t) => {
  const { redis, store, daemon } = await aHost(t)
  await store.put(record(1))
  await store.put(record(1, { n: 2 }))
  await serves(daemon, 'r1.srv-n1.example.com')
  await serves(daemon, 'r1.srv-n2.example.com', '127.0.0.2')
  const script = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
  const bad = JSON.stringify({ ...record(2, { n: 2 }), blockDevices: [] })
  t.same(await redis.client.eval(script, 1, KEYS.region, 'put', bad, 'none'), ['published', '2'])
  await until(async () => (await daemon.metric('imds_record_faults_total{reason="record"}')) === 1, 'the fault')
  await store.put(record(2))
  await serves(daemon, 'r2.srv-n1.example.com')
  t.equal(await hostname(daemon, '127.0.0.2'), 'r1.srv-n2.example.com')
  await resynced(daemon)
})

t.test('invariant 6: a key of the wrong type is a fault of its instance only, and resyncs complete', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await store.put(record(1))
  await store.put(record(1, { n: 2 }))
  await redis.client.del(KEYS.instance('srv-n2'))
  await redis.client.set(KEYS.instance('srv-n2'), 'x')
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n3', 'x')
  await redis.client.hset(KEYS.tombstone('srv-n3'), 'x', 'y') // a tombstone of any type is one
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RESYNC_SECONDS: '1',
  })
  await until(async () => (await daemon.operator('/readyz')).status === 200, 'readiness')
  t.equal(await hostname(daemon), 'r1.srv-n1.example.com')
  t.equal(await daemon.metric('imds_record_faults_total{reason="unreadable"}'), 1)
  t.equal(await daemon.metric('imds_resyncs_total{result="failed"}'), 0)
  await redis.client.del(KEYS.instance('srv-n2'))
  await store.put(record(2, { n: 2 }))
  await serves(daemon, 'r2.srv-n2.example.com', '127.0.0.2')
})
