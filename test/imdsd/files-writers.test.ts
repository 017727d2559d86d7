/**
 * Publishers to a file store as processes: what reaches the disk in which order, and root for an unprivileged daemon.
 * test/unit/store/files/ has their lock, and ends a write at each of its operations.
 */
import { chmodSync, chownSync, lstatSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance, anotherInstance, loopback } from '../support/fixtures/instance.ts'
import { withoutNamespaces } from '../support/netns/namespaces.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { traceFileCalls } from '../support/programs/syscalls.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'

const ID = 'srv-abcde'
const WRITER = new URL('../support/programs/file-writer.ts', import.meta.url).pathname
const local = (revision: number) => anInstance({ revision, interfaces: loopback() })
const writer = (directory: string, text: string) => [process.execPath, WRITER, directory, text]

t.test('a file is on disk before it gets its name, and its name is, before what it replaces is removed', async (t) => {
  const directory = testDirectory(t)
  const store = await openStore({ url: `file:${directory}` })
  await store.put(anotherInstance(1))
  writeFileSync(join(directory, `${ID}.user-data`), 'by hand')
  t.same(await traceFileCalls(writer(directory, 'two'), directory), [
    'fsync .publisher.tmp',
    `rename .publisher.tmp ${ID}.json`,
    'fsync .',
    `unlink ${ID}.user-data`,
  ])
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
      t.match(await run([...as(uid), ...writer(directory, 'two')]), { status: 0 })
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
