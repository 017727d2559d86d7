/**
 * `imdsctl put` with many records: input, order, refusals and exit status.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { openStore, type Publisher } from '../../src/store/open.ts'
import { until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

t.setTimeout(300_000)

const redis = await startRedis(t)

async function aStore(t: Test): Promise<Publisher> {
  await redis.client.flushall()
  await redis.client.set('imds:{gb1}:announcement:hv1', '{}') // as if a daemon had announced it
  return await openTestStore(t, { url: redis.url, region: 'gb1' })
}

const command = (...args: string[]) => [process.execPath, IMDSCTL, '--store', redis.url, '--region', 'gb1', ...args]
const imdsctl = async (input: string, ...args: string[]) => {
  const { status, stdout, stderr } = await run(command(...args), { input, env: programEnvironment() })
  return { status, stdout: stdout.toString(), stderr }
}
const nic = (n: number, address = `10.0.${String(n >> 6)}.${String((n & 63) * 4 + 2)}/30`) => [
  { id: `int-a${String(n)}`, macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] },
]
const record = (n: number, change: Record<string, unknown> = {}) =>
  anInstance({ id: `srv-a${String(n)}`, interfaces: nic(n), ...change })
const lines = (...values: unknown[]) => values.map((value) => `${JSON.stringify(value)}\n`).join('')
const userData = async (store: Publisher, id: string) => {
  const published = await store.get(id)
  return published === undefined ? 'absent' : published.userData && Buffer.from(published.userData).toString()
}

t.test('a directory is published with its user-data files on one connection, with a summary', async (t) => {
  const store = await aStore(t)
  await store.put(record(2), Buffer.from('kept'))
  const directory = testDirectory(t, {
    'srv-a1.json': JSON.stringify(record(1)),
    'srv-a1.user-data': 'one',
    'any-name.yaml': stringify(record(2, { revision: 2 })),
    'srv-a3.yml': stringify(record(3)),
    'srv-a3.user-data': '',
    README: 'no record',
    'srv-a9.removed': '1',
    '.hidden.json': '{',
  })
  const connections = async () => Number(/total_connections_received:(\d+)/.exec(await redis.client.info('stats'))?.[1])
  const before = await connections()
  const put = await imdsctl('', 'put', directory)
  t.equal((await connections()) - before, 1)
  t.match(put, { status: 0, stderr: '', stdout: /^3 records: 3 published$/m })
  t.same(put.stdout.split('\n').slice(0, 3).sort(), [
    'published srv-a1 revision 1',
    'published srv-a2 revision 2',
    'published srv-a3 revision 1',
  ])
  t.same(await Promise.all(['srv-a1', 'srv-a2', 'srv-a3'].map((id) => userData(store, id))), ['one', 'kept', ''])
  t.match(
    await imdsctl('', 'put', directory),
    { status: 0, stdout: /^3 records: 3 unchanged$/m },
    'a repeated put changes nothing',
  )
  t.match(await imdsctl('', 'put', testDirectory(t, { x: {} })), { status: 66, stderr: /no record found/ })
})

t.test('a JSON line is a record that keeps its user-data, or a record with new user-data or none', async (t) => {
  const store = await aStore(t)
  for (const n of [1, 2, 3]) await store.put(record(n), Buffer.from(`old ${String(n)}`))
  const next = (n: number) => record(n, { revision: 2, tags: { odd: 'one\u2028line' } })
  const input = `\n${lines(next(1), { record: next(2), userDataBase64: Buffer.from('new').toString('base64') }, { record: next(3), userDataBase64: null })}`
  t.match(await imdsctl(input, 'put', '-'), { status: 0, stderr: '', stdout: /^3 records: 3 published$/m })
  t.same(await Promise.all(['srv-a1', 'srv-a2', 'srv-a3'].map((id) => userData(store, id))), [
    'old 1',
    'new',
    undefined,
  ])
  t.match((await store.get('srv-a1'))?.document, { tags: { odd: 'one\u2028line' } })
  t.match(
    await imdsctl(lines(record(1, { revision: 3 })), 'put', '-', '--no-user-data'),
    { status: 0, stdout: 'published srv-a1 revision 3\n' },
    'one record has no summary',
  )
  t.equal(await userData(store, 'srv-a1'), undefined)
})

t.test('each refused record is named with its place and id, and the others are published', async (t) => {
  const store = await aStore(t)
  await store.put(record(1, { revision: 5 }))
  const directory = testDirectory(t, {
    'a.json': '{ "S3CRET',
    'b.json': JSON.stringify(record(7)),
    'b.yaml': stringify(record(8)),
    'c.json': JSON.stringify(record(9, { userData: { size: 1, sha256: '0'.repeat(64) } })),
    'c.user-data': 'S3CRET',
  })
  const input = [
    lines(record(1), record(2), record(3, { region: 1 }), { record: record(4), userdata: 'S3CRET' }),
    '{"S3CRET\n',
    lines({ record: record(5), userDataBase64: 'S3CRET!' }, record(6, { interfaces: nic(2) }), record(7)),
  ].join('')
  const put = await imdsctl(input, 'put', '-', directory)
  t.equal(put.status, 65)
  t.notMatch(put.stderr, /S3CRET/)
  const errors = put.stderr
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('  '))
    .map((line) => line.replace('imdsctl: ', '').replace(`${directory}/`, ''))
    .sort()
  t.match(errors, [
    /^-:1: srv-a1: the store holds revision 5 or/,
    /^-:3: srv-a3: is not a valid record:$/,
    /^-:4 has a field other than "record" and "userDataBase64": "userdata"$/,
    /^-:5 is not JSON$/,
    /^-:6 has a "userDataBase64" that is neither base64/,
    /^-:7: srv-a6: 10\.0\.0\.10 on network default belongs to srv-a2/,
    /^a\.json is neither JSON nor YAML/,
    /^b\.json has the same name as another record: b\.yaml$/,
    /^c\.json: srv-a9: is not a valid record:$/,
  ])
  t.equal(errors.length, 9)
  t.match(put.stdout, /^11 records: .*2 published/m)
  t.match(put.stdout, /2 refused/)
  t.match(put.stdout, /7 faulty/)
  t.same(
    (await store.list()).map(({ id, revision }) => [id, revision]),
    [
      ['srv-a1', 5],
      ['srv-a2', 1],
      ['srv-a7', 1],
    ],
  )
  const json = (await imdsctl(lines(record(1), record(2, { revision: 2 })), '--json', 'put', '-')).stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
  t.match(
    json.find(({ place }) => place === '-:1'),
    { id: 'srv-a1', result: 'stale', revision: 5, error: /publish a higher one/ },
  )
  t.match(
    json.find(({ id }) => id === 'srv-a2'),
    { result: 'published', revision: 2 },
  )
  t.same(json.at(-1), { formatVersion: 1, records: 2, published: 1, refused: 1 })
  t.match(await imdsctl('', 'put', `${directory}/none`, `${directory}/b.json`), {
    status: 66,
    stderr: /none cannot be read: ENOENT/,
    stdout: /^2 records: 1 unreadable, 1 unchanged$/m,
  })
})

t.test('revisions of an instance are published in order, and a line can use an address freed by another', async (t) => {
  const store = await aStore(t)
  await store.put(record(1))
  const movedAddresses = [
    record(1, { revision: 2, interfaces: nic(500) }),
    record(2, { interfaces: nic(1) }),
    record(2, { revision: 2, interfaces: nic(501) }),
    record(3, { interfaces: nic(1) }),
  ]
  const revisions = Array.from({ length: 300 }, (_, i) =>
    record(4, { revision: i + 1, tags: { revision: String(i + 1) } }),
  )
  t.match(await imdsctl(lines(...revisions, ...movedAddresses), 'put', '-'), {
    status: 0,
    stderr: '',
    stdout: /^304 records: 304 published$/m,
  })
  t.match((await store.get('srv-a4'))?.document, { revision: 300, tags: { revision: '300' } })
  t.same(
    (await store.list()).map(({ id, addresses }) => `${id} ${addresses.join()}`),
    ['srv-a1 default 10.0.7.210', 'srv-a2 default 10.0.7.214', 'srv-a3 default 10.0.0.6', 'srv-a4 default 10.0.0.18'],
  )
})

t.test('imdsctl put stops reading its input while the store is busy', async (t) => {
  await aStore(t)
  const child = spawn(command('put', '-')[0]!, command('put', '-').slice(1), {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: programEnvironment(),
  })
  t.teardown(() => {
    child.kill('SIGKILL')
  })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  child.stdin.write(lines(record(0)))
  await until(() => output.includes('published srv-a0'), 'the first record')
  await redis.client.call('CLIENT', 'PAUSE', '3000', 'WRITE')
  const count = 2000
  const userDataBase64 = Buffer.alloc(16_000).toString('base64')
  child.stdin.end(lines(...Array.from({ length: count }, (_, i) => ({ record: record(i + 1), userDataBase64 }))))
  await sleep(1500)
  t.ok(
    child.stdin.writableLength > 30_000_000,
    `${String(child.stdin.writableLength)} of ${String(count * 22_000)} bytes wait`,
  )
  await once(child, 'close')
  t.match(output, /^2001 records: 2001 published$/m)
})

t.test('imdsctl put publishes each line as it arrives, and exits with 69 if the store is lost', async (t) => {
  await aStore(t)
  const child = spawn(command('put', '-')[0]!, command('put', '-').slice(1), {
    stdio: ['pipe', 'pipe', 'pipe'],
    env: programEnvironment(),
  })
  t.teardown(() => {
    child.kill('SIGKILL')
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  child.stdin.on('error', () => {
    /* it no longer reads */
  })
  for (const n of [1, 2]) {
    child.stdin.write(lines(record(n)))
    await until(() => output.includes(`published srv-a${String(n)}`), `record ${String(n)}`)
  }
  await redis.kill()
  t.teardown(() => redis.restart())
  child.stdin.write(lines(record(3), record(4), record(5)))
  await once(child, 'close') // though its input is still open
  t.equal(child.exitCode, 69)
  t.match(output, /^imdsctl: -:3: srv-a3: cannot use the store: .*ECONNREFUSED/m)
  t.match(output, /^imdsctl: stopped: the store cannot be used, and the remaining records were not published$/m)
  t.match(output, /^\d records: 2 published, \d failed$/m)
})

t.test('--user-data is accepted only for a single record without its own user-data', async (t) => {
  const store = await aStore(t)
  const directory = testDirectory(t, {
    data: 'from a file',
    'one.json': JSON.stringify(record(1)),
    'two.json': JSON.stringify(record(2)),
  })
  t.match(await imdsctl('', 'put', `${directory}/one.json`, '-u', `${directory}/data`), {
    status: 0,
    stdout: 'published srv-a1 revision 1\n',
  })
  t.equal(await userData(store, 'srv-a1'), 'from a file')
  t.match(await imdsctl('', 'put', directory, '-u', `${directory}/data`), {
    status: 64,
    stderr: /--user-data is for one record/,
  })
  t.match(await imdsctl(lines({ record: record(2), userDataBase64: '' }), 'put', '-', '-u', `${directory}/data`), {
    status: 64,
    stderr: /has its own user-data/,
  })
  t.match(await imdsctl('', 'put', `${directory}/two.json`, '-u', `${directory}/none`), {
    status: 66,
    stderr: /none cannot be read/,
  })
  t.match(await imdsctl('x', 'put', '-', '-u', '-'), { status: 64 })
  t.equal(await userData(store, 'srv-a2'), 'absent')
})

t.test('a directory is published to a file store too', async (t) => {
  const directory = testDirectory(t, {
    records: {
      'srv-a1.json': JSON.stringify(record(1)),
      'srv-a1.user-data': 'one',
      'srv-a2.yaml': stringify(record(2)),
      'srv-a3.json': JSON.stringify(record(3, { interfaces: nic(1) })),
    },
  })
  const { status, stdout, stderr } = await run(
    [process.execPath, IMDSCTL, '--store', `file:${directory}/store`, 'put', `${directory}/records`],
    { env: programEnvironment() },
  )
  t.equal(status, 2)
  t.match(
    stdout.toString(),
    /^published srv-a1 revision 1\npublished srv-a2 revision 1\n3 records: 2 published, 1 refused\n$/,
  )
  t.match(stderr, /srv-a3\.json: srv-a3: 10\.0\.0\.6 on network default belongs to srv-a1/)
})

t.test('--dry-run reports what would happen to each record, and writes nothing', async (t) => {
  const store = await aStore(t)
  await store.put(record(1, { revision: 5 }), Buffer.from('one'))
  await store.put(record(2))
  await store.remove('srv-a2')
  const dump = async () =>
    Object.fromEntries(
      await Promise.all(
        (await redis.client.keys('*')).sort().map(async (key) => [key, await redis.client.dumpBuffer(key)] as const),
      ),
    )
  const before = await dump()
  const input = lines(
    record(1, { revision: 5, userData: undefined }),
    record(1, { revision: 6 }),
    record(2),
    record(3, { interfaces: nic(1) }),
    record(4),
    { id: 'x y' },
  )
  const { status, stdout, stderr } = await imdsctl(input, 'put', '--dry-run', '-')
  t.equal(status, 65)
  t.match(stdout, 'would be published srv-a1 revision 6\n')
  t.match(stdout, 'would be published srv-a4 revision 1\n')
  t.match(stdout, 'would be unchanged srv-a1 revision 5\n')
  t.match(stderr, /-:3: srv-a2: the store holds revision 2 or removed/)
  t.match(stderr, /-:4: srv-a3: 10\.0\.0\.6 on network default belongs to srv-a1/)
  t.match(stderr, /-:6: \(no id\): is not a valid record/)
  t.same(await dump(), before)
  const json = JSON.parse((await imdsctl(lines(record(4)), '--json', 'put', '--dry-run', '-')).stdout) as unknown
  t.same(json, { formatVersion: 1, result: 'published', dryRun: true, id: 'srv-a4', revision: 1 })
  const script = (...args: string[]) =>
    redis.client.eval(
      readFileSync(new URL('../../src/store/redis/publish.lua', import.meta.url), 'utf8'),
      1,
      'imds:{gb1}',
      ...args,
    )
  t.match(await script('dry-run', 'init'), ['refused', 'invalid', /dry-run is for put/])
  t.same(await dump(), before)
  const directory = testDirectory(t, {})
  const files = await openStore({ url: `file:${directory}` })
  await files.put(record(1, { revision: 5 }))
  t.match(await files.put(record(1, { revision: 6 }), 'keep', { dryRun: true }), {
    kind: 'published',
    instance: { revision: 6 },
  })
  t.match(await files.put(record(1, { revision: 4 }), 'keep', { dryRun: true }), { kind: 'stale', revision: 5 })
  t.match((await files.get('srv-a1'))?.document, { revision: 5 })
})
