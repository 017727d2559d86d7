/**
 * `imdsctl remove`, `seal` and `unseal` with many instances: input, refusals, dry runs and exit status. For Redis,
 * Redis with record keys, and files.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { changeSeals, remove, type ChangeOptions } from '../../src/imdsctl/change.ts'
import type { Publisher } from '../../src/store/open.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { runCommand, type CommandResult } from '../support/programs/collected-output.ts'
import { run as runProgram } from '../support/programs/processes.ts'
import { executed } from '../tools/documents.ts'
import { startKinds, type KindSettings } from '../support/redis/kinds.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const { redis, kinds } = await startKinds(t)

type Options = ChangeOptions & { readonly revision?: number }
const COMMANDS = {
  remove,
  seal: changeSeals('seal'),
  unseal: changeSeals('unseal'),
}

interface Region {
  readonly store: Publisher
  /** Runs a command. Its lines of output are sorted, since several changes are in flight. */
  readonly run: (
    name: keyof typeof COMMANDS,
    ids: readonly string[],
    options?: Options,
    json?: boolean,
  ) => Promise<CommandResult>
}

const NO_ADDRESS = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [] }]

/** A store with the instances srv-1 to srv-5. */
async function aRegion(t: Test, { url, recordKeysFile }: KindSettings): Promise<Region> {
  await redis.client.flushall()
  const settings = { url, region: 'gb1', recordKeysFile }
  const store = await openTestStore(t, settings)
  for (const n of [1, 2, 3, 4, 5]) {
    const address = `10.0.0.${n * 4 + 2}/30`
    const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] }]
    await store.put(anInstance({ id: `srv-${n}`, interfaces }))
  }
  return {
    store,
    run: async (name, ids, options = {}, json = false) => {
      const ran = await runCommand((output) => COMMANDS[name]({ store: settings, output }, ids, options), json)
      return { ...ran, stdout: ran.stdout.split('\n').sort().join('\n').trim() }
    },
  }
}

const state = async (store: Publisher) =>
  (await store.list()).map(({ id, revision, sealedAt }) => `${id} ${revision}${sealedAt ? ' sealed' : ''}`)

for (const [name, settings] of Object.entries(kinds)) {
  t.test(`${name}: a dry run of remove, seal and unseal says what would be done, and writes nothing`, async (t) => {
    const { store, run } = await aRegion(t, settings(t))
    await store.seal('srv-2')
    const before = [await state(store), await store.tombstones()]
    const dry = (command: keyof typeof COMMANDS, id: string, revision?: number) =>
      run(command, [id], { dryRun: true, ...(revision !== undefined && { revision }) })
    t.match(await dry('remove', 'srv-1'), { status: 0, stdout: 'would be removed srv-1 at revision 2' })
    t.match(await dry('remove', 'srv-9', 4), {
      status: 0,
      stdout: 'the store has no srv-9; it would get a tombstone at revision 4',
    })
    t.match(await dry('seal', 'srv-1'), { status: 0, stdout: 'would be sealed srv-1 at revision 2' })
    t.match(await dry('unseal', 'srv-2'), { status: 0, stdout: 'would be unsealed srv-2 at revision 3' })
    t.match(await dry('unseal', 'srv-1'), { stdout: 'the user-data of srv-1 is not sealed: nothing to do' })
    t.match(await dry('seal', 'srv-9'), { status: 1, stdout: '', stderr: /the store has no srv-9/ })
    t.same(JSON.parse((await run('remove', ['srv-1'], { dryRun: true }, true)).stdout), {
      formatVersion: 1,
      id: 'srv-1',
      result: 'removed',
      dryRun: true,
      revision: 2,
      order: 0,
    })
    t.same([await state(store), await store.tombstones()], before)
  })

  t.test(`${name}: the instances that are named and those of a file are changed, each once`, async (t) => {
    testDirectory(t)
    const { store, run } = await aRegion(t, settings(t))
    const file = (name: string, content: string) => {
      writeFileSync(join(t.testdirName, name), content)
      return join(t.testdirName, name)
    }
    const ids = file('ids', 'srv-2\n\n srv-3 \nsrv-1\n')
    t.match(await run('seal', ['srv-1'], { file: ids }), {
      status: 0,
      stdout: /^3 instances, 3 sealed\nsealed srv-1 at revision 2\nsealed srv-2 .*\nsealed srv-3 .*$/,
    })
    t.same(await state(store), ['srv-1 2 sealed', 'srv-2 2 sealed', 'srv-3 2 sealed', 'srv-4 1', 'srv-5 1'])
    t.match(await run('remove', [], { file: ids }), { stdout: /^3 instances, 3 removed$/m })
    t.same(await state(store), ['srv-4 1', 'srv-5 1'])
    t.match(await run('remove', [], { file: file('none', '\n') }), { status: 0, stdout: '0 instances' })
  })

  t.test(`${name}: an instance that cannot be changed is named, the others are changed`, async (t) => {
    const { store, run } = await aRegion(t, settings(t))
    t.match(await run('remove', ['srv-1', 'srv-none', 'srv-2']), {
      status: 1,
      stdout: /^3 instances, .*\nremoved srv-1 at revision 2\nremoved srv-2 at revision 2$/,
      stderr: /^imdsctl: the store has no srv-none; /,
    })
    t.same(await state(store), ['srv-3 1', 'srv-4 1', 'srv-5 1'])
    const json = (await run('unseal', ['srv-3', 'srv-none'], {}, true)).stdout.split('\n')
    t.same(
      json.map((line) => JSON.parse(line) as object).filter((line) => 'instances' in line),
      [{ formatVersion: 1, instances: 2, unchanged: 1, failed: 1 }],
    )
  })
}

t.test('ids are checked before the first change, and --revision is for a single instance', async (t) => {
  const { store, run } = await aRegion(t, { url: redis.url })
  const before = await state(store)
  const file = join(testDirectory(t, { ids: 'srv-1\nsrv 2\n' }), 'ids')
  t.match(await run('remove', [], { file }), { status: 64, stdout: '' })
  t.match(await run('remove', ['srv-1', 'srv-2'], { revision: 7 }), { status: 64, stdout: '' })
  t.match(await run('seal', []), { status: 64, stdout: '' })
  t.match(await run('seal', [], { file: `${file}-none` }), { status: 66, stdout: '' })
  t.same(await state(store), before)
})

t.test('imdsctl remove reads the ids that imdsctl list prints', async (t) => {
  const { store } = await aRegion(t, { url: redis.url })
  await store.put(anInstance({ id: 'srv-4', revision: 3, hypervisors: ['hv9'], interfaces: NO_ADDRESS }))
  const imdsctl = `imdsctl() { ${process.execPath} ${IMDSCTL} --store ${redis.url} --region gb1 "$@"; }`
  const { stdout, stderr } = await runProgram(
    ['sh', '-euc', `${imdsctl}\n${executed('docs/publishing.md', 'remove many').replace(' --dry-run', '')}`],
    { env: programEnvironment() },
  )
  t.match([stdout.toString(), stderr], ['removed srv-4 at revision 4\n', ''])
})
