/**
 * How much the readers of Redis take at once: they ask for the length of a value first, so that Redis never sends one that
 * is far too long, and read and hash long ones in parts.
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aCipher, keyLines } from '../support/fixtures/record-keys.ts'
import { sentBy, startRedis } from '../support/redis/redis.ts'
import { aDaemon, aStore, connected, record, resynced, serves, aSource } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import { writeFileSync } from 'node:fs'
import { validate } from '../../src/imdsd/view/validate.ts'
import { openStore } from '../../src/store/open.ts'
import type { Loaded } from '../../src/store/source.ts'
import { SLICE_BYTES } from '../../src/limits/turn-budget.ts'
import { mostBytesPerTurn } from '../support/fixtures/bytes-per-turn.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'

const KEYS = keysOf('gb1')
const LONG = Buffer.alloc(4 * 1024 * 1024, 'x')
const A_MEBIBYTE = 1024 * 1024
const LIMIT = 16 * A_MEBIBYTE
const id = (n: number) => `srv-n${n}`

const redis = await startRedis(t)
t.beforeEach(async () => {
  await redis.client.flushall()
})

/** A daemon that serves srv-n1, and its publisher. */
async function served(t: Test, change: Record<string, string> = {}) {
  const store = await aStore(t, redis.url)
  await store.put(record(1), Buffer.from('one'))
  const daemon = await aDaemon(t, redis.url, {}, change)
  await serves(daemon, 1)
  return { store, daemon }
}

const faults = (daemon: TestDaemon) =>
  daemon.log
    .filter(({ msg }) => msg.startsWith('faulty record'))
    .map((line) => (line['faults'] as { message: string }[])[0]?.message)
const notify = () => redis.client.publish(KEYS.notices('hv1'), 'srv-n1')

/** Makes a field of a hash longer than any publisher may read. */
const setLong = (key: string, field: string, mebibytes = 17) =>
  redis.client.eval(
    "return redis.call('hset', KEYS[1], ARGV[1], string.rep('x', ARGV[2]))",
    1,
    key,
    field,
    mebibytes * A_MEBIBYTE,
  )

/** How many connections Redis has accepted. */
const connects = async () => Number(/total_connections_received:(\d+)/.exec(await redis.client.info('stats'))?.[1])

/** Runs a task. Fails if Redis sends a mebibyte meanwhile. */
async function sendsLittle(t: Test, what: string, task: () => Promise<unknown>): Promise<void> {
  const before = await sentBy(redis)
  await task()
  t.ok((await sentBy(redis)) - before < A_MEBIBYTE, `${what}: Redis has sent less than a mebibyte`)
}

t.test('invariant 3: a long value is not read at notices and resyncs; the last good state is served', async (t) => {
  const { daemon } = await served(t, { IMDS_RESYNC_SECONDS: '1' })
  const before = await redis.client.hgetallBuffer(KEYS.instance('srv-n1'))
  for (const [field, message] of [
    ['record', 'the record is 4194304 bytes, more than the limit of 262176'],
    ['user-data', 'the user-data is 4194304 bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)'],
    ['digest', 'the digest is 4194304 bytes, more than the limit of 4096'],
  ] as const) {
    await redis.client.hset(KEYS.instance('srv-n1'), { digest: field, [field]: LONG })
    // the digest differs, so each resync reads the instance
    await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n1', field)
    await sendsLittle(t, field, async () => {
      for (let i = 0; i < 5; i++) await notify()
      await until(() => faults(daemon).at(-1) === message, message)
      await resynced(daemon)
    })
    t.equal((await daemon.get('/latest/user-data')).body.toString(), 'one')
    await redis.client.hset(KEYS.instance('srv-n1'), before)
    await notify()
    await until(async () => (await daemon.metric('imds_view_faulty_records')) === 0, 'the fault to be over')
  }
})

t.test('a long tombstone, region key or announcement is not read, and means the same', async (t) => {
  const { daemon } = await served(t, { IMDS_RESYNC_SECONDS: '1' })
  await redis.client.set(KEYS.region, LONG)
  const order = await redis.client.incr(KEYS.order)
  await redis.client.set(KEYS.tombstone('srv-n1'), `2 ${order} ${LONG.toString()}`)
  await redis.client.del(KEYS.instance('srv-n1'))
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n1', 'other')
  await sendsLittle(t, 'the daemon', async () => {
    await notify()
    await until(async () => (await unlessReset(daemon.get('/latest/user-data')))?.status === 503, 'the removal')
    await resynced(daemon)
  })
  const other = await aDaemon(t, redis.url)
  await sendsLittle(t, 'a connect', () => connected(other))
})

t.test('invariant 8: a daemon and a publisher do not read an index that is too large', async (t) => {
  const { store, daemon } = await served(t, { IMDS_RESYNC_SECONDS: '1' })
  for (const key of [KEYS.hypervisor('hv1'), KEYS.instances]) await setLong(key, 'a', 65)
  // a resync may have begun before the index was that large
  await until(
    async () =>
      /the index imds:\{gb1\}:hypervisor:hv1 takes \d+ bytes in Redis, more than the limit/.test(
        (await daemon.condition('store-read-failed')) ?? '',
      ),
    'the reason',
  )
  await sendsLittle(t, 'the indexes', async () => {
    const failed = () => daemon.metric('imds_resyncs_total{result="failed"}')
    const failedBefore = await failed()
    await until(async () => (await failed()) > failedBefore + 1, 'two more resyncs')
    const before = await connects()
    await t.rejects(
      store.list(),
      /the index imds:\{gb1\}:instances takes \d+ bytes in Redis, more than the limit of 67108864/,
    )
    t.equal(await connects(), before, 'the publisher does not try again on another connection')
  })
  await serves(daemon, 1)
})

t.test('a long owner of an address is not read at the lookup of an unknown peer', async (t) => {
  const { daemon } = await served(t)
  await redis.client.hset(KEYS.addresses('default'), '127.0.0.9', LONG)
  await sendsLittle(t, 'the lookup', async () => {
    t.equal((await daemon.get('/latest/user-data', '127.0.0.9')).status, 503)
  })
  t.equal(await daemon.metric('imds_peer_lookups_total{result="unknown"}'), 1)
})

t.test('publishers do not read long values, and a put repairs them, plain and encrypted', async (t) => {
  const recordKeysFile = join(testDirectory(t, { keys: keyLines('k1') }), 'keys')
  for (const [keys, url] of [
    [{}, redis.url],
    [{ recordKeysFile }, redis.url],
  ] as const) {
    await redis.client.flushall()
    const store = await openTestStore(t, { url, region: 'gb1', ...keys })
    for (const [i, field] of (['record', 'user-data', 'digest'] as const).entries()) {
      await store.put(record(2 * i + 1), Buffer.from('one'))
      await setLong(KEYS.instance('srv-n1'), field)
      await sendsLittle(t, field, async () => {
        await t.rejects(
          store.get('srv-n1'),
          new RegExp(`srv-n1 cannot be read: the ${field} is 17825792 bytes, more than the limit`),
        )
        await t.rejects(store.seal('srv-n1'), /srv-n1 cannot be read/)
        t.match(await store.put(record(2 * i + 2), Buffer.from('two')), { kind: 'published' }, field)
      })
      t.match(await store.get('srv-n1'), { document: { revision: 2 * i + 2 } })
    }
  }
})

t.test('a long encrypted value is not converted, and named', async (t) => {
  const recordKeysFile = join(testDirectory(t, { keys: keyLines('k1') }), 'keys')
  const store = await openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile })
  await store.put(record(1))
  await redis.client.hset(KEYS.instance('srv-n1'), 'record', aCipher('gb1', 'k1').encrypt('record', 'srv-n1', 1, LONG))
  await t.rejects(store.encrypt('srv-n1', false), /srv-n1: the record is 4194\d{3} bytes/)
  await t.rejects(store.decrypt('srv-n1'), /srv-n1: the record is 4194\d{3} bytes/)
})

/** Publishes the instances 1, 2 and so on, with user-data of these sizes. */
async function publish(t: Test, sizes: readonly number[], isEncrypted = false): Promise<void> {
  await redis.client.flushall()
  const keys = join(testDirectory(t), 'keys')
  writeFileSync(keys, keyLines('k1'))
  const store = await openStore({
    url: redis.url,
    region: 'gb1',
    userDataMaxBytes: LIMIT,
    recordKeysFile: isEncrypted ? keys : undefined,
  })
  for (const [i, size] of sizes.entries()) {
    const { kind } = await store.put(
      anInstance({
        id: id(i + 1),
        interfaces: loopback(i + 1),
      }),
      Buffer.alloc(size, id(i)),
    )
    t.equal(kind, 'published')
  }
  await store.close()
}

async function calls(command: string): Promise<number> {
  return Number(
    new RegExp(`^cmdstat_${command}:calls=(\\d+)`, 'm').exec(await redis.client.info('commandstats'))?.[1] ?? 0,
  )
}

for (const isEncrypted of [false, true]) {
  const what = isEncrypted ? 'encrypted' : 'plain'
  t.test(`${what} user-data of any length is read completely, and one turn handles a small part of it`, async (t) => {
    const sizes = [LIMIT, 16_384, 0, 3 * A_MEBIBYTE, ...Array.from({ length: 60 }, () => 65_536)]
    await publish(t, sizes, isEncrypted)
    const source = await aSource(t, redis.url, LIMIT, isEncrypted ? aCipher('gb1', 'k1') : undefined)
    const found: Loaded[] = []
    const { hashed, ciphered } = await mostBytesPerTurn(async () => {
      for await (const loaded of source.load(sizes.map((_size, i) => id(i + 1)))) {
        if (loaded.kind === 'record') t.match(validate(loaded, LIMIT), { ok: true })
        found.push(loaded)
      }
    })
    t.same(
      found.map((loaded) => [loaded.kind, loaded.id, 'userData' in loaded && loaded.userData?.length]),
      sizes.map((size, i) => ['record', id(i + 1), size]),
    )
    t.ok(hashed > 0 && hashed <= A_MEBIBYTE + SLICE_BYTES, `${hashed} bytes hashed`)
    t.equal(ciphered > 0, isEncrypted)
    t.ok(ciphered <= A_MEBIBYTE + SLICE_BYTES, `${ciphered} bytes decrypted`)
  })
}

t.test('one read has at most 4 MiB or one instance, and the next one waits until it is consumed', async (t) => {
  await publish(t, [1.5 * A_MEBIBYTE, 1.5 * A_MEBIBYTE, 1.5 * A_MEBIBYTE, 6 * A_MEBIBYTE, 16, 16])
  const source = await aSource(t, redis.url, LIMIT)
  await redis.client.config('RESETSTAT')
  const reads: [string, number][] = []
  for await (const loaded of source.load([1, 2, 3, 4, 5, 6].map(id))) reads.push([loaded.id, await calls('hmget')])
  t.same(reads, [
    [id(1), 2],
    [id(2), 2],
    [id(3), 3],
    [id(4), 4],
    [id(5), 6],
    [id(6), 6],
  ])
})

t.test('user-data beyond the limit is a fault, and is not read if several instances are loaded', async (t) => {
  await publish(t, [8 * A_MEBIBYTE, 16])
  const source = await aSource(t, redis.url, 16_384)
  await redis.client.config('RESETSTAT')
  const found: Loaded[] = []
  for await (const loaded of source.load([id(1), id(2)])) found.push(loaded)
  const reason = 'the user-data is 8388608 bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)'
  t.match(found, [
    { kind: 'user-data', id: id(1), digest: /^[0-9a-f]+ \d+$/, reason },
    { kind: 'record', id: id(2) },
  ])
  t.ok(Number(/total_net_output_bytes:(\d+)/.exec(await redis.client.info('stats'))?.[1]) < A_MEBIBYTE)
  for await (const loaded of source.load([id(1)])) t.match(loaded, { kind: 'user-data', id: id(1), reason })
})
