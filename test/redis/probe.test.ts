/**
 * `--check --connect` of imdsd and imds-api: what it finds in a store and of the rights of the Redis user, and that it
 * changes nothing.
 */
import { once } from 'node:events'
import { createServer, type Socket } from 'node:net'
import { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { probeStore as probe, type ProbedStore } from '../../src/store/probe.ts'
import type { Finding } from '../../src/runtime/check.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { until } from '../support/programs/daemon.ts'
import { IMDS_API, IMDSD, programEnvironment } from '../support/programs/imds.ts'
import { run } from '../support/programs/processes.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { aStore, record, SECRET, urlAs, USERS } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'

const KEYS = keysOf('gb1')

/** What is found in a store, each in one text. */
async function probeStore(store: ProbedStore) {
  const found = await probe(store)
  const texts = (state: Finding['severity']) =>
    found.flatMap((one) =>
      one.severity !== state ? [] : one.severity === 'ok' ? one.text : `${one.text}: ${one.remedy}`,
    )
  return { findings: texts('ok'), warnings: texts('warning'), problems: texts('failure') }
}

/** A Redis with the users of deploy/redis.acl, all of its keys with their values, and its stores. */
async function aRedis(t: Test) {
  const redis = await startRedis(t, ['--aclfile', `${testDirectory(t, { 'redis.acl': USERS })}/redis.acl`])
  const contents = async () => {
    const keys = (await redis.client.keys('*')).sort()
    return Promise.all(keys.map(async (key) => [key, (await redis.client.dumpBuffer(key)).toString('hex')]))
  }
  const storeOf = (user: string, hypervisor?: string): ProbedStore => ({
    kind: 'redis',
    url: urlAs(user, redis),
    region: 'gb1',
    hypervisor,
    ...SECRET,
  })
  return { redis, contents, daemon: storeOf('imds-hv1', 'hv1'), publisher: storeOf('imds-publisher') }
}

t.test('--check --connect of both programs prints what it finds in the store, and writes nothing', async (t) => {
  const { redis, contents } = await aRedis(t)
  await (await aStore(t, redis.url)).put(record(1))
  const before = await contents()
  const env = {
    ...programEnvironment(),
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_STATE_DIR: t.testdirName,
    IMDS_REDIS_PASSWORD_FILE: SECRET.passwordFile!,
    IMDS_API_DATABASE: `postgres://imds@127.0.0.1:${await freePort()}/imds`,
  }
  const place = `127.0.0.1:${redis.port}`
  const daemon = await run([process.execPath, IMDSD, '--check', '--connect'], {
    env: { ...env, IMDS_STORE: urlAs('imds-hv1', redis) },
  })
  t.equal(daemon.status, 0, daemon.stderr)
  t.same(daemon.stdout.toString().split('\n'), [
    'imds: the configuration is valid',
    `imds: the store: connected to ${place} without TLS; its role is master`,
    'imds: the store: the region gb1 is initialised',
    'imds: the store: records that name hv1: 1',
    'imds: the store: the Redis user may read the region and receive the notices of hv1',
    '',
  ])
  t.same(await contents(), before)
  t.same(await redis.client.call('ACL', 'LOG'), [])
  const api = await run([process.execPath, IMDS_API, '--check', '--connect'], {
    env: { ...env, IMDS_STORE: urlAs('imds-publisher', redis) },
  })
  t.match(api, { status: 69, stderr: /^imds-api: the database cannot be reached: .*ECONNREFUSED/ })
  t.match(
    api.stdout.toString(),
    /^the store: connected to .*\nthe store: the region gb1 is initialised\nthe store: the Redis user may read and write the region\n$/,
  )
  t.same(await contents(), before)
  await redis.stop()
  const lost = await run([process.execPath, IMDSD, '--check', '--connect'], {
    env: { ...env, IMDS_STORE: urlAs('imds-hv1', redis) },
  })
  t.match(lost, { status: 69, stderr: /imds: the store cannot be used: .*ECONNREFUSED/ })
  t.match(await run([process.execPath, IMDS_API, '--connect'], { env }), {
    status: 64,
    stderr: /--connect is for --check/,
  })
})

t.test(
  'each right that the Redis user lacks is named, and a store that is empty is none of its problems',
  async (t) => {
    const { redis, contents, daemon, publisher } = await aRedis(t)
    const empty = await probeStore(daemon)
    matchAll(t, empty.findings.slice(1), [/gb1 is not initialised/, /that name hv1: 0/, /may read/])
    t.same(empty.warnings, [])
    await redis.client.config('SET', 'maxmemory-policy', 'volatile-lru')
    matchAll(t, (await probeStore(daemon)).warnings, [/is volatile-lru: set maxmemory-policy to noeviction/])
    await redis.client.config('SET', 'maxmemory-policy', 'noeviction')
    await redis.client.set(KEYS.region, '1700000000')
    const before = await contents()
    for (const [store, change, back, problem] of [
      [daemon, '-zrevrangebylex', '+zrevrangebylex', /give it \+zrevrangebylex /],
      [daemon, '-hgetall', '+hgetall', /give it \+hgetall /],
      [daemon, 'resetchannels', `&${KEYS.notices('hv1')}`, /the channels in its rules/],
      [daemon, 'off', 'on', /the Redis user or its password is wrong/],
      [publisher, '-eval', '+eval', /give it \+eval /],
      [publisher, '-set', '+set', /give it \+set /],
    ] as const) {
      const user = store === daemon ? 'imds-hv1' : 'imds-publisher'
      await redis.client.call('ACL', 'SETUSER', user, change)
      matchAll(t, (await probeStore(store)).problems, [problem])
      await redis.client.call('ACL', 'SETUSER', user, back)
      t.same((await probeStore(store)).problems, [])
    }
    t.same(await contents(), before)
  },
)

t.test('a default user that could not load the append-only file is a warning, before a restart loses it', async (t) => {
  const { redis, daemon, publisher } = await aRedis(t)
  await redis.client.set(KEYS.region, '1700000000')
  const setUser = (...rules: string[]) => redis.client.call('ACL', 'SETUSER', ...rules)
  const losses = async () => {
    const found = [await probeStore(daemon), await probeStore(publisher)].map(({ warnings }) =>
      warnings.filter((text) => text.includes('append-only')),
    )
    t.same(found[0], found[1])
    return found[0]!
  }
  await setUser('admin', 'on', 'nopass', '~*', '+@all')
  const admin = new Redis(redis.url, { username: 'admin', password: 'any' })
  t.teardown(() => admin.disconnect())
  const rules = (...change: string[]) => admin.call('ACL', 'SETUSER', 'default', ...change)
  await rules('reset')
  t.same(await losses(), [], 'without an append-only file')
  await admin.config('SET', 'appendonly', 'yes')
  matchAll(t, await losses(), [/^the next start of Redis loses every record: .* ACL SETUSER default off ~\* /])
  await rules('+@all')
  t.equal((await losses()).length, 1, 'no right to keys')
  await rules('~*', '&*')
  t.same(await losses(), [])
  await admin.call('ACL', 'SETUSER', 'imds-hv1', '-acl')
  await admin.call('ACL', 'SETUSER', 'imds-publisher', '-acl')
  matchAll(t, await losses(), [/^it is not known whether Redis can load its append-only file: .*\+acl\|dryrun/])
})

t.test('a server that does not answer, and a replica for a publisher, are problems; files are counted', async (t) => {
  const { redis, publisher } = await aRedis(t)
  const replica = await startRedis(t, ['--replicaof', '127.0.0.1', String(redis.port)])
  const client = new Redis(replica.port)
  t.teardown(() => client.disconnect())
  await until(async () => (await client.info('replication')).includes('master_link_status:up'), 'the replica')
  matchAll(t, (await probeStore({ ...publisher, url: replica.url, passwordFile: undefined } as ProbedStore)).problems, [
    /READONLY/,
  ])
  const sockets: Socket[] = []
  const silent = createServer((socket) => sockets.push(socket)).listen(0, '127.0.0.1')
  await once(silent, 'listening')
  t.teardown(() => {
    silent.close()
    for (const socket of sockets) socket.destroy()
  })
  const { port } = silent.address() as { port: number }
  const blackHole = await probeStore({
    kind: 'redis',
    url: `redis-sentinel://127.0.0.1:${port},127.0.0.1:${port}/main`,
    region: 'gb1',
    hypervisor: 'hv1',
  })
  matchAll(t, blackHole.problems, [/^it has not answered within 6 s: see whether Redis runs/])
  const directory = testDirectory(t, { 'srv-a.json': '{}', 'srv-b.json': '{}', 'srv-b.user-data': '', other: '' })
  t.same(await probeStore({ kind: 'files', directory }), {
    findings: [`${directory} has 2 records`],
    warnings: [],
    problems: [],
  })
  matchAll(t, (await probeStore({ kind: 'files', directory: `${directory}/none` })).problems, [/ENOENT/])
})
