/**
 * IPv6 addresses and prefixes in a real Redis: which ranges the script compares, and whose an address is.
 * world-model.test.ts has that each address of a network has one owner.
 */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { aSource } from '../support/redis/shapes.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

const KEYS = keysOf('gb1')

const redis = await startRedis(t)

async function aStore(t: Test): Promise<Publisher> {
  await redis.client.flushall()
  return await openTestStore(t, { url: redis.url, region: 'gb1' })
}

/** A record that claims addresses and prefixes. */
function recordWith(id: string, ranges: readonly string[], revision = 1): Record<string, unknown> {
  const [ipv6Prefixes, ipv6Addresses] = [
    ranges.filter((range) => range.includes('/')),
    ranges.filter((range) => !range.includes('/')),
  ]
  return anInstance({
    id: `srv-${id}`,
    revision,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv6Addresses, ipv6Prefixes }],
  })
}

/** The entries of the index of IPv6 ranges. */
const indexEntries = () => redis.client.zrange(KEYS.ranges('default'), 0, '-1')

t.test('a conflict with one range among many ranges of the same instance is found', async (t) => {
  const store = await aStore(t)
  const own = Array.from({ length: 60 }, (_, i) => `2a02:1348:178:1::${(i * 2 + 2).toString(16)}`)
  await store.put(recordWith('first', own))
  await store.put(recordWith('second', ['2a02:1348:178:1::79']))
  t.same(await store.put(recordWith('first', ['2a02:1348:178:1::/64'], 2)), {
    kind: 'address-owned',
    network: 'default',
    address: '2a02:1348:178:1::/64',
    owner: 'srv-second',
  })
  t.equal((await indexEntries()).length, 61)
  await store.remove('srv-second')
  t.match(await store.put(recordWith('first', ['2a02:1348:178:1::/64'], 2)), { kind: 'published' })
  t.same(await indexEntries(), ['2a02134801780001 srv-first'])
})

t.test('the script itself refuses IPv6 ranges that it cannot compare, for publishers in any language', async (t) => {
  await aStore(t)
  const script = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
  const put = (nic: object) =>
    redis.client.eval(
      script,
      1,
      KEYS.region,
      'put',
      JSON.stringify(anInstance({ interfaces: [nic] })),
      'none',
    ) as Promise<string[]>
  for (const prefix of [
    '2a02::/32',
    '2a02::/63',
    '2a02::/128',
    '2a02::1/64',
    'fe80::/64',
    'ff02::/64',
    '::/64',
    'x::/64',
    '2a02::/x',
    '2a02:1:2:3:4:5:6:7:8/64',
    '12a02::/64',
    '10.0.0.0/8',
  ]) {
    t.match(await put({ ipv6Prefixes: [prefix] }), ['refused', 'invalid', /ipv6Prefixes/], prefix)
  }
  for (const address of [
    '1:2:3:4:5:6:7',
    '1:2:3:4:5:6:7:8:9',
    '::12345',
    'fd00::2%eth0',
    '::ffff:10.0.0.2',
    '10.0.0.2',
    'x',
    '',
    'fd00:: 7',
  ]) {
    t.match(await put({ ipv6Addresses: [address] }), ['refused', 'invalid'], address)
  }
  t.match(await put({ ipv6Prefixes: 'x' }), ['refused', 'invalid', /ipv6Prefixes must be a list or an object/])
  t.match(await put({ ipv4Addresses: ['x:y'] }), ['refused', 'invalid', /ipv4Addresses/])
  t.same(await redis.client.keys('*'), [])
  t.match(await put({ ipv6Prefixes: ['2A02:0:0:1::/64'], ipv6Addresses: ['FD00::2/64', '1:2:3:4:5:6:7:8', '2::'] }), [
    'published',
    '1',
  ])
  t.same(
    await indexEntries(),
    [
      '00010002000300040005000600070008',
      '00020000000000000000000000000000',
      '2a02000000000001',
      'fd000000000000000000000000000002',
    ].map((digits) => `${digits} srv-abcde`),
  )
})

t.test('the owner of an IPv4 or IPv6 address can be looked up, on its network only', async (t) => {
  const store = await aStore(t)
  await store.put(recordWith('first', ['2a02:1348:178:1::/64', 'fd00::7']))
  await store.put(anInstance({ id: 'srv-second' }))
  const source = await aSource(t, redis.url, 16_384)
  for (const [address, owner] of [
    ['2a02:1348:178:1::', 'srv-first'],
    ['2a02:1348:178:1:5054:ff:fe12:3456', 'srv-first'],
    ['2a02:1348:178:1:ffff:ffff:ffff:ffff', 'srv-first'],
    ['fd00::7', 'srv-first'],
    ['10.0.0.2', 'srv-second'],
    ['2a02:1348:178:2::1', undefined],
    ['2a02:1348:178::1', undefined],
    ['fd00::70', undefined],
    ['fd00::', undefined],
    ['ffff::', undefined],
    ['::1', undefined],
    ['10.0.0.20', undefined],
  ] as const)
    t.equal(await source.owner('default', address), owner, address)
  t.equal(await source.owner('red', 'fd00::7'), undefined)
})
