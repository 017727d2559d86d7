/** Encrypted records: with access to Redis alone, an intruder cannot read user-data or impersonate another instance. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keysOf } from '../../src/store/redis/keys.ts'
import type { Publisher, StoreSettings } from '../../src/store/open.ts'
import { startDaemon, type TestDaemon, until } from '../support/programs/daemon.ts'
import { aLocalInstance as record } from '../support/fixtures/instance.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { aCipher, keyLines } from '../support/fixtures/record-keys.ts'
import { withoutPlace } from '../support/redis/without-place.ts'
import { startRedis } from '../support/redis/redis.ts'
import { hostnameOf, resynced, serves } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const KEYS = keysOf('gb1')
const ID = '/latest/meta-data/instance-id'
const SCRIPT = readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8')

const redis = await startRedis(t, ['--rdbcompression', 'no']) // so that DUMP shows texts

/** A key file that a test rewrites. */
interface Keys {
  readonly path: string
  write(...names: readonly string[]): void
}

async function someKeys(t: Test, ...names: readonly string[]): Promise<Keys> {
  await redis.client.flushall()
  await redis.client.set('imds:{gb1}:announcement:hv1', '{}') // as if a daemon had announced it
  const path = join(testDirectory(t), 'keys')
  const keys = {
    path,
    write: (...which: readonly string[]) => writeFileSync(path, keyLines(...which)),
  }
  keys.write(...names)
  return keys
}

async function aStore(t: Test, keys: Keys | null, change: Partial<StoreSettings> = {}): Promise<Publisher> {
  return await openTestStore(t, { url: redis.url, region: 'gb1', recordKeysFile: keys?.path, ...change })
}

const environment = (keys: Keys | null) => ({
  IMDS_STORE: redis.url,
  IMDS_REGION: 'gb1',
  IMDS_HYPERVISOR: 'hv1',
  IMDS_RESYNC_SECONDS: '1',
  ...(keys !== null && { IMDS_RECORD_KEYS_FILE: keys.path }),
})

async function aDaemon(t: Test, keys: Keys | null, env: Record<string, string> = {}): Promise<TestDaemon> {
  return await startDaemon(t, { ...environment(keys), ...env })
}

/** Runs imdsctl on this store. */
const run = async (keys: Keys | null, ...args: readonly string[]) => {
  const { status, stdout, stderr } = await imdsctl(args, { env: environment(keys) })
  return { status, text: stdout + stderr }
}
const rejectedRecords = (daemon: TestDaemon) => daemon.metric('imds_record_faults_total{reason="rejected"}')

/** The values of an instance in Redis. */
async function valuesOf(id: string): Promise<Record<'record' | 'user-data' | 'digest', Buffer>> {
  return redis.client.hgetallBuffer(KEYS.instance(id))
}

/** Writes values directly into Redis and notifies the daemon, as an intruder would. */
let intrusions = 0
async function intrude(
  id: string,
  fields: Readonly<Record<string, string | Buffer>>,
  hypervisor = 'hv1',
): Promise<void> {
  const digest = `intrusion ${++intrusions}`
  await redis.client
    .multi()
    .hset(KEYS.instance(id), { ...fields, digest })
    .hset(KEYS.hypervisor(hypervisor), id, digest)
    .publish(KEYS.notices(hypervisor), id)
    .exec()
}

/** The whole content of Redis as text. */
async function dump(): Promise<string> {
  const names = (await redis.client.keys('*')).sort()
  const dumps = await Promise.all(names.map((name) => redis.client.dumpBuffer(name)))
  return names.map((name, i) => `${name} ${dumps[i]!.toString('latin1')}`).join('\n')
}

t.test('Redis and the journal show only ids, addresses, hypervisors and revisions unencrypted', async (t) => {
  const keys = await someKeys(t, 'k1')
  const store = await aStore(t, keys)
  const daemon = await aDaemon(t, keys)
  t.match(await store.put(record(1, 1, { tags: { secret: 'TAG-VALUE' } }), Buffer.from('S3CRET')), {
    kind: 'published',
  })
  await serves(daemon, 1)
  t.equal((await daemon.get('/latest/user-data')).body.toString(), 'S3CRET')
  t.match(await store.get('srv-n1'), {
    document: { fqdn: 'r1.n1.example.com', userData: { size: 6 } },
    userData: Buffer.from('S3CRET'),
  })
  const journal = () => readFileSync(join(daemon.directory, 'view.journal'), 'latin1')
  await until(async () => (await daemon.metric('imds_journal_rewrites_total{result="written"}')) > 0, 'the journal')
  const secrets = /S3CRET|TAG-VALUE|example\.com|ssh-ed25519|acc-|02:24:19|img-|sha256|"size"/
  t.notMatch(await dump(), secrets)
  t.notMatch(journal(), secrets)
  t.notMatch(journal(), /srv-n1/)
  t.match(JSON.parse((await redis.client.hget(KEYS.instances, 'srv-n1'))!), {
    revision: '1',
    addresses: ['default 127.0.0.1'],
    hypervisors: ['hv1'],
  })
  t.notMatch(JSON.stringify(daemon.log), secrets)
})

t.test('plain and swapped values are faults, and no guest gets data of another instance', async (t) => {
  const keys = await someKeys(t, 'k1')
  const store = await aStore(t, keys)
  const daemon = await aDaemon(t, keys)
  await store.put(record(1, 1), Buffer.from('older'))
  const older = await valuesOf('srv-n1')
  await store.put(record(1, 2), Buffer.from('mine'))
  await store.put(record(2, 2), Buffer.from('hers'))
  await serves(daemon, 2)
  await serves(daemon, 2, 2)
  const [mine, theirs] = [await valuesOf('srv-n1'), await valuesOf('srv-n2')]
  let count = 0
  // test/unit/store/crypto/ has every way in which values are not authentic, or do not belong together
  for (const [what, fields, reason] of [
    ['a plain record', { record: JSON.stringify(record(1, 3)), 'user-data': 'evil' }, /record is not encrypted/],
    [
      "another instance's record and user-data",
      { record: theirs.record, 'user-data': theirs['user-data'] },
      /record is not authentic/,
    ],
    [
      "another instance's user-data",
      { record: mine.record, 'user-data': theirs['user-data'] },
      /user-data is not authentic/,
    ],
    [
      'user-data of an older revision',
      { record: mine.record, 'user-data': older['user-data'] },
      /user-data is of revision 1, the record of 2/,
    ],
  ] as [string, Record<string, string | Buffer>, RegExp][]) {
    await intrude('srv-n1', fields)
    await until(async () => (await rejectedRecords(daemon)) === count + 1, what)
    count += 1
    t.match(
      (daemon.log.findLast(({ msg }) => msg.startsWith('faulty record'))!['faults'] as { message: string }[])[0]!
        .message,
      reason,
      what,
    )
    t.equal(await hostnameOf(daemon), 'r2.n1.example.com', what)
    t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine', what)
  }
  await intrude('srv-n1', { record: mine.record, 'user-data': mine['user-data'] })
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 0, 'the repair')
  await redis.client.hdel(KEYS.instance('srv-n1'), 'user-data')
  await intrude('srv-n1', {})
  await until(
    async () => (await daemon.metric('imds_record_faults_total{reason="user-data"}')) === 1,
    'the fault of removed user-data',
  )
  t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine')
  t.equal(await hostnameOf(daemon, 2), 'r2.n2.example.com')
})

t.test('the record, not the index, decides who owns an address and a hypervisor', async (t) => {
  const keys = await someKeys(t, 'k1')
  const store = await aStore(t, keys)
  await store.put(record(1, 1), Buffer.from('mine'))
  await store.put(record(2, 1, { hypervisors: ['hv2'] }), Buffer.from('hers'))
  const daemon = await aDaemon(t, keys)
  await serves(daemon, 1)
  await redis.client.hset(KEYS.addresses('default'), '127.0.0.9', 'srv-n2', '127.0.0.8', 'srv-n1')
  t.equal((await daemon.get(ID, '127.0.0.9')).status, 503, 'an address that srv-n2 does not claim')
  t.equal((await daemon.get(ID, '127.0.0.8')).status, 503, 'an address that srv-n1 does not claim')
  t.equal(
    (await daemon.get(ID, '127.0.0.2')).status,
    503,
    'an address of srv-n2, whose record names another hypervisor',
  )
  t.equal(await daemon.metric('imds_view_instances'), 1)
  await redis.client.hset(KEYS.hypervisor('hv1'), 'srv-n2', 'x')
  await redis.client.hdel(KEYS.hypervisor('hv1'), 'srv-n1')
  await redis.client.hset(KEYS.addresses('default'), '127.0.0.1', 'srv-n2')
  await redis.client.publish(KEYS.notices('hv1'), 'srv-n2')
  await resynced(daemon)
  t.equal(await daemon.metric('imds_view_instances'), 1, 'srv-n2 names another hypervisor')
  t.equal((await daemon.get(ID, '127.0.0.1')).body.toString(), 'srv-n1', 'srv-n1 names this one')
  t.equal((await daemon.get(ID, '127.0.0.2')).status, 503)
})

t.test('keys are rotated with an overlap, without a new publish and without a fault', async (t) => {
  const keys = await someKeys(t, 'k1')
  let store = await aStore(t, keys)
  await store.put(record(1, 1), Buffer.from('mine'))
  await store.put(record(2, 1))
  const before = await aDaemon(t, keys)
  await serves(before, 1)
  keys.write('k2', 'k1')
  const daemon = await aDaemon(t, keys)
  t.match(
    daemon.log.find(({ msg }) => msg === 'listening'),
    { recordKeys: ['k2', 'k1'] },
    'the daemon logs the names of its keys',
  )
  await serves(daemon, 1)
  store = await aStore(t, keys)
  t.match(await store.put(record(2, 1)), { kind: 'unchanged' }, 'a repeated publish encrypts the same contents again')
  t.match(await store.put(record(2, 2)), { kind: 'published' })
  await until(async () => (await rejectedRecords(before)) >= 1, 'the fault of a daemon without the new key')
  t.match(before.log.find(({ msg }) => msg.startsWith('faulty record'))!['faults'], [
    { message: /with a key that is not configured here: k2/ },
  ])
  t.equal(await hostnameOf(before, 2), 'r1.n2.example.com', 'it keeps the last good state')
  const digest = async () => (await valuesOf('srv-n1')).digest.toString()
  const first = await digest()
  await before.stop()
  await until(async () => (await store.hypervisors())[0]?.recordKeys?.[0] === 'k2', 'the announcement of the keys')
  const announceOther = (recordKeys?: readonly string[], seenAt = new Date().toISOString()) =>
    redis.client.set('imds:{gb1}:announcement:hv2', JSON.stringify({ seenAt, recordKeys }))
  for (const lacking of [['k1'], undefined]) {
    await announceOther(lacking)
    t.match(await run(keys, 'encrypt'), {
      status: 2,
      text: /^imdsctl: daemons have not announced the record key k2, and could not read the records: hv2\. /,
    })
  }
  t.equal(await digest(), first, 'nothing is encrypted while a daemon could not read it')
  t.match(await run(keys, 'encrypt', 'srv-n2', '--force'), { status: 0 })
  await announceOther(['k1'], '2026-11-20T15:04:05Z') // it was seen long ago
  t.match(await run(keys, 'encrypt'), {
    status: 0,
    text: /^2 instances, (1 encrypted, 1 unchanged|1 unchanged, 1 encrypted)\n$/,
  })
  t.not(await digest(), first)
  t.same(await run(keys, 'encrypt', 'srv-n1'), { status: 0, text: '1 instance, 1 unchanged\n' })
  t.match(await store.get('srv-n1'), { document: { revision: 1 }, userData: Buffer.from('mine') }, 'the revision stays')
  keys.write('k2')
  const after = await aDaemon(t, keys)
  await serves(after, 1)
  await serves(after, 2, 2)
  t.equal((await after.get('/latest/user-data')).body.toString(), 'mine')
  t.equal(
    await daemon.metric('imds_record_faults_total{reason="rejected"}'),
    0,
    'the daemon with both keys had no fault',
  )
  t.match(await run(keys, 'encrypt', 'srv-nobody'), {
    status: 65,
    text: /srv-nobody: the store has no record of it/,
  })
  keys.write('k1')
  t.match(await run(keys, 'encrypt', '--force'), {
    status: 65,
    text: /^2 instances, 2 faulty\nimdsctl: srv-n1: .*not configured here: k2\nimdsctl: srv-n2: /,
  })
})

t.test('keys are introduced without a new publish; encrypt accepts plain records only with --from-plain', async (t) => {
  const keys = await someKeys(t, 'k1')
  const plain = await aStore(t, null)
  await plain.put(record(1, 1), Buffer.from('mine'))
  await plain.put(record(2, 1))
  await plain.seal('srv-n2')
  const before = await aDaemon(t, null)
  await serves(before, 1)
  t.match(await run(keys, 'encrypt'), {
    status: 65,
    text: /srv-n1: it is not encrypted \(--from-plain accepts it\)/,
  })
  t.same(await run(keys, 'encrypt', '--from-plain'), {
    status: 0,
    text: '2 instances, 2 encrypted\n',
  })
  await until(
    async () => (await before.metric('imds_record_faults_total{reason="unreadable"}')) >= 1,
    'the fault of a daemon without keys',
  )
  t.equal(await hostnameOf(before), 'r1.n1.example.com', 'it keeps the last good state')
  const daemon = await aDaemon(t, keys)
  await serves(daemon, 1)
  t.equal((await daemon.get('/latest/user-data')).body.toString(), 'mine')
  t.match((await (await aStore(t, keys)).get('srv-n2'))!.document, { revision: 2, sealedAt: /^2/ })
  await t.rejects(plain.get('srv-n1'), /srv-n1 cannot be read: the record is encrypted, and no keys/)
  await t.rejects(
    plain.put(record(1, 2), Buffer.from('x')),
    /the region is encrypted: give its record keys/,
    'a publisher without keys is refused',
  )
  await t.rejects(plain.encrypt('srv-n1', false), /no record keys/)
  t.match(await hostnameOf(daemon), 'r1.n1.example.com')
})

t.test('encryption is removed without a new publish, and guests are served all the time', async (t) => {
  const keys = await someKeys(t, 'k1')
  const store = await aStore(t, keys)
  await store.put(record(1, 3), Buffer.from('mine'))
  await store.put(record(2, 1))
  await store.seal('srv-n2')
  await store.put(record(3, 1), Buffer.alloc(0))
  const daemon = await aDaemon(t, keys)
  await serves(daemon, 3)
  t.match(await run(null, 'decrypt'), { status: 65, text: /srv-n1: no record keys are configured/ })
  t.same(await run(keys, 'decrypt'), {
    status: 0,
    text: '3 instances, 3 decrypted\n',
  })
  t.same(await run(keys, 'decrypt'), {
    status: 0,
    text: '3 instances, 3 unchanged\n',
  })
  await until(async () => (await rejectedRecords(daemon)) >= 2, 'a daemon with keys to reject the plain records')
  t.equal(await hostnameOf(daemon), 'r3.n1.example.com', 'it keeps the last good state')
  const after = await aDaemon(t, null)
  await serves(after, 3)
  t.equal((await after.get('/latest/user-data')).body.toString(), 'mine')
  const plain = await aStore(t, null)
  t.match((await plain.get('srv-n2'))!.document, { revision: 2, sealedAt: /^2/ })
  t.equal((await plain.get('srv-n3'))!.userData?.length, 0, 'user-data that is set but empty')
  t.match(await plain.put(record(1, 4)), { kind: 'published' })
  await serves(after, 4)
  t.match(await redis.client.eval(SCRIPT, 1, KEYS.region, 'decrypt', JSON.stringify(record(1, 4)), '', 'other'), [
    'refused',
    'changed',
  ])
})

t.test('the store of an encrypted region refuses publishers without keys, whatever they write', async (t) => {
  const keys = await someKeys(t, 'k1')
  const [store, plain] = [await aStore(t, keys), await aStore(t, null)]
  t.match(
    await plain.put(record(4, 1, { sealedAt: '2026-11-20T15:04:05Z' })),
    { kind: 'published' },
    'before the first encrypted record',
  )
  await store.put(record(1, 1), Buffer.from('mine'))
  await store.put(record(2, 1))
  t.match(await store.remove('srv-n2'), { kind: 'removed', revision: 2 })
  const before = await dump()
  for (const [what, publish] of [
    ['an instance', () => plain.put(record(1, 2), 'none')],
    ['a new instance', () => plain.put(record(3, 1))],
    ['a removed instance', () => plain.put(record(2, 3))],
    ['a plain instance', () => plain.put(record(4, 2))],
    ['a removal', () => plain.remove('srv-n1')],
    ['a removal of an unknown id', () => plain.remove('srv-n9', 1)],
    ['an unseal', () => plain.unseal('srv-n4')],
  ] as readonly (readonly [string, () => Promise<unknown>])[])
    await t.rejects(publish(), /^the region is encrypted: give its record keys/, what)
  for (const [verb, ...args] of [
    ['put', JSON.stringify(record(3, 1)), 'none'],
    ['unseal', JSON.stringify(record(3, 1)), 'none'],
    ['remove', 'srv-n1'],
  ] as const) {
    t.same(await redis.client.eval(SCRIPT, 1, KEYS.region, verb, ...args), ['refused', 'encrypted'], verb)
  }
  t.match(await run(null, 'remove', 'srv-n1'), {
    status: 69,
    text: /^imdsctl: the region is encrypted: give its record keys/,
  })
  t.equal(await dump(), before, 'nothing was written')
  t.match(await store.put(record(1, 2)), { kind: 'published' })
  await redis.client.del(KEYS.encrypted)
  t.match(await plain.put(record(3, 1)), { kind: 'published' }, 'without the mark the region is plain')
  await t.rejects(plain.remove('srv-n1'), /the region is encrypted/, 'except for an instance whose record is encrypted')
})

t.test('imdsctl encrypt marks an empty region as encrypted, but not a region with a plain record', async (t) => {
  const keys = await someKeys(t, 'k1')
  const plain = await aStore(t, null)
  await plain.put(record(1, 1))
  t.match(await run(keys, 'encrypt'), { status: 65, text: /srv-n1: it is not encrypted/ })
  t.match(await plain.put(record(1, 2)), { kind: 'published' }, 'the region is still plain')
  await plain.remove('srv-n1')
  t.same(await run(keys, 'encrypt'), { status: 0, text: '0 instances\n' })
  await t.rejects(plain.put(record(1, 4)), /the region is encrypted/)
  t.match(await redis.client.get(KEYS.encrypted), /^\d{10}$/)
  await redis.client.set(KEYS.encrypted, '1700000000')
  await (await aStore(t, keys)).put(record(1, 4))
  t.same(await run(keys, 'encrypt'), { status: 0, text: '1 instance, 1 unchanged\n' })
  t.equal(await redis.client.get(KEYS.encrypted), '1700000000', 'the time of the mark stays')
  await t.rejects(plain.markEncrypted(), /no record keys/)
})

t.test('the script publishes values encrypted by any program, and refuses what does not fit the facts', async (t) => {
  const keys = await someKeys(t, 'k1')
  const store = await aStore(t, keys)
  const cipher = aCipher('gb1', 'k1')
  const script = async (...args: (string | Buffer)[]) =>
    withoutPlace((await redis.client.eval(SCRIPT, 1, KEYS.region, ...args)) as string[])
  const facts = (revision: number, change: object = {}) =>
    JSON.stringify({
      schema: 1,
      id: 'srv-n1',
      region: 'gb1',
      revision,
      order: Date.now() * 1_000 + revision,
      interfaces: [{ ipv4Addresses: ['127.0.0.1/8'] }],
      hypervisors: ['hv1'],
      ...change,
    })
  const value = (revision: number, change: Record<string, unknown> = {}) =>
    cipher.encrypt('record', 'srv-n1', revision, Buffer.from(JSON.stringify(record(1, revision, change))))
  t.same(await script('put-encrypted', facts(1), value(1), ''), ['published', '1'])
  t.same(await store.get('srv-n1').then((one) => [(one!.document as { revision: number }).revision, one!.userData]), [
    1,
    undefined,
  ])
  for (const [args, why] of [
    [['put-encrypted', facts(2), value(3), ''], /invalid .*not for the revision/],
    [['put-encrypted', facts(2), JSON.stringify(record(1, 2)), ''], /invalid .*not encrypted/],
    [['put-encrypted', facts(2), value(2), 'plain'], /invalid .*not encrypted/],
    [
      ['put-encrypted', facts(2), value(2), cipher.encrypt('user-data', 'srv-n1', 1, Buffer.from('x'))],
      /invalid .*revision/,
    ],
    [['put-encrypted', '{', value(2), ''], /invalid/],
    [
      ['put-encrypted', facts(2, { interfaces: [{ ipv4Addresses: ['169.254.0.1/16'] }] }), value(2), ''],
      /invalid .*link-local/,
    ],
    [['put-encrypted', facts(1), value(1), ''], /stale 1/],
    [['put-encrypted', facts(2), value(2), '', 'x'], /changed [0-9a-f]{40} \d{16}/],
    [['put-encrypted', facts(2, { order: undefined }), value(2), ''], /^refused order \d{16}$/],
    [['put-encrypted', facts(2, { order: 1 }), value(2), ''], /^refused order \d{16}$/],
    [['put-encrypted', facts(2, { order: (Date.now() + 86_400_000) * 1_000 }), value(2), ''], /^refused order /],
    [['encrypt', facts(1), value(1), ''], /changed/],
    [['unseal-encrypted', facts(2, { sealedAt: '2026-11-20T15:04:05Z' }), value(2), ''], /invalid/],
    [['put', JSON.stringify(record(1, 2)), 'keep'], /^refused encrypted$/],
  ] as [(string | Buffer)[], RegExp][])
    t.match((await script(...args)).join(' '), why)
  const digest = (await valuesOf('srv-n1')).digest
  t.match(
    await script('encrypt', facts(2), value(2), '', digest),
    ['refused', 'stale', '1'],
    'an encryption with another key must keep the revision',
  )
  t.same(await script('encrypt', facts(1), value(1), '', digest), ['published', '1'])
  const sealedAt = '2026-11-20T15:04:05Z'
  t.same(await script('put-encrypted', facts(2, { sealedAt }), value(2, { sealedAt }), ''), [
    'published',
    '2',
    sealedAt,
  ])
  t.same(
    await script('put-encrypted', facts(3), value(3), ''),
    ['refused', 'sealed', sealedAt],
    'the script cannot add a seal to an encrypted record: the publisher must',
  )
  t.same(await script('unseal-encrypted', facts(3), value(3), ''), ['published', '3'])
})
