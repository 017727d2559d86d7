/**
 * `imdsctl list`: its filters, its forms of output and its table on a terminal. For Redis, Redis with record keys, and
 * files.
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { list, type ListOptions } from '../../src/imdsctl/list.ts'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { must } from '../support/programs/processes.ts'
import { runCommand, type CommandResult } from '../support/programs/collected-output.ts'
import { startKinds, type KindSettings } from '../support/redis/kinds.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const { redis, kinds } = await startKinds(t)

const interfaces = (change: object) => [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ...change }]
const RECORDS = [
  anInstance({ id: 'srv-a', hypervisors: ['hv1'] }),
  anInstance({
    id: 'srv-b',
    hypervisors: ['hv1', 'hv2'],
    account: 'acc-other',
    interfaces: interfaces({ ipv4Addresses: ['10.0.0.6/30'] }),
  }),
  anInstance({
    id: 'srv-c',
    hypervisors: ['hv2'],
    interfaces: interfaces({ network: 'blue', ipv6Prefixes: ['2a02:1348:178:1::/64'] }),
    sealedAt: '2026-11-20T15:04:05Z',
  }),
  anInstance({ id: 'srv-d', revision: 6, interfaces: interfaces({ ipv4Addresses: ['10.0.0.10/30'] }) }),
]

interface Region {
  readonly store: Publisher
  readonly list: (options?: ListOptions, json?: boolean) => Promise<CommandResult>
}

/** A store with RECORDS, of which srv-d was removed at revision 7. */
async function aRegion(t: Test, { url, recordKeysFile }: KindSettings): Promise<Region> {
  await redis.client.flushall()
  const settings = { url, region: 'gb1', recordKeysFile }
  const store = await openTestStore(t, settings)
  for (const record of RECORDS) t.match(await store.put(record), { kind: 'published' })
  await store.remove('srv-d')
  return {
    store,
    list: (options = {}, json) => runCommand((output) => list({ store: settings, output }, options), json),
  }
}

const linesOf = (text: string) => text.split('\n').filter((line) => line !== '')

for (const [name, settings] of Object.entries(kinds)) {
  t.test(`${name}: an instance is listed if it passes all filters`, async (t) => {
    const { list } = await aRegion(t, settings(t))
    for (const [filters, ids] of [
      [{}, ['srv-a', 'srv-b', 'srv-c']],
      [{ hypervisor: 'hv1' }, ['srv-a', 'srv-b']],
      [{ hypervisor: 'hv1', account: 'acc-other' }, ['srv-b']],
      [{ account: 'acc-xyz12' }, ['srv-a', 'srv-c']],
      [{ sealed: true }, ['srv-c']],
      [{ address: '10.0.0.2' }, ['srv-a']],
      [{ address: '::ffff:10.0.0.2' }, ['srv-a']],
      [{ address: '2a02:1348:178:1::abc' }, ['srv-c']],
      [{ address: '10.0.0.10' }, []],
      [{ removed: true }, ['srv-d']],
    ] as const) {
      const { status, stdout } = await list({ ...filters, ids: true })
      t.same([status, linesOf(stdout)], [0, ids], JSON.stringify(filters))
    }
    t.match(await list({ address: '10.0.0' }), { status: 64, stderr: /"10\.0\.0" is neither an address nor/ })
  })

  t.test(`${name}: the list is a table with counts, JSON lines, or only the counts`, async (t) => {
    const { list } = await aRegion(t, settings(t))
    t.match((await list()).stdout.split('\n'), [
      /^ID {5}REVISION {2}HYPERVISORS {2}SEALED +ADDRESSES$/,
      /^srv-a {2}1 {9}hv1 {10}- +default 10\.0\.0\.2$/,
      /^srv-b {2}1 {9}hv1,hv2 {6}- +default 10\.0\.0\.6$/,
      /^srv-c {2}1 {9}hv2 {10}\d+ \w+ ago +blue 2a02:1348:178:1::\/64$/,
      '3 instances, 1 sealed',
      '',
    ])
    t.equal((await list({ hypervisor: 'hv1', count: true })).stdout, '2 of 3 instances, 0 sealed\n')
    t.match((await list({ removed: true })).stdout, /^ID .*\nsrv-d {2}7 .*\n1 removed in the last 7 days\n$/)
    const lines = async (options: ListOptions) =>
      linesOf((await list(options, true)).stdout).map((line) => JSON.parse(line) as unknown)
    t.same(await lines({ sealed: true }), [
      {
        formatVersion: 1,
        id: 'srv-c',
        revision: 1,
        hypervisors: ['hv2'],
        addresses: ['blue 2a02:1348:178:1::/64'],
        sealedAt: '2026-11-20T15:04:05Z',
      },
    ])
    t.same(await lines({ removed: true }), [{ formatVersion: 1, id: 'srv-d', revision: 7 }])
    t.same(await lines({ count: true }), [{ formatVersion: 1, instances: 3, of: 3, sealed: 1 }])
  })
}

t.test('a record whose account cannot be read is named, and the exit status is 65', async (t) => {
  const { list } = await aRegion(t, { url: redis.url })
  await redis.client.hset('imds:{gb1}:instance:srv-b', 'record', '{')
  t.match(await list({ ids: true, account: 'acc-xyz12' }), {
    status: 65,
    stdout: 'srv-a\nsrv-c\n',
    stderr: 'imdsctl: the record of srv-b cannot be read: its account is not known\n',
  })
})

t.test('on a terminal the header of the table is bold, but not with NO_COLOR', async (t) => {
  await aRegion(t, { url: redis.url })
  const command = [process.execPath, IMDSCTL, '--store', redis.url, '--region', 'gb1', 'list']
  const onTerminal = async (environment: string) =>
    (
      await must(['script', '-qec', `${environment} ${command.join(' ')}`, join(testDirectory(t), 'typescript')], {
        env: { ...programEnvironment(), TERM: 'xterm' },
      })
    )
      .toString()
      .split('\r\n')
  const [header, ...rows] = await onTerminal('')
  // eslint-disable-next-line no-control-regex
  t.match(header, /^\u001b\[1mID\u001b\[22m .*\u001b\[1mADDRESSES\u001b\[22m$/)
  t.match(rows[0], /^srv-a /)
  const plain = await onTerminal('NO_COLOR=1')
  t.match(plain[0], /^ID .*ADDRESSES$/)
  t.same(plain.slice(1), rows)
})
