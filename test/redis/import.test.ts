/**
 * `imdsctl export` and `imdsctl import`: a region is moved or restored with its user-data, seals and tombstones. From
 * and to Redis, Redis with record keys, and files.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { exportRecords } from '../../src/imdsctl/export.ts'
import { importRecords } from '../../src/imdsctl/import.ts'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { runCommand } from '../support/programs/collected-output.ts'
import { until } from '../support/programs/daemon.ts'
import { programEnvironment } from '../support/programs/imds.ts'
import { imdsctl, imdsctlCommand } from '../support/programs/imdsctl.ts'
import { startRedis } from '../support/redis/redis.ts'
import { startSlowLink } from '../support/redis/slow-link.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const NOBODY = 65_534
const SEALED_AT = '2026-11-20T15:04:05Z'

const redis = await startRedis(t)
t.beforeEach(async () => {
  await redis.client.flushall()
  await redis.client.set('imds:{gb1}:announcement:hv1', '{}') // as if a daemon had announced it
})

interface Settings {
  readonly url: string
  readonly region: string
  readonly recordKeysFile?: string
}
const KINDS: Readonly<Record<string, (directory: string, region: string) => Settings>> = {
  Redis: (_directory, region) => ({ url: redis.url, region }),
  'Redis with keys': (directory, region) => {
    writeFileSync(join(directory, 'keys'), keyLines('k1'))
    return { url: redis.url, region, recordKeysFile: join(directory, 'keys') }
  },
  files: (directory, region) => ({ url: `file:${join(directory, region)}`, region }),
}

const record = (n: number, change: Record<string, unknown> = {}) =>
  anInstance({
    id: `srv-${n}`,
    interfaces: loopback(1, { ipv4Addresses: [`10.0.${n >> 6}.${(n % 64) * 4 + 2}/30`] }),
    ...change,
  })

/** Publishes two instances, one of them sealed, and removes two, one of them sealed. */
async function fill(store: Publisher): Promise<void> {
  await store.put(record(1), Buffer.from([0, 255, 10]))
  await store.put(record(2, { sealedAt: SEALED_AT }), Buffer.from('secret'))
  await store.put(record(3), 'none')
  await store.remove('srv-3')
  await store.put(record(4, { sealedAt: SEALED_AT }), 'none')
  await store.remove('srv-4', 9)
}

/** What a store has, without the region in its records. */
async function contents(store: Publisher): Promise<unknown> {
  const ids = (await store.list()).map(({ id }) => id)
  const records = await Promise.all(
    ids.map(async (id) => {
      const { document, userData } = (await store.get(id))!
      return { ...(document as object), region: undefined, bytes: userData && Buffer.from(userData).toString('hex') }
    }),
  )
  return { records, tombstones: await store.tombstones() }
}

const exporting = (store: Settings, directory: string) =>
  runCommand((output) => exportRecords({ store, output }, directory))
const importing = (store: Settings, path: string, changeRegion = false) =>
  runCommand((output) => importRecords({ store, output }, path, { changeRegion }))

const ENV = { IMDS_STORE: redis.url, IMDS_REGION: 'gb1' }
/** Starts imdsctl on the Redis behind a port. */
function start(args: readonly string[], port: number) {
  const [program, ...words] = imdsctlCommand('--store', `redis://127.0.0.1:${port}`, '--region', 'gb1', ...args)
  return spawn(program!, words, { env: programEnvironment(), stdio: 'inherit' })
}

for (const [from, to] of [
  ['Redis', 'files'],
  ['files', 'Redis with keys'],
  ['Redis with keys', 'Redis'],
] as const) {
  t.test(`a region is moved from ${from} to ${to} with its user-data, seals and tombstones`, async (t) => {
    const directory = testDirectory(t)
    const [source, target] = [KINDS[from]!(directory, 'gb1'), KINDS[to]!(directory, 'gb2')]
    const [old, next] = [await openTestStore(t, source), await openTestStore(t, target)]
    await fill(old)
    const [backup, again] = [join(directory, 'backup'), join(directory, 'again')]
    t.match(await exporting(source, `${backup}/`), { status: 0, stdout: `2 records, 2 tombstones: ${backup}/\n` })
    t.match(await importing(target, backup, true), { status: 0, stdout: /^4 records, 2 removed, 2 published$/m })
    t.same(await contents(next), await contents(old))
    t.match(await importing(target, backup, true), { status: 0, stdout: '4 records, 2 removed, 2 unchanged\n' })
    await exporting(target, again)
    t.same(readdirSync(again).sort(), readdirSync(backup).sort())
  })
}

t.test('an export has the layout of the file store, mode 0600, and can serve as a store', async (t) => {
  const directory = testDirectory(t)
  const source = KINDS['Redis']!(directory, 'gb1')
  const store = await openTestStore(t, source)
  await fill(store)
  const backup = join(directory, 'backup')
  await exporting(source, backup)
  t.same(readdirSync(backup).sort(), [
    'srv-1.json',
    'srv-1.user-data',
    'srv-2.json',
    'srv-2.user-data',
    'srv-3.removed',
    'srv-4.removed',
  ])
  const modes = [backup, ...readdirSync(backup).map((name) => join(backup, name))].map((path) => statSync(path).mode)
  t.same([...new Set(modes.map((mode) => (mode & 0o777).toString(8)))], ['700', '600'])
  t.same(await contents(await openTestStore(t, { url: `file:${backup}`, region: 'gb1' })), await contents(store))
})

t.test('an export replaces nothing, and leaves no directory behind if the store is lost', async (t) => {
  const directory = testDirectory(t, { there: {}, 'other.partial': {} })
  const source = KINDS['Redis']!(directory, 'gb1')
  await fill(await openTestStore(t, source))
  t.match(await exporting(source, join(directory, 'there')), {
    status: 64,
    stderr: /there exists: name a new directory/,
  })
  t.match(await exporting(source, join(directory, 'other')), { status: 66, stderr: /another export runs or was/ })
  await redis.client.hset('imds:{gb1}:instances', 'srv-1', '{')
  t.match(await exporting(source, join(directory, 'lost')), { status: 69 })
  t.same(readdirSync(directory).sort(), ['other.partial', 'there'])
})

t.test(
  'root exports nothing below a directory of another user, who could lead it elsewhere',
  { skip: process.getuid?.() !== 0 && 'needs root, to give files to other users' },
  async (t) => {
    const directory = testDirectory(t, { theirs: { below: {} } })
    const source = KINDS['Redis']!(directory, 'gb1')
    await fill(await openTestStore(t, source))
    chownSync(join(directory, 'theirs'), NOBODY, NOBODY)
    for (const place of ['theirs', 'theirs/below'])
      t.match(await exporting(source, join(directory, place, 'backup')), {
        status: 66,
        stderr: /theirs belongs to the user with the id 65534, .*: export into a directory that only root can change/,
      })
    t.same(readdirSync(join(directory, 'theirs')), ['below'])
    t.same(readdirSync(join(directory, 'theirs/below')), [])
  },
)

t.test('an export that was killed is DIR.partial, the next names it, and after it is deleted is whole', async (t) => {
  const directory = testDirectory(t)
  const source = KINDS['Redis']!(directory, 'gb1')
  const store = await openTestStore(t, source)
  for (let n = 0; n < 200; n++) await store.put(record(n), Buffer.from(String(n)))
  const link = await startSlowLink(redis.port, 20)
  t.teardown(() => link.stop())
  const [backup, partial] = [join(directory, 'backup'), join(directory, 'backup.partial')]
  const child = start(['export', backup], link.port)
  await until(() => existsSync(partial) && readdirSync(partial).length > 0, 'the first files')
  link.freeze()
  child.kill('SIGKILL')
  await once(child, 'close')
  t.same([existsSync(backup), readdirSync(partial).length < 400], [false, true])
  t.match(await imdsctl(['export', backup], { env: ENV }), {
    status: 66,
    stderr: /backup.partial exists: another export runs or was interrupted; delete it/,
  })
  rmSync(partial, { recursive: true })
  t.match(await exporting(source, backup), { status: 0, stdout: /^200 records, 0 tombstones: / })
  t.same(await contents(await openTestStore(t, { url: `file:${backup}`, region: 'gb1' })), await contents(store))
})

t.test('a record that cannot be read is named, the others are exported, and the exit status is 65', async (t) => {
  const directory = testDirectory(t)
  const source = KINDS['Redis']!(directory, 'gb1')
  await fill(await openTestStore(t, source))
  await redis.client.hset('imds:{gb1}:instance:srv-1', 'record', '{')
  t.match(await exporting(source, join(directory, 'backup')), {
    status: 65,
    stderr: /^imdsctl: srv-1 is not exported: /,
    stdout: /^1 records, 2 tombstones, 1 unreadable: /,
  })
})

t.test('an import prints only what is refused, and takes nothing back that the store has later', async (t) => {
  const directory = testDirectory(t, {
    'a.json': JSON.stringify(record(1)),
    'b.json': JSON.stringify(record(2, { region: 'gb9' })),
    'c.json': JSON.stringify(record(5)),
    'srv-3.removed': '7\n',
    'srv-6.removed': 'x',
  })
  const target = KINDS['Redis']!(directory, 'gb1')
  const store = await openTestStore(t, target)
  for (const n of [1, 3]) await store.put(record(n, { revision: 8 }), 'none')
  const ran = await importing(target, directory)
  t.match(ran, { status: 65, stdout: /^5 records, .*1 published/ })
  t.match(ran.stdout, /2 refused/)
  t.same(
    ran.stderr
      .split('\n')
      .filter((line) => line.startsWith('imdsctl: '))
      .map((line) => /(\w|-)+\.(json|removed)/.exec(line)?.[0])
      .sort(),
    ['a.json', 'b.json', 'srv-3.removed', 'srv-6.removed'],
  )
  t.same(
    (await store.list()).map(({ id, revision }) => `${id} ${revision}`),
    ['srv-1 8', 'srv-3 8', 'srv-5 1'],
  )
  t.match(await importing({ ...target, url: 'file:/none', region: undefined! }, directory, true), { status: 64 })
})

t.test('an import into a new region names only some of the hypervisors that no daemon has announced', async (t) => {
  const lines = [1, 2, 3, 4, 5].map((n) => JSON.stringify(record(n, { hypervisors: [`hv${n + 10}`] })))
  const directory = testDirectory(t, { records: lines.join('\n') })
  const { stdout, stderr } = await importing(KINDS['Redis']!(directory, 'gb1'), join(directory, 'records'))
  t.equal(stdout, '5 records, 5 published\n')
  t.match(stderr, /^(.*no daemon has announced hypervisor hv1\d.*\n){3}imdsctl: warning: 2 more of this kind\n$/)
})
