/**
 * The file store: the daemon follows a directory, and imdsctl publishes to it. test/unit/store/files/ has what is read,
 * what is a fault, and how links are followed.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { stringify } from 'yaml'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, unlessReset, until } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { imdsctl, imdsctlCommand } from '../support/programs/imdsctl.ts'
import { testDirectory } from '../support/test-directory.ts'

const local = (change: Record<string, unknown> = {}) => anInstance({ interfaces: loopback(), ...change })

t.test('a directory is followed: records by hand, faults, missing records and directories, tombstones', async (t) => {
  const directory = join(testDirectory(t), 'later')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}`, IMDS_RESYNC_SECONDS: '1' })
  const hostname = async () => (await daemon.get('/latest/meta-data/hostname')).body.toString()
  const serves = (fqdn: string) => until(async () => (await hostname()) === fqdn, fqdn)
  const isConnected = (value: boolean) =>
    until(async () => ((await daemon.condition('store-lost')) === undefined) === value, `connected: ${String(value)}`)
  /** Atomically: the daemon never reads half a file. */
  const write = (name: string, text: string) => {
    writeFileSync(join(directory, 'next'), text)
    renameSync(join(directory, 'next'), join(directory, name))
  }
  t.equal((await daemon.operator('/readyz')).status, 503, 'there is no directory yet')

  mkdirSync(directory)
  writeFileSync(join(directory, 'srv-abcde.user-data'), Buffer.from([0, 255]))
  write('srv-abcde.yaml', stringify(local({ fqdn: 'one' })))
  await serves('one')
  t.ok((await daemon.get('/latest/user-data')).body.equals(Buffer.from([0, 255])))
  write('srv-abcde.yaml', stringify(local({ fqdn: 'two', revision: 2 })))
  await serves('two')

  write('srv-abcde.yaml', '{ "S3CRET')
  await until(async () => (await daemon.metric('imds_record_faults_total{reason="unreadable"}')) === 1, 'the fault')
  const resyncs = await daemon.metric('imds_resyncs_total{result="completed"}')
  await until(async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > resyncs + 1, 'two resyncs')
  t.equal(daemon.log.filter(({ msg }) => msg.startsWith('faulty record')).length, 1, 'a fault is reported once')
  t.notMatch(JSON.stringify(daemon.log), /S3CRET/)
  t.equal(await hostname(), 'two', 'invariant 3: the last good state stays')

  rmSync(join(directory, 'srv-abcde.yaml'))
  rmSync(join(directory, 'srv-abcde.user-data'))
  await until(async () => (await daemon.metric('imds_view_absent_instances')) === 1, 'the absence')
  rmSync(directory, { recursive: true })
  await isConnected(false)
  t.equal(await hostname(), 'two', 'invariant 8: absence is not removal')
  mkdirSync(directory)
  await isConnected(true)
  const notices = await daemon.metric('imds_notices_total')
  write('srv-abcde.json', JSON.stringify(local({ fqdn: 'back' })))
  await serves('back')
  await until(async () => (await daemon.metric('imds_notices_total')) > notices, 'the notice, which may come later')

  const store = await openStore({ url: `file:${directory}` })
  t.match(await store.remove('srv-abcde'), { kind: 'removed', revision: 2 })
  await until(async () => (await unlessReset(daemon.get('/')))?.status === 503, 'the removal')
})

t.test('a directory that is deleted and recreated, or replaced, without a pause is followed', async (t) => {
  const parent = join(testDirectory(t, { parent: { store: {}, next: {} } }), 'parent')
  const directory = join(parent, 'store')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}/`, IMDS_RESYNC_SECONDS: '1' })
  const isFollowed = async (fqdn: string, times: number) => {
    await until(
      () => daemon.log.filter(({ msg }) => msg === 'the store is connected').length === times,
      `connection ${times}`,
    )
    writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local({ fqdn })))
    await until(async () => (await daemon.get('/latest/meta-data/hostname')).body.toString() === fqdn, fqdn)
  }
  await isFollowed('first', 1)
  rmSync(directory, { recursive: true })
  mkdirSync(directory)
  await isFollowed('anew', 2)
  renameSync(directory, `${directory}-before`)
  renameSync(join(parent, 'next'), directory)
  await isFollowed('moved', 3)
  renameSync(parent, `${parent}-before`)
  mkdirSync(directory, { recursive: true })
  await isFollowed('moved-parent', 4)
})

t.test('imdsctl puts, gets, lists and removes, and reports the result in its exit status', async (t) => {
  const directory = testDirectory(t, {
    'good.yaml': stringify(local()),
    data: 'data',
    'bad.json': JSON.stringify(local({ region: 1 })),
  })
  const env = { IMDS_STORE: `file:${join(directory, 'store')}` }
  const file = (name: string) => join(directory, name)
  t.same(await imdsctl(['put', file('good.yaml'), '--user-data', file('data')], { env }), {
    status: 0,
    stdout: 'published srv-abcde revision 1\n',
    stderr: '',
  })
  t.match(await imdsctl(['put', '-'], { env, input: JSON.stringify(local({ revision: 2 })) }), { status: 0 })
  t.equal((await imdsctl(['user-data', 'srv-abcde'], { env })).stdout, 'data', 'without --user-data it stays')
  t.match(JSON.parse((await imdsctl(['get', 'srv-abcde'], { env })).stdout), { revision: 2, userData: { size: 4 } })
  t.match((await imdsctl(['list'], { env })).stdout, /^ID .*\nsrv-abcde +2 +hv1 +- +default 127.0.0.1\n/)
  t.match(await imdsctl(['put', file('good.yaml')], { env }), { status: 2, stderr: /revision 2.*publish a higher one/ })
  t.match(await imdsctl(['put', file('bad.json')], { env }), { status: 65, stderr: /\/region must be/ })
  t.match(await imdsctl(['put', file('none.json')], { env }), { status: 66, stderr: /cannot be read/ })
  t.match(await imdsctl(['remove', 'srv-abcde'], { env }), { status: 0, stdout: /^removed srv-abcde at revision 3/ })
  t.match(await imdsctl(['get', 'srv-abcde'], { env }), { status: 1, stderr: /has no srv-abcde/ })
  t.match(await imdsctl(['get', 'a b'], { env }), { status: 64 })
  t.match(await imdsctl(['list']), { status: 64, stderr: /no store/ })
  t.match(await imdsctl(['-s', 'redis://127.0.0.1:1', '-r', 'gb1', 'list']), {
    status: 69,
    stderr: /cannot use the st/,
  })
})

t.test('imdsctl ignores SIGUSR1, at which Node.js would open its debugger', async (t) => {
  const [node, ...args] = imdsctlCommand('validate', '-')
  const child = spawn(node!, args, { stdio: 'pipe' })
  const stderr = child.stderr.toArray()
  t.teardown(() => child.kill())
  let printed = ''
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    printed += chunk
  })
  const validate = async (revision: number) => {
    child.stdin.write(`${JSON.stringify(local({ revision }))}\n`)
    await until(() => printed.includes(`revision ${revision}\n`), 'a record to be validated')
  }
  await validate(1)
  child.kill('SIGUSR1')
  await validate(2)
  child.stdin.end()
  await once(child, 'exit')
  t.equal(child.exitCode, 0)
  t.equal(Buffer.concat(await stderr).toString(), '', 'Node.js would print where its debugger listens')
})
