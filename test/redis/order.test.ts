/**
 * One order in time: a store that goes back to an earlier state, with a real daemon. test/world tries every order of
 * events, and world-model.test.ts compares the script with its model.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import { startDaemon, unlessReset, until, type TestDaemon } from '../support/programs/daemon.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { rememberState } from '../support/redis/go-back.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { testDirectory } from '../support/test-directory.ts'

const redis = await startRedis(t)
const KEYS = keysOf('gb1')
const A = (revision = 1, change = {}) => at('srv-a', revision, change)
const B = (revision = 1, change = {}) => at('srv-b', revision, change)
const at = (id: string, revision: number, change: object) =>
  anInstance({ id, revision, interfaces: loopback(), ...change })

async function aRegion(t: Test, keys = false) {
  await redis.client.flushall()
  const directory = testDirectory(t, { keys: keyLines('k1') })
  const recordKeysFile = keys ? join(directory, 'keys') : undefined
  const store = await openTestStore(t, { url: redis.url, region: 'gb1', ...(keys && { recordKeysFile }) })
  const start = () =>
    startDaemon(t, {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: 'hv1',
      IMDS_STATE_DIR: join(directory, 'state'),
      ...(recordKeysFile !== undefined && { IMDS_RECORD_KEYS_FILE: recordKeysFile }),
    })
  const run = (...args: string[]) =>
    imdsctl([...args], {
      env: {
        IMDS_STORE: redis.url,
        IMDS_REGION: 'gb1',
        ...(recordKeysFile !== undefined && { IMDS_RECORD_KEYS_FILE: recordKeysFile }),
      },
    })
  return { store, daemon: await start(), start, run, directory }
}

const idOf = async (daemon: TestDaemon) =>
  (await unlessReset(daemon.get('/latest/meta-data/instance-id')))?.body.toString()
const isServed = (daemon: TestDaemon, id: string) =>
  until(async () => (await idOf(daemon)) === id, `${id} to be served`)
const userDataOf = async (daemon: TestDaemon) => {
  const { status, body } = await daemon.get('/latest/user-data')
  return status === 200 ? body.toString() : status
}
/** The daemon has seen that the store went back, and has marked the region. */
const isBehind = () => until(async () => (await redis.client.exists(KEYS.behind)) === 1, 'the mark "behind"')

for (const keys of [false, true]) {
  const kind = keys ? 'encrypted' : 'plain'

  t.test(`E3: an address stays with its owner when the store goes back to a former one (${kind})`, async (t) => {
    const { store, daemon, run } = await aRegion(t, keys)
    await store.put(A(), Buffer.from('of A'))
    await isServed(daemon, 'srv-a')
    const goBack = await rememberState(redis.client)
    await store.remove('srv-a')
    await store.put(B(), Buffer.from('of B'))
    await isServed(daemon, 'srv-b')
    await goBack()
    await isBehind()
    t.equal(await idOf(daemon), 'srv-b')
    t.equal(await userDataOf(daemon), 'of B')
    t.match((await redis.client.get(KEYS.behind))?.split(' ')[1], 'hv1', 'the mark says who has seen a later state')
    t.match(await run('seal', 'srv-a'), { stderr: /the store has lost changes \(hv1 has seen later ones\), and this/ })
    t.match(await run('republish'), { status: 64 })
    await store.remove('srv-a')
    await store.put(B(), Buffer.from('of B'))
    t.match(await run('republish', '--as-is'), { status: 0 })
    t.equal(await redis.client.exists(KEYS.behind), 0, 'a republish clears the mark')
    await store.put(B(2), Buffer.from('of B, later'))
    await until(async () => (await userDataOf(daemon)) === 'of B, later', 'the next change')
  })
}

t.test('a wait for a publish does not end with other contents of the same revision', async (t) => {
  const { store, daemon, run } = await aRegion(t)
  const wait = (...args: string[]) => run('wait', 'srv-a', ...args, '--operator', daemon.operatorSocket)
  await store.put(A(), Buffer.from('first'))
  await isServed(daemon, 'srv-a')
  const goBack = await rememberState(redis.client)
  const lost = await store.put(A(2), Buffer.from('lost'))
  const order = lost.kind === 'published' ? lost.order : 0
  t.match(await wait('--order', String(order)), { status: 0, stdout: 'srv-a is served at revision 2\n' })
  await goBack()
  await isBehind()
  t.match(await wait('--order', String(order + 1), '--timeout', '3'), {
    status: 75,
    stderr: new RegExp(`does not serve the publish ${order + 1} of srv-a: it has revision 2; Redis has lost changes`),
  })
  await store.put(A(2), Buffer.from('second'))
  t.match(await wait(), { status: 0 }, 'of what the store has')
  t.equal(await userDataOf(daemon), 'second')
})

t.test('E3: a replayed record of an encrypted region takes no address, and neither does its index', async (t) => {
  const { store, daemon } = await aRegion(t, true)
  await store.put(A(), Buffer.from('of A'))
  await isServed(daemon, 'srv-a')
  const old = await redis.client.hgetallBuffer(KEYS.instance('srv-a'))
  const digest = String(old['digest'])
  await store.remove('srv-a')
  await store.put(B(), Buffer.from('of B'))
  await isServed(daemon, 'srv-b')
  await redis.client.hset(KEYS.instance('srv-a'), old)
  await redis.client.del(KEYS.tombstone('srv-a'))
  await redis.client.set(KEYS.order, Date.now() * 1_000 + 60_000_000)
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-a', `${digest.split(' ')[0]!} ${Date.now() * 1_000}`)
  await redis.client.publish(KEYS.notices('hv1'), 'srv-a')
  await until(() => daemon.log.some((line) => line['code'] === 'store-behind'), 'the daemon to read the old record')
  t.equal(await userDataOf(daemon), 'of B')
})

t.test('a place is above what a hypervisor has announced, unless that is 22 hours ahead', async (t) => {
  const { store } = await aRegion(t)
  const announce = (order: number) => redis.client.set(KEYS.announcement('hv2'), JSON.stringify({ order }))
  const put = async (revision: number) => {
    const done = await store.put(A(revision, { hypervisors: ['hv2'] }), 'none')
    return done.kind === 'published' ? done.order : 0
  }
  const ahead = Date.now() * 1_000 + 7_200_000_000
  await announce(ahead)
  t.equal(await put(1), ahead + 1, 'the clock of a new store is two hours behind')
  t.match(await redis.client.get(KEYS.behind), String(ahead), 'the script marks the region')
  await announce(Date.now() * 1_000 + 22.5 * 3_600_000_000)
  t.equal(await put(2), ahead + 2, 'else the next Redis, whose clock is slower, would not know the place')
  await redis.client.set(KEYS.order, String(Date.now() * 1_000 + 48 * 3_600_000_000))
  const after = await put(3)
  t.ok(after > ahead && after < Date.now() * 1_000 + 24 * 3_600_000_000, 'a last place of a wrong clock does not count')
})

t.test('whatever the user of a hypervisor writes as the mark, it is one, and no more of it is read', async (t) => {
  const { store, run } = await aRegion(t)
  await store.put(A(), Buffer.from('of A'))
  for (const text of ['', 'x', '1 \0\u001b[2J', `1 ${'x'.repeat(1024 * 1024)}`]) {
    await redis.client.set(KEYS.behind, text)
    const refused = await store.seal('srv-a').then(JSON.stringify, (error: unknown) => (error as Error).message)
    t.match(refused, /^the store has lost changes.* this would publish/, JSON.stringify(text.slice(0, 10)))
    t.ok(refused.length < 500)
    t.match(await run('republish', '--as-is'), { status: 0 })
    t.equal(await redis.client.exists(KEYS.behind), 0, 'a republish clears it')
  }
})

t.test('imdsctl republish of files publishes what has not changed, and wants the whole region', async (t) => {
  const { store, run, directory } = await aRegion(t)
  await store.put(A(), 'none')
  const other = anInstance({ id: 'srv-other', interfaces: loopback(2) })
  await store.put(other, 'none')
  const orders = async () =>
    Object.values(await redis.client.hgetall(KEYS.hypervisor('hv1'))).map((digest) => digest.split(' ')[1])
  const before = await orders()
  const highest = Date.now() * 1_000 + 3_600_000_000
  await redis.client.set(KEYS.behind, `${highest} hv9`)
  const file = join(directory, 'records')
  writeFileSync(file, JSON.stringify(A()))
  t.match(await run('republish', file), {
    status: 2,
    stdout: /1 unchanged/,
    stderr: /also has 1 instances .* srv-other: /,
  })
  t.equal(await redis.client.exists(KEYS.behind), 1)
  writeFileSync(file, [A(), other].map((one) => JSON.stringify(one)).join('\n'))
  t.match(await run('republish', file), { status: 0, stdout: /2 records, 2 unchanged/ })
  t.equal(await redis.client.exists(KEYS.behind), 0)
  const after = await orders()
  t.ok(after.every((order) => Number(order) > highest && !before.includes(order)))
})
