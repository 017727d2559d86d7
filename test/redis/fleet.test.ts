/**
 * `imdsctl hypervisors`, `drain`, `undrain` and `forget`, with a real Redis: what the store knows of the hypervisors of
 * a region.
 */
import { statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { drain, forget, hypervisors, undrain } from '../../src/imdsctl/hypervisors.ts'
import { put } from '../../src/imdsctl/put.ts'
import type { Context } from '../../src/imdsctl/commands.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { runCommand, type CommandResult } from '../support/programs/collected-output.ts'
import { until } from '../support/programs/daemon.ts'
import { startRedis, sentBy } from '../support/redis/redis.ts'
import { aDaemon, aStore, record, SECRET, urlAs } from '../support/redis/shapes.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'
import type { Publisher } from '../../src/store/open.ts'

const KEYS = keysOf('gb1')
const MINUTE_MS = 60_000
const LONG = Buffer.alloc(32 * 1024 * 1024, 'x')
const A_MEBIBYTE = 1024 * 1024

const redis = await startRedis(t)
t.beforeEach(async () => {
  await redis.client.flushall()
})

/** Runs a command that takes a context. */
function imdsctl(
  command: (context: Context) => Promise<unknown>,
  json = false,
  url = redis.url,
): Promise<CommandResult> {
  return runCommand(async (output) => {
    const status = await command({ store: { url, region: 'gb1' }, output })
    return typeof status === 'number' ? status : 0
  }, json)
}

/** Announces a hypervisor as its daemon did some time ago. */
async function announce(name: string, agoMs = 0, change: object = {}): Promise<void> {
  const seenAt = new Date(Date.now() - agoMs).toISOString()
  const state = { version: '1.2.3', instances: 2, lagSeconds: 0, seenAt, ...change }
  await redis.client.set(KEYS.announcement(name), JSON.stringify(state))
}

const marks = async () => Object.keys(await redis.client.hgetall(KEYS.drained)).sort()

t.test('hypervisors lists those that are announced, drained or named by a record', async (t) => {
  const store = await aStore(t, redis.url)
  await announce('hv1', 15_000, { lagSeconds: 75 })
  await announce('hv2', 10 * MINUTE_MS, { lagSeconds: 75 })
  await redis.client.set(KEYS.announcement('hv3'), '{}')
  await store.put(record(1, { hypervisors: ['hv1', 'hv-typo'] }))
  await store.fleet.drain('hv4', new Date(Date.now() - 2 * MINUTE_MS).toISOString())
  t.equal(
    (await imdsctl(hypervisors)).stdout.replace(/\d\d s ago/, '15 s ago'), // a slow machine takes seconds until here
    `HYPERVISOR  VERSION  INSTANCES  RECORDS  LAG    LAST SEEN           DRAINED
hv-typo     -        -          1        -      never               -
hv1         1.2.3    2          1        1 min  15 s ago            -
hv2         1.2.3    2          0        -      10 min ago          -
hv3                  0          0        -      at an unknown time  -
hv4         -        -          0        -      never               2 min ago
`,
    'the lag of a daemon that no longer reports is not shown',
  )
  const lines = (await imdsctl(hypervisors, true)).stdout.trim().split('\n')
  t.match(
    lines.map((line) => JSON.parse(line) as object),
    [
      { name: 'hv-typo', records: 1 },
      { name: 'hv1', records: 1, version: '1.2.3', instances: 2, lagSeconds: 75, seenAt: /Z$/ },
      { name: 'hv2' },
      { name: 'hv3' },
      { name: 'hv4', drainedAt: /Z$/ },
    ],
  )
})

t.test('a daemon announces what it serves and how far it is behind as soon as it has caught up', async (t) => {
  const store = await aStore(t, redis.url)
  await store.put(record(1))
  await aDaemon(t, redis.url)
  const isCurrent = async () => {
    const [announced] = await store.hypervisors(['hv1'])
    return announced?.lagSeconds === 0 && announced.instances === 1
  }
  await until(isCurrent, 'the announcement', 10_000)
  t.same(
    (await store.hypervisors(['hv2', 'hv1'])).map(({ name }) => name),
    ['hv1'],
    'hypervisors that are not announced are left out',
  )
})

t.test('two daemons with one name find each other; a daemon that starts again finds none', async (t) => {
  const store = await aStore(t, redis.url)
  await store.put(record(1))
  const start = () => aDaemon(t, redis.url, {}, { IMDS_RESYNC_SECONDS: '1' })
  const first = await start()
  await first.stop()
  const again = await start()
  const resyncs = () => again.metric('imds_resyncs_total{result="completed"}')
  await until(async () => (await resyncs()) >= 3, 'some announcements')
  t.equal(await again.condition('hypervisor-duplicate'), undefined)
  t.match(await imdsctl(hypervisors), { stderr: '' })
  const clone = await start()
  for (const daemon of [again, clone]) {
    await until(async () => (await daemon.condition('hypervisor-duplicate')) !== undefined, 'the other daemon')
    t.equal((await daemon.operator('/readyz')).status, 200)
  }
  await until(async () => (await store.hypervisors())[0]?.duplicate === true, 'the announcement')
  t.match(await imdsctl(hypervisors), { stderr: /several daemons announce themselves as hv1/ })
  t.match((await imdsctl(hypervisors, true)).stdout, /"duplicate":true/)
})

t.test('drain marks a hypervisor once, and undrain removes the mark; both can be repeated', async (t) => {
  await announce('hv1')
  t.match(await imdsctl((context) => drain(context, 'hv1')), { status: 0, stdout: /^hv1 is drained: / })
  const [since] = Object.values(await redis.client.hgetall(KEYS.drained))
  t.match(await imdsctl((context) => drain(context, 'hv1'), true), {
    status: 0,
    stdout: '{"formatVersion":1,"name":"hv1","result":"unchanged"}\n',
  })
  t.same(await redis.client.hgetall(KEYS.drained), { hv1: since })
  t.match(await imdsctl((context) => undrain(context, 'hv1')), { status: 0, stdout: 'hv1 is no longer drained\n' })
  t.match(await imdsctl((context) => undrain(context, 'hv1')), { status: 0, stdout: /nothing to do/ })
  t.same(await marks(), [])
})

t.test('a misspelt hypervisor is not drained', async (t) => {
  await announce('hv1')
  t.match(await imdsctl((context) => drain(context, 'hv11')), { status: 1, stderr: /no daemon has announced hv11/ })
  t.match(await imdsctl((context) => drain(context, 'hv 1')), { status: 64 })
  t.same(await marks(), [])
})

t.test('put publishes a record for a drained hypervisor, and warns of it', async (t) => {
  const store = await aStore(t, redis.url)
  for (const name of ['hv1', 'hv2']) await announce(name)
  await store.fleet.drain('hv1', new Date().toISOString())
  const file = join(testDirectory(t), 'srv-n1.json')
  const putting = async (revision: number, name: string) => {
    writeFileSync(file, JSON.stringify(record(revision, { hypervisors: [name] })))
    return imdsctl((context) => put(context, [file], {}))
  }
  t.match(await putting(1, 'hv1'), {
    status: 0,
    stdout: /^published srv-n1/,
    stderr: /^imdsctl: warning: hypervisor hv1 is drained: /,
  })
  t.match(await putting(2, 'hv2'), { status: 0, stderr: '' })
})

t.test('forget deletes the announcement and the mark, but not while a record names the hypervisor', async (t) => {
  const store = await aStore(t, redis.url)
  await announce('hv1', 10 * MINUTE_MS)
  await announce('hv2')
  await store.fleet.drain('hv1', new Date().toISOString())
  await store.put(record(1, { hypervisors: ['hv1', 'hv2'] }))
  t.match(await imdsctl((context) => forget(context, 'hv1'), true), {
    status: 2,
    stdout: /"error":"1 records name hv1 .*by imdsctl evacuate or, .*by imds-api evacuate","name":"hv1","records":1/,
  })
  await store.put(record(2, { hypervisors: ['hv2'] }))
  t.match(await imdsctl((context) => forget(context, 'hv1')), { status: 0, stdout: 'hv1 is forgotten\n', stderr: '' })
  t.match(await imdsctl((context) => forget(context, 'hv1')), { status: 0, stdout: /^hv1 is not known to the store/ })
  t.same([await marks(), (await store.hypervisors()).map(({ name }) => name)], [[], ['hv2']])
  await store.remove('srv-n1')
  t.match(await imdsctl((context) => forget(context, 'hv2')), {
    stdout: 'hv2 is forgotten\n',
    stderr: /hv2 was seen \d s ago: if its daemon runs, it announces it again/,
  })
})

/** A store of each kind to which an imds-api publishes. */
const MANAGED: Readonly<Record<string, (t: Test) => string>> = {
  Redis: () => redis.url,
  files: (t) => {
    const directory = shortDirectory(t)
    return `file:${directory}`
  },
}
for (const [kind, urlOf] of Object.entries(MANAGED)) {
  t.test(`${kind}: where imds-api publishes, drain is refused and names the command of imds-api`, async (t) => {
    const url = urlOf(t)
    const store = await openTestStore(t, { url, region: 'gb1' })
    t.equal(await store.fleet.controlPlane(), undefined)
    const seenAt = new Date(Date.now() - 2 * MINUTE_MS).toISOString()
    await store.fleet.announceControlPlane({ version: '1.2.3', seenAt }, new Map())
    t.same(await store.fleet.controlPlane(), { version: '1.2.3', seenAt })
    for (const [command, name] of [
      [drain, 'drain'],
      [undrain, 'undrain'],
    ] as const)
      t.match(await imdsctl((context) => command(context, 'hv1'), false, url), {
        status: 2,
        stderr: new RegExp(`imds-api publishes this region \\(last seen 2 min ago\\) .*run imds-api ${name} hv1 on`),
      })
    const long = new Date(Date.now() - 31 * 24 * 60 * MINUTE_MS).toISOString()
    if (kind !== 'files') return
    t.equal(statSync(join(url.slice('file:'.length), '.publisher.imds-api')).mode & 0o777, 0o600)
    await store.fleet.announceControlPlane({ version: '1.2.3', seenAt: long }, new Map())
    t.equal(await store.fleet.controlPlane(), undefined, 'an imds-api that is long gone')
    await t.rejects(store.fleet.drain('hv1', seenAt), /only in Redis, not in a directory of files/)
  })
}

t.test('imds-api makes the marks those of its database', async (t) => {
  const store = await aStore(t, redis.url)
  const api = { version: '1.2.3', seenAt: new Date().toISOString() }
  await store.fleet.drain('hv1', '2026-11-23T09:00:00Z')
  await store.fleet.announceControlPlane(api, new Map([['hv2', '2026-11-23T09:01:00Z']]))
  t.same([...(await store.fleet.drained())], [['hv2', '2026-11-23T09:01:00Z']])
  t.ok((await redis.client.ttl(KEYS.api)) > 0, 'the announcement expires')
})

/** Publishes for one hypervisor. Returns the names that no daemon has announced. */
async function unannounced(store: Publisher, revision: number, hypervisor = 'hv1'): Promise<unknown> {
  const put = await store.put(record(revision, { hypervisors: [hypervisor] }))
  return put.kind === 'published' ? put.unannounced : put
}

const names = async (store: Publisher) => (await store.hypervisors()).map(({ name }) => name)

t.test('the announcements of some thousand hypervisors are listed by name', async (t) => {
  const store = await aStore(t, redis.url)
  const all = Array.from({ length: 2500 }, (_, i) => `hv${String(i).padStart(4, '0')}`)
  const pipeline = redis.client.pipeline()
  for (const name of all)
    pipeline.set(
      KEYS.announcement(name),
      JSON.stringify({ version: '1.2.3', instances: 7, seenAt: '2026-11-22T00:00:00Z' }),
    )
  await pipeline.set('imds:{gb2}:announcement:other', '{}').set(KEYS.announcement('no name'), '{}').exec()
  t.same(await names(store), all)
  t.same((await store.hypervisors())[2], {
    name: 'hv0002',
    version: '1.2.3',
    instances: 7,
    seenAt: '2026-11-22T00:00:00Z',
  })
  t.same([await unannounced(store, 1, 'hv2499'), await unannounced(store, 2, 'hv2500')], [[], ['hv2500']])
})

t.test('a long announcement is not read: it stops neither publishes nor the list', async (t) => {
  const store = await aStore(t, redis.url)
  await redis.client.set(KEYS.announcement('hv1'), LONG)
  const before = await sentBy(redis)
  t.same(await unannounced(store, 1), [])
  t.same(await store.hypervisors(), [{ name: 'hv1', version: '', instances: 0, seenAt: '' }])
  t.ok((await sentBy(redis)) - before < A_MEBIBYTE, 'Redis has sent less than a mebibyte')
})

t.test('without the right to scan a publisher publishes, and the list names the right', async (t) => {
  await redis.client.call('ACL', 'SETUSER', 'limited', 'on', '>secret', '~*', '&*', '+@all', '-scan')
  const store = await aStore(t, urlAs('limited', redis), SECRET)
  await redis.client.set(KEYS.announcement('hv1'), '{}')
  t.same([await unannounced(store, 1), await unannounced(store, 2, 'hv2')], [[], ['hv2']])
  await t.rejects(store.hypervisors(), /give it \+scan /)
})
