/**
 * Publishers to a file store as processes: concurrent, killed, in other PID namespaces, and as root for an unprivileged
 * daemon. test/unit/store/files/writer.test.ts ends a write at each of its operations.
 */
import { chmodSync, chownSync, lstatSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { run, startChild } from '../support/programs/processes.ts'
import { anInstance, anotherInstance, loopback } from '../support/fixtures/instance.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { traceFileCalls } from '../support/programs/syscalls.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'

const ID = 'srv-abcde'
const WRITER = new URL('../support/programs/file-writer.ts', import.meta.url).pathname
/** Locks work between containers, which have PID namespaces. */
const ISOLATED = withoutNamespaces() === false ? ['unshare', '--pid', '--fork', '--kill-child'] : []
const local = (revision: number) => anInstance({ revision, interfaces: loopback() })
const writer = (directory: string, ...args: string[]) => [process.execPath, WRITER, directory, ...args]

async function aStore(t: Test) {
  const directory = testDirectory(t)
  const store = await openStore({ url: `file:${directory}` })
  /** The revision and the user-data in the files. */
  const stateOf = async () => {
    const { document, userData } = (await store.get(ID))!
    return `${(document as { revision: number }).revision} ${Buffer.from(userData ?? '').toString()}`
  }
  return { directory, store, stateOf }
}

t.test('a file is on disk before it gets its name, and its name is, before what it replaces is removed', async (t) => {
  const { directory, store } = await aStore(t)
  await store.put(anotherInstance(1))
  writeFileSync(join(directory, `${ID}.user-data`), 'by hand')
  t.same(await traceFileCalls(writer(directory, 'change', 'two'), directory), [
    'fsync .publisher.tmp',
    `rename .publisher.tmp ${ID}.json`,
    'fsync .',
    `unlink ${ID}.user-data`,
  ])
})

t.test('of two writers exactly one publishes each revision', async (t) => {
  const { directory, stateOf } = await aStore(t)
  const racers = await Promise.all(
    ['a', 'b'].map((mark) => startChild([...ISOLATED, ...writer(directory, 'race', mark, '60')])),
  )
  const published = racers.map(async (racer) => {
    const line = await Promise.race([
      new Promise<string>((resolve) => racer.onLine(resolve)),
      racer.ended.then(() => 'ended'),
    ])
    return line.split(' ').filter(Boolean).map(Number)
  })
  for (const racer of racers) racer.writeLine('go')
  const [a, b] = await Promise.all(published)
  await Promise.all(racers.map((racer) => racer.stop()))
  t.same(
    [...a!, ...b!].sort((x, y) => x - y),
    Array.from({ length: 60 }, (_, i) => i + 1),
    'each once',
  )
  t.equal(await stateOf(), `60 ${a!.includes(60) ? 'a' : 'b'}`)
})

t.test('the lock of a stopped writer excludes others, and is free once the writer is killed', async (t) => {
  const { directory, store, stateOf } = await aStore(t)
  await store.put(local(1), Buffer.from('one'))
  const child = await startChild([...ISOLATED, ...writer(directory, 'wait', 'two')])
  t.teardown(() => child.stop())
  let turns = 0
  const counting = setInterval(() => {
    turns += 1
  }, 1)
  const startedMs = performance.now()
  await t.rejects(store.put(local(2)), {
    message: `another writer has held ${directory}/.publisher.lock for 5 s, or this file system has no locks`,
  })
  clearInterval(counting)
  t.ok(performance.now() - startedMs >= 5000)
  t.ok(turns > 50, 'a writer that waits does not block the event loop')
  t.match(await store.get(ID), { document: { revision: 2 } }, 'the lock does not exclude readers')
  const put = store.put(local(3))
  process.kill(child.pid, 'SIGKILL')
  t.match(await put, { kind: 'published' })
  t.equal(await stateOf(), '3 two', 'the change that the killed writer had committed counts')
})

t.test(
  "files that root writes into another user's directory belong to that user and are served",
  { skip: withoutNamespaces() },
  async (t) => {
    const [uid, gid] = [54321, 54322]
    const directory = shortDirectory(t)
    chownSync(directory, uid, gid)
    const store = await openStore({ url: `file:${directory}` })
    await store.put(local(1), Buffer.from('one'))
    await store.put(anotherInstance(1))
    await store.remove('srv-other')
    for (const name of readdirSync(directory)) {
      const { uid: owner, gid: group, mode } = lstatSync(join(directory, name))
      t.same([name, owner, group, (mode & 0o777).toString(8)], [name, uid, gid, '600'])
    }
    const as = (user: number) => ['setpriv', '--reuid', String(user), '--regid', String(user), '--clear-groups']
    const { stdout } = await run([...as(uid), 'cat', join(directory, `${ID}.json`)])
    t.match(JSON.parse(stdout.toString()), { userDataBase64: Buffer.from('one').toString('base64') })
    const skip =
      (await run([...as(uid), 'test', '-r', WRITER, '-a', '-x', process.execPath])).status !== 0 &&
      'another user cannot read the sources here'
    await t.test('the user can write after root, and root after the user', { skip }, async (t) => {
      t.match(await run([...as(uid), ...writer(directory, 'change', 'two')]), { stdout: Buffer.from('done\n') })
      t.match(await store.put(local(3)), { kind: 'published' })
    })
    await t.test('a user who may only read the lock file cannot publish', { skip }, async (t) => {
      chmodSync(directory, 0o777)
      chmodSync(join(directory, '.publisher.lock'), 0o644)
      t.match(await imdsctl(['-s', `file:${directory}`, 'remove', 'srv-none'], { within: as(uid + 1) }), {
        status: 69,
        stderr: /EACCES: permission denied, access '.*\/.publisher.lock'/,
      })
    })
  },
)
