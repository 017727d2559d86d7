/**
 * Publishing to a real Redis: what a publish checks, writes and refuses. world-model.test.ts compares random calls of the
 * script with the model of test/world: stale revisions, owned addresses, seals, user-data, indexes and notices.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, unlessReset, until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'
import { random } from '../support/fixtures/generated-records.ts'
import { testDirectory } from '../support/test-directory.ts'

const KEYS = keysOf('gb1')
const nic = (address: string) => [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] }]

const TIME = '2026-11-20T15:04:05Z'
const NO_TIMES = [
  ...[true, 'yesterday', null, '2026-11-20', '2026-00-20T15:04:05Z', '2026-11-20T24:04:05Z', '2026-02-30T15:04:05Z'],
  ...['2100-02-29T15:04:05Z', '2026-11-31T15:04:05Z', '1969-12-31T15:04:05Z', '9999-12-31T23:59:59-23:59'],
  ...['2026-11-20T15:04:05', '2026-11-20T15:04:05Z"', `2026-11-20T15:04:05.${'0'.repeat(20)}Z`],
]

const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')

const redis = await startRedis(t)

async function aStore(t: Test): Promise<Publisher> {
  await redis.client.flushall()
  return await openTestStore(t, { url: redis.url, region: 'gb1' })
}

t.test('a publish writes record, user-data, indexes and digest, and notifies the hypervisor', async (t) => {
  const store = await aStore(t)
  const notices = redis.client.duplicate()
  t.teardown(() => notices.disconnect())
  const noticed: string[] = []
  notices.on('message', (_channel, id) => noticed.push(id))
  await notices.subscribe(KEYS.notices('hv1'))
  const bytes = Buffer.from([0, 255, 31, 139, 10])
  t.match(await store.put(anInstance(), bytes), { kind: 'published', instance: { revision: 1 } })
  t.ok((await redis.client.hgetBuffer(KEYS.instance('srv-abcde'), 'user-data'))?.equals(bytes))
  t.equal(await redis.client.hget(KEYS.addresses('default'), '10.0.0.2'), 'srv-abcde')
  t.equal(
    await redis.client.hget(KEYS.hypervisor('hv1'), 'srv-abcde'),
    await redis.client.hget(KEYS.instance('srv-abcde'), 'digest'),
  )
  t.match(await redis.client.get(KEYS.region), /^\d+$/)
  t.same(await store.list(), [{ id: 'srv-abcde', revision: 1, hypervisors: ['hv1'], addresses: ['default 10.0.0.2'] }])
  t.ok((await store.get('srv-abcde'))?.userData && Buffer.from((await store.get('srv-abcde'))!.userData!).equals(bytes))
  await until(() => noticed.includes('srv-abcde'), 'the notice')
})

t.test('revisions up to the largest safe integer are compared exactly', async (t) => {
  const store = await aStore(t)
  const revision = Number.MAX_SAFE_INTEGER - 1
  t.match(await store.put(anInstance({ revision })), { kind: 'published' })
  t.same(await store.put(anInstance({ revision: revision - 1 })), { kind: 'stale', revision })
  t.match(await store.put(anInstance({ revision: revision + 1 })), { kind: 'published' })
})

t.test('invariant 8: a removal leaves a tombstone for 7 days and nothing else', async (t) => {
  const store = await aStore(t)
  await store.put(anInstance({ revision: 7 }), Buffer.from('x'))
  t.match(await store.remove('srv-abcde', 6), { kind: 'stale', revision: 7 })
  t.match(await store.remove('srv-abcde'), { kind: 'removed', revision: 8 })
  t.same((await redis.client.keys('*')).sort(), [KEYS.region, KEYS.order, KEYS.tombstone('srv-abcde')])
  const ttl = await redis.client.ttl(KEYS.tombstone('srv-abcde'))
  t.ok(ttl > 604_700 && ttl <= 604_800)
  t.same(
    await store.put(anInstance({ revision: 7 })),
    { kind: 'stale', revision: 8 },
    'an older revision cannot restore it',
  )
  t.match(await store.put(anInstance({ revision: 9 })), { kind: 'published' }, 'a newer revision can')
  t.equal(await redis.client.exists(KEYS.tombstone('srv-abcde')), 0)
})

t.test('the script itself refuses an invalid record, for publishers in any language', async (t) => {
  await aStore(t)
  const run = (...args: string[]) => redis.client.eval(SCRIPT, 1, KEYS.region, ...args) as Promise<string[]>
  const record = JSON.stringify(anInstance())
  for (const [args, why] of [
    [['put', '{', 'none'], /not a JSON object/],
    [['put', '[]', 'none'], /schema/],
    [['put', JSON.stringify(anInstance({ schema: 2 })), 'none'], /schema/],
    [['put', JSON.stringify(anInstance({ id: 'x y' })), 'none'], /an id must be 1 to 64/],
    [['put', JSON.stringify(anInstance({ id: 'x'.repeat(65) })), 'none'], /an id must be 1 to 64/],
    [['put', JSON.stringify(anInstance({ id: '-x' })), 'none'], /an id must be 1 to 64/],
    [['put', JSON.stringify(anInstance({ id: 'x\n' })), 'none'], /an id must be 1 to 64/],
    [['remove', 'x:y', '1'], /an id must be 1 to 64/],
    [['remove'], /an id must be 1 to 64/],
    [['put', JSON.stringify(anInstance({ revision: 0 })), 'none'], /revision/],
    [['put', JSON.stringify(anInstance({ hypervisors: 'hv1' })), 'none'], /hypervisors/],
    [['put', JSON.stringify(anInstance({ interfaces: [1] })), 'none'], /interfaces/],
    ...NO_TIMES.map((sealedAt) => [
      ['put', JSON.stringify(anInstance({ sealedAt })), 'none'],
      /sealedAt is not a time/,
    ]),
    [
      ['unseal', JSON.stringify(anInstance({ sealedAt: TIME })), 'none'],
      /a record that unseals must not have sealedAt/,
    ],
    [['put', record, 'set', 'bytes'], /the size in the record is not the size/],
    [['put', record], /must be set BYTES, keep or none/],
    [['frob'], /first argument must be init, put/],
    [['dry-run', 'init'], /dry-run is for put/],
    [['remove', 'srv-a', '0.5'], /REVISION/],
    [['remove', 'srv-a', '0'], /REVISION/],
    [['remove', 'srv-a', 'x'], /REVISION/],
    [['remove', 'srv-a', ''], /REVISION/],
  ] as [string[], RegExp][]) {
    const answer = await run(...args)
    t.equal(answer[0], 'refused')
    t.match(answer.join(' '), why)
  }
  t.same(await redis.client.keys('*'), [])
  t.match(await run('put', record, 'none'), ['published', '1'])
})

t.test('a full Redis accepts removals, which free memory; a refused publish changes nothing', async (t) => {
  const full = await startRedis(t, ['--maxmemory', '4mb', '--maxmemory-policy', 'noeviction'])
  const store = await openTestStore(t, { url: full.url, region: 'gb1' })
  const daemon = await startDaemon(t, { IMDS_STORE: full.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  const local = (revision: number) => anInstance({ revision, interfaces: nic('127.0.0.1/8') })
  await store.put(local(1))
  await store.put(anInstance({ id: 'srv-other', interfaces: nic('10.0.0.6/30') }))
  await until(async () => (await daemon.get('/latest/meta-data/')).status === 200, 'the instance to be served')
  const fill = async () => {
    for (let n = 0; ; n++) await full.client.set(`junk ${n}`, 'x'.repeat(1000))
  }
  await t.rejects(fill(), /^OOM/)
  const dump = async () =>
    Promise.all(
      (await full.client.keys('imds*'))
        .sort()
        .map(async (key) => [key, (await full.client.dumpBuffer(key)).toString('hex')]),
    )
  const before = await dump()
  await t.rejects(store.put(local(2), Buffer.from('user-data')), /OOM/)
  t.same(await dump(), before, 'the refused publish changes nothing')

  t.match(await store.remove('srv-abcde'), { kind: 'removed', revision: 2 })
  t.match(await full.client.get(KEYS.tombstone('srv-abcde')), /^2 \d{16}$/)
  await until(async () => (await unlessReset(daemon.get('/latest/meta-data/')))?.status === 503, 'the removal')
  await t.rejects(fill(), /^OOM/)
  t.match(
    await store.remove('srv-unknown', 3),
    { kind: 'unchanged', revision: 3 },
    'a removal of an unknown id, which frees nothing, is accepted too',
  )
  t.match(await full.client.get(KEYS.tombstone('srv-unknown')), /^3 \d{16}$/)
  t.same(
    (await store.list()).map(({ id }) => id),
    ['srv-other'],
  )
})

/** The rules of revisions, incarnations, seals and addresses are those of publish.lua, of the publisher with keys, and of rules.ts. */
const SEED = 41
const STEPS = 300
t.test(`Redis, record keys and files give the same answers to ${STEPS} random changes (seed ${SEED})`, async (t) => {
  const keys = join(testDirectory(t, { keys: keyLines('k1') }), 'keys')
  const stores: readonly Publisher[] = [
    await aStore(t),
    await openTestStore(t, { url: `${redis.url}/1`, region: 'gb1', recordKeysFile: keys }),
    await openTestStore(t, { url: `file:${join(t.testdirName, 'store')}` }),
  ]
  const next = random(SEED)
  const below = (count: number) => Math.floor(next() * count)
  const kinds: Record<string, number> = {}
  for (let step = 0; step < STEPS; step++) {
    const id = `srv-${below(4)}`
    const revision = 1 + below(6) + Math.floor(step / 25)
    const address = ['10.0.0.1/24', '10.0.0.2/24', 'fd00::/64', 'fd00::5/128', 'fd00:1::1/128'][below(5)]!
    const addresses = address.includes(':') ? { ipv6Addresses: [address] } : { ipv4Addresses: [address] }
    const incarnation = { incarnation: below(8) === 0 ? 'b' : 'a' }
    const record = anInstance({
      id,
      revision,
      interfaces: [{ id: `int-${id}`, macAddress: `02:24:19:00:00:0${id.slice(-1)}`, ...addresses }],
      ...incarnation,
      ...(below(6) === 0 && { sealedAt: TIME }),
    })
    const userData = ([Buffer.from('one'), Buffer.from('two'), 'none', 'keep'] as const)[below(4)]!
    const options = { dryRun: below(5) === 0 }
    const given = below(2) === 0 ? revision : undefined
    const seal = below(4) === 0 && { sealedAt: '2026-11-26T00:00:00Z' } // to restore a tombstone
    const change = (
      [
        (store) => store.put(record, userData, options),
        (store) => store.put(record, userData, options),
        (store) => store.put(record, userData, options),
        (store) => store.remove(id, given, { ...options, ...incarnation, ...seal }),
        (store) => store.unseal(id),
      ] satisfies ((store: Publisher) => Promise<object>)[]
    )[below(5)]!
    const states: unknown[] = []
    for (const store of stores) {
      const answer = (await change(store)) as { readonly kind: string }
      if (states.length === 0) kinds[answer.kind] = (kinds[answer.kind] ?? 0) + 1
      // only Redis has the names of daemons and places
      states.push([
        { ...answer, unannounced: [], order: 0 },
        { ...(await store.get(id)), order: 0 },
      ])
    }
    const [first, ...others] = states.map((state) => JSON.stringify(state))
    if (others.every((other) => other === first)) continue
    t.strictSame(states, [states[0], states[0], states[0]], `step ${step}: ${id} at ${revision}`)
    break
  }
  t.same(await stores[1]!.tombstones(), await stores[0]!.tombstones())
  t.same(await stores[2]!.tombstones(), await stores[0]!.tombstones())
  for (const kind of [
    'published',
    'unchanged',
    'stale',
    'incarnation',
    'address-owned',
    'removed',
    'absent',
    'unsealed',
  ])
    t.ok((kinds[kind] ?? 0) > 3, `${kind}: ${JSON.stringify(kinds)}`)
})
