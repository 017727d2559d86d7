/**
 * Publishers to a file store as processes: killed, concurrent, in other PID namespaces, and as root for an
 * unprivileged daemon.
 */
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { validate } from '../../src/imdsd/view/validate.ts'
import { loadFiles } from '../../src/store/files/load.ts'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, type TestDaemon, until } from '../support/programs/daemon.ts'
import { must, run, startChild } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { traceFileCalls } from '../support/programs/syscalls.ts'
import { testDirectory } from '../support/test-directory.ts'

const ID = 'srv-abcde'
const WRITER = new URL('../support/programs/file-writer.ts', import.meta.url).pathname
const IN_PID_NAMESPACE = ['unshare', '--pid', '--fork', '--kill-child']
const local = (revision: number, change: Record<string, unknown> = {}) =>
  anInstance({
    revision,
    fqdn: `r${String(revision)}.example.com`,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
    ...change,
  })
const other = (revision: number) =>
  local(revision, {
    id: 'srv-other',
    interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: ['127.0.0.9/8'] }],
  })
/** Steps of support/programs/file-writer.ts in a change of the user-data: the rename to `.pending` is between them. */
const [BEFORE_COMMIT, AFTER_COMMIT] = [3, 12]
const writer = (directory: string, ...args: string[]) => [process.execPath, WRITER, directory, ...args]

async function aStore(t: Test) {
  const directory = testDirectory(t)
  const store = await openStore({ url: `file:${directory}` })
  return { directory, store }
}

/**
 * The state in the files as a daemon reads it: the host name and the user-data of the instance, or `removed` or
 * `absent`.
 */
async function stateOf(directory: string): Promise<string> {
  const loaded = await loadFiles(directory, ID)
  if (loaded.kind === 'removed' || loaded.kind === 'absent') return loaded.kind
  const assembled = validate(loaded, 16384)
  return !assembled.ok
    ? JSON.stringify(assembled)
    : `${assembled.value.instance.fqdn} ${Buffer.from(assembled.value.userData ?? []).toString()}`
}

/** The same state as a guest gets it. */
async function servedBy(daemon: TestDaemon): Promise<string> {
  const [name, userData] = [await daemon.get('/latest/meta-data/hostname'), await daemon.get('/latest/user-data')]
  return `${name.body.toString()} ${userData.body.toString()}`
}

t.test(
  'a writer that is killed before or after its commit leaves the old or the new state, and no fault',
  async (t) => {
    const { directory, store } = await aStore(t)
    const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}` })
    await store.put(local(1), Buffer.from('one'))
    // test/unit/store/files/writer.test.ts stops a write at each of its operations
    for (const [step, state] of [
      [BEFORE_COMMIT, 'r1.example.com one'],
      [AFTER_COMMIT, 'r2.example.com two'],
    ] as const) {
      const { stdout } = await run(writer(directory, 'change', 'set two', 'kill', String(step)), {
        env: programEnvironment(),
      })
      t.equal(stdout.toString(), '')
      t.equal(await stateOf(directory), state)
      await until(async () => (await servedBy(daemon)) === state, `"${state}" to be served`)
      await store.put(other(step), 'none')
      t.equal(
        await stateOf(directory),
        state,
        'the next writer finishes an interrupted change and changes nothing else',
      )
      t.same(
        readdirSync(directory).filter((name) => /\.(pending|tmp)$/.test(name)),
        [],
      )
    }
    t.notMatch((await daemon.operator('/metrics')).body.toString(), /imds_record_faults_total\{.*\} [1-9]/)
  },
)

t.test('each file is on disk before it gets its name, and a pending change is removed last', async (t) => {
  const { directory, store } = await aStore(t)
  await store.put(other(1))
  t.same(await traceFileCalls(writer(directory, 'change', 'set two', 'kill', '0'), directory), [
    'fsync .publisher.tmp',
    `rename .publisher.tmp ${ID}.pending`,
    'fsync .',
    'fsync .publisher.tmp',
    `rename .publisher.tmp ${ID}.user-data`,
    'fsync .publisher.tmp',
    `rename .publisher.tmp ${ID}.json`,
    'fsync .',
    `unlink ${ID}.pending`,
  ])
})

const kinds: Readonly<Record<string, { skip: string | false; first: readonly string[]; second: readonly string[] }>> = {
  'side by side': { skip: false, first: [], second: [] },
  'in two pid namespaces': { skip: withoutNamespaces(), first: IN_PID_NAMESPACE, second: IN_PID_NAMESPACE },
}
for (const [where, { skip, first, second }] of Object.entries(kinds)) {
  t.test(`of two writers ${where} exactly one publishes each revision`, { skip }, async (t) => {
    const { directory } = await aStore(t)
    const racers = await Promise.all(
      [[first, 'a'] as const, [second, 'b'] as const].map(([within, mark]) =>
        startChild([...within, ...writer(directory, 'race', mark, '60')]),
      ),
    )
    const published = racers.map(async (racer) => {
      const line = await Promise.race([
        new Promise<string>((resolve) => {
          racer.onLine(resolve)
        }),
        racer.ended.then(() => 'ended'),
      ])
      return line
        .split(' ')
        .filter((text) => text !== '')
        .map(Number)
    })
    for (const racer of racers) racer.writeLine('go')
    const [a, b] = await Promise.all(published)
    await Promise.all(racers.map((racer) => racer.stop()))
    t.same(
      [...a!, ...b!].sort((x, y) => x - y),
      Array.from({ length: 60 }, (_, i) => i + 1),
      'each once',
    )
    t.equal(await stateOf(directory), `r60.example.com ${a!.includes(60) ? 'a' : 'b'}`)
  })

  t.test(
    `the lock of a stopped writer ${where} excludes others, and is free once the writer is killed`,
    { skip },
    async (t) => {
      const { directory, store } = await aStore(t)
      await store.put(local(1), Buffer.from('one'))
      const child = await startChild([
        ...second,
        ...writer(directory, 'change', 'set two', 'wait', String(AFTER_COMMIT)),
      ])
      t.teardown(() => child.stop())
      const startedMs = performance.now()
      await t.rejects(store.put(local(2)), {
        message: `another writer has held ${directory}/.publisher.lock for 5 s, or this file system has no locks`,
      })
      t.ok(performance.now() - startedMs >= 5000)
      t.match(await store.get(ID), { document: { revision: 2 } }, 'the lock does not exclude readers')
      const put = store.put(local(3))
      process.kill(child.pid, 'SIGKILL')
      t.match(await put, { kind: 'published' })
      t.equal(
        await stateOf(directory),
        'r3.example.com two',
        'the change that the killed writer had committed is finished first',
      )
    },
  )
}

t.test('a writer that waits for the lock does not block the event loop', async (t) => {
  const { directory, store } = await aStore(t)
  const child = await startChild(writer(directory, 'change', 'set two', 'wait', String(BEFORE_COMMIT)))
  let turns = 0
  const counting = setInterval(() => {
    turns += 1
  }, 1)
  const put = store.put(other(1))
  await until(() => turns > 50, '50 turns')
  clearInterval(counting)
  await child.stop()
  t.match(await put, { kind: 'published' })
})

t.test('an error names a lock file that imds did not create; the lock file of imds stays empty', async (t) => {
  const { directory, store } = await aStore(t)
  const lock = join(directory, '.publisher.lock')
  writeFileSync(lock, 'not a database')
  await t.rejects(store.put(local(1)), { message: `cannot lock ${lock}: it is not a lock file of imds, delete it` })
  rmSync(lock)
  const target = join(t.testdirName, 'target')
  writeFileSync(target, '')
  symlinkSync(target, lock)
  await t.rejects(store.put(local(1)), { message: `cannot lock ${lock}: it is not a regular file, delete it` })
  rmSync(lock)
  t.match(await store.put(local(1)), { kind: 'published' })
  t.equal(statSync(lock).size, 0)
  t.equal(statSync(lock).mode & 0o777, 0o600)
  t.same(
    readdirSync(directory)
      .filter((name) => name.startsWith('.publisher'))
      .sort(),
    ['.publisher.lock', '.publisher.queue'],
  )
})

t.test('imdsctl prints no warning about SQLite, and the daemon does not load SQLite', async (t) => {
  // outside the store, where record.json would be the file of an instance
  const directory = testDirectory(t, { store: {}, 'record.json': JSON.stringify(local(1)) })
  t.same(
    await run(
      [process.execPath, IMDSCTL, '-s', `file:${join(directory, 'store')}`, 'put', join(directory, 'record.json')],
      { env: programEnvironment() },
    ),
    { status: 0, stdout: Buffer.from(`published ${ID} revision 1\n`), stderr: '' },
  )
  const loads = async (module: string) =>
    (
      await must([
        process.execPath,
        '--input-type=module',
        '--eval',
        `await import(${JSON.stringify(new URL(module, import.meta.url).pathname)}); console.log(process.moduleLoadList.includes('NativeModule sqlite'))`,
      ])
    )
      .toString()
      .trim()
  for (const module of ['../../src/imdsd/daemon.ts', '../../src/store/files/load.ts', '../../src/store/open.ts'])
    t.equal(await loads(module), 'false', module)
  t.equal(await loads('../../src/store/files/publisher.ts'), 'true')
})

t.test(
  "files that root writes into another user's directory belong to that user and are served",
  { skip: withoutNamespaces() },
  async (t) => {
    const [uid, gid] = [54321, 54322]
    const directory = mkdtempSync(join(tmpdir(), 'imds-owner-'))
    t.teardown(() => {
      rmSync(directory, { recursive: true })
    })
    chownSync(directory, uid, gid)
    const store = await openStore({ url: `file:${directory}` })
    await store.put(local(1), Buffer.from('one'))
    await store.put(other(1))
    await store.remove('srv-other')
    for (const name of readdirSync(directory)) {
      const { uid: owner, gid: group, mode } = lstatSync(join(directory, name))
      t.same([name, owner, group, (mode & 0o777).toString(8)], [name, uid, gid, '600'])
    }
    const as = (user: number, command: readonly string[]) =>
      run(['setpriv', '--reuid', String(user), '--regid', String(user), '--clear-groups', ...command])
    t.match(await as(uid, ['cat', join(directory, `${ID}.user-data`)]), { stdout: Buffer.from('one') })
    const skip =
      (await as(uid, ['test', '-r', WRITER, '-a', '-x', process.execPath])).status !== 0 &&
      'another user cannot read the sources here'
    await t.test('the user can write after root, and root after the user', { skip }, async (t) => {
      t.match(await as(uid, writer(directory, 'change', 'set two', 'kill', '0')), { stdout: Buffer.from('done\n') })
      t.match(await store.put(local(3)), { kind: 'published' })
      t.equal(await stateOf(directory), 'r3.example.com two')
    })
    await t.test('a user who may only read the lock file cannot publish', { skip }, async (t) => {
      for (const [path, mode] of [
        [directory, 0o777],
        [join(directory, '.publisher.lock'), 0o644],
      ] as const)
        chmodSync(path, mode)
      t.match(await as(uid + 1, [process.execPath, IMDSCTL, '-s', `file:${directory}`, 'remove', 'srv-none']), {
        status: 69,
        stderr: /EACCES: permission denied, access '.*\/.publisher.queue'/,
      })
    })
  },
)
