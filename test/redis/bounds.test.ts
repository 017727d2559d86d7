/** The limits of a record, with a real Redis: the library, the script, files and the daemon reject the same records. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { MAX_RECORD_BYTES } from '../../src/metadata/instance.ts'
import { parse, sizeFaults } from '../../src/metadata/record.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openStore, type Publisher } from '../../src/store/open.ts'
import { aLocalInstance as record, keysOfUser, loopback as interfaces } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const KEYS = keysOf('gb1')
const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')
const many = <T>(count: number, make: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i))
const tags = (count: number) => Object.fromEntries(many(count, (i) => [`k${i}`, 'x']))
/** A record of exactly this size, because of an unknown field. */
const sized = (change: Record<string, unknown>, bytes: number) =>
  record(1, 1, { ...change, later: 'x'.repeat(bytes - JSON.stringify(record(1, 1, { ...change, later: '' })).length) })

const redis = await startRedis(t)

async function aStore(t: Test): Promise<Publisher> {
  await redis.client.flushall()
  return await openTestStore(t, { url: redis.url, region: 'gb1' })
}

const script = (...args: readonly (string | Buffer)[]) =>
  redis.client.eval(SCRIPT, 1, KEYS.region, ...args) as Promise<string[]>

t.test('the library, the script and the daemon have the same limits', async (t) => {
  const store = await aStore(t)
  const files = testDirectory(t)
  const on = (change: Record<string, unknown>) => ({ interfaces: interfaces(1, change) })
  const key = (i: number) => ({ user: `usr-${i}`, key: 'ssh-rsa AAAA' })
  const cloudIp = (i: number) => ({ id: 'cip-a', publicIpv4: `198.51.100.${i}`, fqdn: 'a.example.com' })
  const port = (i: number) => ({ id: `int-${i}`, macAddress: `02:24:19:00:00:${(16 + i).toString(16)}` })
  const bounds: readonly (readonly [string, number, (count: number) => Record<string, unknown>])[] = [
    ['tags', 50, (n) => ({ tags: tags(n) })],
    ["the characters of a tag's key", 128, (n) => ({ tags: { ['é'.repeat(n)]: '' } })],
    ["the characters of a tag's value", 256, (n) => ({ tags: { a: '😀'.repeat(n) } })],
    ['block devices', 256, (n) => ({ blockDevices: Object.fromEntries(many(n, (i) => [`ebs${i}`, 'sda'])) })],
    ['interfaces', 32, (n) => ({ interfaces: many(n, port) })],
    ['addresses', 64, (n) => on({ ipv4Addresses: many(n, (i) => `127.0.1.${i}`) })],
    ['IPv6 addresses', 64, (n) => on({ ipv6Addresses: many(n, (i) => `fd00::${(i + 1).toString(16)}`) })],
    ['IPv6 prefixes', 64, (n) => on({ ipv6Prefixes: many(n, (i) => `fd00:${(i + 1).toString(16)}::/64`) })],
    ['cloud IPs', 64, (n) => on({ cloudIps: many(n, cloudIp) })],
    ['server groups', 256, (n) => ({ serverGroups: many(n, (i) => ({ id: `grp-${i}`, name: 'x' })) })],
    ['public keys', 256, (n) => ({ publicKeys: many(n, key) })],
    ['public keys of all users', 8, (n) => ({ publicKeys: many(n, (i) => ({ ...key(i), ...keysOfUser(32) })) })],
    ['public keys of a user', 32, (n) => ({ publicKeys: [{ user: 'usr-a', ...keysOfUser(n) }] })],
    ['hypervisors', 2, (n) => ({ hypervisors: ['hv1', 'hv2', 'hv3'].slice(0, n) })],
    ['bytes', MAX_RECORD_BYTES, (n) => sized({}, n)],
  ]
  for (const [what, most, change] of bounds) {
    const at = (over: 0 | 1) => record(1, 1, change(most + over))
    await redis.client.flushall()
    t.match(
      await script('put', JSON.stringify(at(1)), 'none'),
      ['refused', 'invalid'],
      `the script refuses more ${what}`,
    )
    t.match(await store.put(at(1)), { kind: 'invalid' }, 'so does the library')
    t.same(await redis.client.keys('*'), [])
    const fileStore = await openStore({ url: `file:${join(files, what.replaceAll(/\W/g, ''))}` })
    t.match(await fileStore.put(at(1)), { kind: 'invalid' }, 'and the file store')
    t.match(await fileStore.put(at(0)), { kind: 'published' }, 'which accepts the maximum')
    t.same([parse(at(0)).ok, sizeFaults(at(0))], [true, []], `a daemon accepts the maximum of ${what}`)
    t.match(await script('put', JSON.stringify(at(0)), 'none'), ['published', '1'], 'so does the script')
    t.match(await store.put(at(0)), { kind: 'unchanged' }, 'and the library')
  }
  for (const [what, faulty] of [
    ['no hypervisor', { hypervisors: [] }],
    ['no interface', { interfaces: [] }],
    ['tags that are a list', { tags: ['x'] }],
    ['tags that are a text', { tags: 'x' }],
    ['a tag that is a number', { tags: { a: 1 } }],
    ['cloud IPs that are a text', { interfaces: interfaces(1, { cloudIps: 'x' }) }],
  ] as const) {
    t.match(await script('put', JSON.stringify(record(1, 2, faulty)), 'none'), ['refused', 'invalid'], what)
  }
})

t.test('E1: the script and the library refuse the same unusable addresses, with the same words', async (t) => {
  const store = await aStore(t)
  const words = 'unspecified, link-local, multicast or broadcast, which cannot identify a guest'
  const nobody = [
    '0.0.0.0',
    '0.1.2.3',
    '169.254.0.1',
    '224.0.0.1',
    '239.255.255.255',
    '255.255.255.255',
    '::',
    'fe80::1',
    'febf:ffff::1',
    'ff02::1',
  ]
  const guests = ['127.0.0.1', '169.253.0.1', '223.255.255.255', '240.0.0.1', '::1', 'fe7f::1', 'fec0::1', 'fd00::1']
  const withAddress = (address: string, revision = 1) =>
    record(1, revision, {
      interfaces: interfaces(1, {
        ipv4Addresses: [],
        [address.includes(':') ? 'ipv6Addresses' : 'ipv4Addresses']: [address],
      }),
    })
  for (const address of nobody) {
    t.match((await script('put', JSON.stringify(withAddress(address)), 'none'))[2], words, address)
    t.match(await store.put(withAddress(address)), { kind: 'invalid', faults: [{ message: `is ${words}` }] }, address)
  }
  for (const [i, address] of guests.entries()) {
    t.match(await script('put', JSON.stringify(withAddress(address, 2 * i + 1)), 'none'), ['published'], address)
    t.match(await store.put(withAddress(address, 2 * i + 2)), { kind: 'published' }, address)
  }
})

t.test('a seal that makes a record too long is refused with the reason, in Redis and in files', async (t) => {
  const files = await openStore({ url: `file:${testDirectory(t)}` })
  for (const store of [await aStore(t), files]) {
    await store.put(sized({}, MAX_RECORD_BYTES))
    await t.rejects(
      store.seal('srv-n1'),
      /is \d+ bytes as JSON, more than the limit of 262144|longer than 262144 bytes/,
    )
    await store.put(record(1, 2))
    t.match(await store.seal('srv-n1'), { kind: 'sealed', revision: 3 })
    t.match(await store.put({ ...sized({}, MAX_RECORD_BYTES), revision: 4 }), {
      kind: 'invalid',
      faults: [{ message: /longer than 262144 bytes with its seal|more than the limit/ }],
    })
  }
})
