/** The limits of a record, with a real Redis: the library, the script and the daemon reject the same records. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { MAX_RECORD_BYTES } from '../../src/metadata/instance.ts'
import { parse, sizeFaults } from '../../src/metadata/record.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { openStore, type Publisher } from '../../src/store/open.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES } from '../../src/store/crypto/record-cipher.ts'
import { MAX_ORDER_BYTES } from '../../src/store/order.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { aLocalInstance as record, keysOfUser, loopback as interfaces } from '../support/fixtures/instance.ts'
import { aCipher, keyLines } from '../support/fixtures/record-keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { hostnameOf, serves } from '../support/redis/shapes.ts'
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

async function aStore(t: Test, change: { recordKeysFile?: string } = {}): Promise<Publisher> {
  await redis.client.flushall()
  return await openTestStore(t, { url: redis.url, region: 'gb1', ...change })
}

const script = (...args: readonly (string | Buffer)[]) =>
  redis.client.eval(SCRIPT, 1, KEYS.region, ...args) as Promise<string[]>
const faultsLogged = (daemon: TestDaemon) => daemon.log.filter(({ msg }) => msg.startsWith('faulty record'))

/** Writes an instance into Redis without any check. */
async function writeUnchecked(
  id: string,
  values: Readonly<Record<string, string | Buffer>>,
  address: string,
  digest: string,
): Promise<void> {
  const entry = JSON.stringify({ revision: '1', digest, addresses: [`default ${address}`], hypervisors: ['hv1'] })
  await redis.client
    .multi()
    .set(KEYS.region, '1700000000')
    .hset(KEYS.instance(id), { ...values, digest })
    .hset(KEYS.instances, id, entry)
    .hset(KEYS.addresses('default'), address, id)
    .hset(KEYS.hypervisor('hv1'), id, digest)
    .publish(KEYS.notices('hv1'), id)
    .exec()
}

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

t.test('a record with an unusable address can be encrypted, and decrypted again', async (t) => {
  await aStore(t)
  const older = record(1, 1, { interfaces: interfaces(1, { ipv6Addresses: ['fe80::a'] }) })
  await writeUnchecked('srv-n1', { record: JSON.stringify(older) }, '127.0.0.1', 'old')
  const recordKeysFile = join(testDirectory(t, { keys: keyLines('k1') }), 'keys')
  const encrypted = await openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile })
  t.match(await encrypted.encrypt('srv-n1', true), { kind: 'encrypted' })
  t.match(await encrypted.decrypt('srv-n1'), { kind: 'decrypted' })
  t.match(JSON.parse(String(await redis.client.hget(KEYS.instance('srv-n1'), 'record'))), older)
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

t.test('encrypted records have the same limits', async (t) => {
  const recordKeysFile = join(testDirectory(t, { keys: keyLines('k1') }), 'keys')
  const store = await aStore(t, { recordKeysFile })
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RECORD_KEYS_FILE: recordKeysFile,
  })
  t.match(await store.put(sized({}, MAX_RECORD_BYTES)), { kind: 'published' })
  await serves(daemon, 1)
  t.match(await store.put(sized({}, MAX_RECORD_BYTES + 1)), {
    kind: 'invalid',
    faults: [{ message: /262145 bytes as JSON, more than the limit of 262144/ }],
  })
  const facts = JSON.stringify({
    schema: 1,
    id: 'srv-n1',
    region: 'gb1',
    revision: 2,
    interfaces: interfaces(1),
    hypervisors: ['hv1'],
  })
  const value = aCipher('gb1', 'k1').encrypt(
    'record',
    'srv-n1',
    2,
    Buffer.alloc(MAX_RECORD_BYTES + MAX_ORDER_BYTES + MAX_ENCRYPTION_OVERHEAD_BYTES, 'x'),
  )
  t.match(await script('put-encrypted', facts, value, ''), ['refused', 'invalid', /longer than 262144/])
  await writeUnchecked('srv-n1', { record: value }, '127.0.0.1', 'too long')
  await until(() => faultsLogged(daemon).length === 1, 'the fault')
  t.match(
    faultsLogged(daemon),
    [{ reason: 'unreadable', faults: [{ message: /^the record is \d+ bytes, more than the limit of 262291$/ }] }],
    'it is rejected before it is decrypted',
  )
  t.equal(await hostnameOf(daemon), 'r1.n1.example.com')
})

t.test('invariant 3: the daemon refuses a record beyond a limit and keeps the last good state', async (t) => {
  const store = await aStore(t)
  const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  await store.put(record(1, 1), Buffer.from('mine'))
  await serves(daemon, 1)
  for (const [i, [what, text, reason, message]] of (
    [
      [
        '100,000 tags',
        JSON.stringify(record(1, 2, { tags: tags(100_000) })),
        'unreadable',
        /^the record is \d{7} bytes, more than the limit of 262176$/,
      ],
      [
        'text that is not JSON',
        '{'.repeat(MAX_RECORD_BYTES + MAX_ORDER_BYTES + 1),
        'unreadable',
        /^the record is 262177 bytes/,
      ],
      [
        '51 tags',
        JSON.stringify(record(1, 2, { tags: tags(51) })),
        'record',
        /^must not have more than 50 properties$/,
      ],
    ] as const
  ).entries()) {
    await writeUnchecked('srv-n1', { record: text }, '127.0.0.1', what)
    await until(() => faultsLogged(daemon).length === i + 1, what)
    t.match(faultsLogged(daemon)[i], { instance: 'srv-n1', reason, faults: [{ message }], servedRevision: 1 }, what)
    t.equal(await hostnameOf(daemon), 'r1.n1.example.com')
    t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine')
  }
})
