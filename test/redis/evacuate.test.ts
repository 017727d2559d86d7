/**
 * `imdsctl evacuate`: records move from one hypervisor to others, with their user-data and seals. For Redis, Redis with
 * record keys, and files.
 */
import t, { type Test } from 'tap'
import { evacuate, type EvacuateOptions } from '../../src/imdsctl/evacuate.ts'
import type { Publisher } from '../../src/store/open.ts'
import { keysOf } from '../../src/store/redis/keys.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { runCommand, type CommandResult } from '../support/programs/collected-output.ts'
import { startKinds, type KindSettings } from '../support/redis/kinds.ts'
import { openTestStore } from '../support/test-store.ts'

const { redis, kinds } = await startKinds(t)

interface Region {
  readonly store: Publisher
  readonly run: (name: string, options?: EvacuateOptions, json?: boolean) => Promise<CommandResult>
  /** Each instance with its hypervisors. */
  readonly places: () => Promise<readonly string[]>
}

const interfaces = (n: number) => [
  {
    id: 'int-a',
    macAddress: '02:24:19:00:00:ee',
    ipv4Addresses: [`10.0.${n >> 6}.${(n % 64) * 4 + 2}/30`],
  },
]

/** A store with instances on these hypervisors, srv-1 and so on. The daemons of hv1 to hv3 were seen long ago. */
async function aRegion(t: Test, settings: KindSettings, hypervisors: readonly (readonly string[])[]): Promise<Region> {
  await redis.client.flushall()
  for (const name of ['hv1', 'hv2', 'hv3'])
    await redis.client.set(keysOf('gb1').announcement(name), '{"seenAt": "2026-11-20T15:04:05Z"}')
  const store = await openTestStore(t, { ...settings, region: 'gb1' })
  for (const [i, names] of hypervisors.entries())
    await store.put(
      anInstance({ id: `srv-${i + 1}`, interfaces: interfaces(i), hypervisors: names }),
      Buffer.from(`of ${i + 1}`),
    )
  return {
    store,
    run: async (name, options = {}, json = false) => {
      const ran = await runCommand(
        (output) => evacuate({ store: { ...settings, region: 'gb1' }, output }, name, options),
        json,
      )
      return { ...ran, stdout: ran.stdout.split('\n').sort().join('\n').trim() } // several changes are in flight
    },
    places: async () => (await store.list()).map(({ id, hypervisors: names }) => `${id} ${names.join(',')}`),
  }
}

for (const [kind, settings] of Object.entries(kinds)) {
  t.test(`${kind}: records move with user-data and seals, each to the target with the fewest`, async (t) => {
    const { store, run, places } = await aRegion(t, settings(t), [['hv1'], ['hv1'], ['hv2'], ['hv1'], ['hv3']])
    await store.seal('srv-2')
    const before = await places()
    t.match(await run('hv1', { to: 'hv2,hv3', dryRun: true }), {
      status: 0,
      stdout: /^3 instances, 3 moved\nwould be moved srv-1 from hv1 to hv\d at revision 2\n/,
      stderr: '',
    })
    t.same(await places(), before, 'a dry run writes nothing')
    t.match(await run('hv1', { to: 'hv2,hv3' }), {
      status: 0,
      stdout: /^3 instances, 3 moved\nmoved srv-1 /,
      stderr: '',
    })
    const after = await places()
    t.same([after[2], after[4]], ['srv-3 hv2', 'srv-5 hv3'], 'others stay')
    t.same(
      after
        .map((place) => place.slice(6))
        .sort()
        .join(),
      'hv2,hv2,hv2,hv3,hv3',
    )
    t.match(await store.get('srv-2'), {
      document: { revision: 3, sealedAt: /Z$/, fqdn: 'srv-abcde.gb1.example.com' },
      userData: Buffer.from('of 2'),
    })
    t.match(await run('hv1', { to: 'hv2,hv3' }), { status: 0, stdout: '0 instances' }, 'again: nothing to do')
  })
}

t.test('a live migration begins with --begin, and a second run ends it on the other hypervisor', async (t) => {
  const { run, places } = await aRegion(t, { url: redis.url }, [['hv1'], ['hv2', 'hv1'], ['hv1', 'hv3']])
  t.match(await run('hv1', { to: 'hv2', begin: true }), {
    status: 0,
    stdout:
      /^3 instances, (1 begun, 2 unchanged|2 unchanged, 1 begun)\nbegun srv-1 from hv1 to hv1 and hv2 at revision 2\n/,
  })
  t.same(await places(), ['srv-1 hv1,hv2', 'srv-2 hv2,hv1', 'srv-3 hv1,hv3'])
  t.match(await run('hv1'), { status: 0, stdout: /^3 instances, 3 moved\n/, stderr: '' })
  t.same(await places(), ['srv-1 hv2', 'srv-2 hv2', 'srv-3 hv3'])
})

t.test('a record without a target is named, and the others are moved', async (t) => {
  const { run, places } = await aRegion(t, { url: redis.url }, [['hv1'], ['hv1', 'hv2']])
  t.match(await run('hv1'), { status: 64, stderr: /^imdsctl: srv-1 names only hv1: .*--to/ })
  t.same(await places(), ['srv-1 hv1', 'srv-2 hv2'])
})

t.test('a target that is misspelt, drained or the hypervisor itself is refused before the first change', async (t) => {
  const { store, run, places } = await aRegion(t, { url: redis.url }, [['hv1']])
  await store.fleet.drain('hv3', new Date().toISOString())
  t.match(await run('hv1', { to: 'hv2,hv22' }), { status: 2, stderr: /no daemon has announced hv22/ })
  t.match(await run('hv1', { to: 'hv2,hv3' }), { status: 2, stderr: /hv3 is drained/ })
  t.match(await run('hv1', { to: 'hv1' }), { status: 64 })
  t.match(await run('hv1', { to: 'hv2,' }), { status: 64 })
  t.same(await places(), ['srv-1 hv1'])
})

t.test('where imds-api publishes, evacuate changes nothing and names the command of imds-api', async (t) => {
  for (const kind of ['Redis', 'files']) {
    const { store, run, places } = await aRegion(t, kinds[kind]!(t), [['hv1']])
    await store.fleet.announceControlPlane({ version: '0', seenAt: new Date().toISOString() }, new Map())
    t.match(await run('hv1', { to: 'hv2' }), { status: 2, stderr: /run imds-api evacuate hv1 on its host/ }, kind)
    t.same(await places(), ['srv-1 hv1'])
  }
})

t.test('it warns if the daemon of the hypervisor still runs, unless all records name another too', async (t) => {
  const { run, places } = await aRegion(t, { url: redis.url }, [['hv1']])
  await redis.client.set(keysOf('gb1').announcement('hv1'), JSON.stringify({ seenAt: new Date().toISOString() }))
  t.equal((await run('hv1', { to: 'hv2', begin: true })).stderr, '')
  t.equal((await run('hv1')).stderr, '')
  t.same(await places(), ['srv-1 hv2'])
  const second = await aRegion(t, { url: redis.url }, [['hv1']])
  await redis.client.set(keysOf('gb1').announcement('hv1'), JSON.stringify({ seenAt: new Date().toISOString() }))
  t.match(await second.run('hv1', { to: 'hv2', dryRun: true }), {
    stderr: /^imdsctl: warning: the daemon of hv1 was seen/,
  })
})
