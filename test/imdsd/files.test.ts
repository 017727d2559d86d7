/**
 * The file store: the daemon follows a directory, and imdsctl publishes to it.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdirSync, renameSync, rmSync, symlinkSync, truncateSync, utimesSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import t, { type Test } from 'tap'
import { stringify } from 'yaml'
import { MAX_RECORD_BYTES } from '../../src/metadata/instance.ts'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, type TestDaemon, until } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { testDirectory } from '../support/test-directory.ts'

const local = (change: Record<string, unknown> = {}) =>
  anInstance({
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
    ...change,
  })
const hostname = async (daemon: TestDaemon) => (await daemon.get('/latest/meta-data/hostname')).body.toString()

async function aHost(t: Test, env: Record<string, string> = {}): Promise<{ directory: string; daemon: TestDaemon }> {
  const directory = testDirectory(t)
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}`, IMDS_RESYNC_SECONDS: '1', ...env })
  return { directory, daemon }
}

t.test('a record written by hand in YAML with user-data beside it is served, and so are its changes', async (t) => {
  const { directory, daemon } = await aHost(t)
  writeFileSync(join(directory, 'srv-abcde.user-data'), Buffer.from([0, 255]))
  writeFileSync(join(directory, 'srv-abcde.yaml'), stringify(local({ fqdn: 'one.example.com' })))
  await until(async () => (await hostname(daemon)) === 'one.example.com', 'the record')
  t.ok((await daemon.get('/latest/user-data')).body.equals(Buffer.from([0, 255])))
  writeFileSync(join(directory, 'srv-abcde.yaml'), stringify(local({ fqdn: 'two.example.com', revision: 2 })))
  await until(async () => (await hostname(daemon)) === 'two.example.com', 'the change')
})

t.test('invariant 3: a faulty file leaves the last good state in place and is reported once', async (t) => {
  const { directory, daemon } = await aHost(t)
  const write = (text: string) => {
    // atomically: half a file would be another fault
    writeFileSync(join(directory, 'next'), text)
    renameSync(join(directory, 'next'), join(directory, 'srv-abcde.json'))
  }
  write(JSON.stringify(local({ fqdn: 'good.example.com' })))
  await until(async () => (await hostname(daemon)) === 'good.example.com', 'the record')
  write('{ "S3CRET')
  await until(async () => (await daemon.metric('imds_record_faults_total{reason="unreadable"}')) === 1, 'the fault')
  const resyncs = await daemon.metric('imds_resyncs_total{result="completed"}')
  await until(async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > resyncs + 1, 'two resyncs')
  t.equal(await hostname(daemon), 'good.example.com')
  t.equal(daemon.log.filter(({ msg }) => msg.startsWith('faulty record')).length, 1)
  t.notMatch(JSON.stringify(daemon.log), /S3CRET/)
})

t.test('a file may be longer than a record, but a record may not exceed its limit', async (t) => {
  const { directory, daemon } = await aHost(t)
  const faults = () => daemon.log.filter(({ msg }) => msg.startsWith('faulty record'))
  const write = (text: string) => {
    writeFileSync(join(directory, 'next'), text)
    renameSync(join(directory, 'next'), join(directory, 'srv-abcde.json'))
  }
  write(JSON.stringify(local({ fqdn: 'indented.example.com' }), null, 2) + ' '.repeat(MAX_RECORD_BYTES))
  await until(async () => (await hostname(daemon)) === 'indented.example.com', 'the indented file')
  for (const [i, [text, message]] of (
    [
      [
        JSON.stringify(local({ fqdn: 'long.example.com', later: 'x'.repeat(MAX_RECORD_BYTES) })),
        /^the record is \d+ bytes as JSON, more than the limit of 262144$/,
      ],
      ['{'.repeat(4 * MAX_RECORD_BYTES + 1), /^srv-abcde\.json is 1048577 bytes, more than the limit of 1048576$/],
    ] as const
  ).entries()) {
    write(text)
    await until(() => faults().length === i + 1, 'the fault')
    t.match(faults()[i], { reason: 'unreadable', faults: [{ message }] })
    t.equal(await hostname(daemon), 'indented.example.com')
  }
})

t.test('invariant 8: a missing record or directory removes nothing; a tombstone does', async (t) => {
  const { directory, daemon } = await aHost(t)
  const store = await openStore({ url: `file:${directory}` })
  await store.put(local({ fqdn: 'kept.example.com' }))
  await until(async () => (await hostname(daemon)) === 'kept.example.com', 'the record')
  rmSync(join(directory, 'srv-abcde.json'))
  await until(
    async () => (await daemon.metric('imds_view_unconfirmed_instances')) === 1,
    'the daemon to notice the absence',
  )
  t.equal(await hostname(daemon), 'kept.example.com')
  renameSync(directory, `${directory}-away`)
  await until(
    async () => (await daemon.metric('imds_store_connected')) === 0,
    'the daemon to notice that the directory is gone',
  )
  t.equal(await hostname(daemon), 'kept.example.com')
  renameSync(`${directory}-away`, directory)
  t.same(await store.remove('srv-abcde'), { kind: 'absent' })
  await store.put(local({ fqdn: 'kept.example.com' }))
  t.same(await store.remove('srv-abcde'), { kind: 'removed', revision: 2 })
  await until(async () => (await daemon.get('/')).status === 503, 'the removal')
})

t.test('a directory that is created after the start, or is deleted and recreated, is followed', async (t) => {
  const directory = join(testDirectory(t), 'later')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}`, IMDS_RESYNC_SECONDS: '1' })
  t.equal((await daemon.operator('/readyz')).status, 503)
  mkdirSync(directory)
  writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local()))
  await until(async () => (await daemon.get('/')).status === 200, 'the record')
  rmSync(directory, { recursive: true })
  await until(
    async () => (await daemon.metric('imds_store_connected')) === 0,
    'the daemon to notice that the directory is gone',
  )
  mkdirSync(directory)
  await until(async () => (await daemon.metric('imds_store_connected')) === 1, 'the daemon to find the directory')
  const notices = await daemon.metric('imds_notices_total')
  writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local({ fqdn: 'back.example.com' })))
  await until(async () => (await hostname(daemon)) === 'back.example.com', 'the record')
  await until(
    async () => (await daemon.metric('imds_notices_total')) > notices,
    'the notice, which may come after a resync',
  )
})

t.test('a directory that is deleted and recreated, or replaced, without a pause is followed', async (t) => {
  const directory = join(testDirectory(t, { store: {}, next: {} }), 'store')
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}/` })
  await until(() => daemon.log.some(({ msg }) => msg === 'the store is connected'), 'the store')
  const isFollowed = async (fqdn: string, times: number) => {
    await until(
      () => daemon.log.filter(({ msg }) => msg === 'the store is connected').length === times,
      'the daemon to find the directory',
    )
    writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local({ fqdn })))
    await until(async () => (await hostname(daemon)) === fqdn, 'the record')
  }
  rmSync(directory, { recursive: true })
  mkdirSync(directory)
  await isFollowed('anew.example.com', 2)
  renameSync(directory, `${directory}-before`)
  renameSync(join(t.testdirName, 'next'), directory)
  await isFollowed('moved.example.com', 3)
})

t.test("a change of the directory's times or permissions causes no reconnect", async (t) => {
  const { directory, daemon } = await aHost(t)
  await until(() => daemon.log.some(({ msg }) => msg === 'the store is connected'), 'the store')
  const touches = [
    () => {
      utimesSync(directory, 1, 1)
    },
    () => {
      chmodSync(directory, 0o711)
    },
    () => {
      mkdirSync(join(directory, basename(directory)))
    },
  ]
  for (const touch of touches) {
    touch()
    const notices = await daemon.metric('imds_notices_total')
    writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local()))
    // by then the daemon has handled the touch too
    await until(async () => (await daemon.metric('imds_notices_total')) > notices, 'a notice')
  }
  matchAll(
    t,
    daemon.log.filter(({ msg }) => msg.startsWith('the store')),
    [{ msg: 'the store is connected' }],
  )
})

t.test('a swapped link to the directory is followed, and a moved parent directory by the next resync', async (t) => {
  const parent = join(testDirectory(t, { parent: { one: {}, two: {} } }), 'parent')
  symlinkSync('one', join(parent, 'store'))
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${parent}/store`, IMDS_RESYNC_SECONDS: '1' })
  const connected = (times: number) =>
    until(
      () => daemon.log.filter(({ msg }) => msg === 'the store is connected').length === times,
      `connection ${String(times)}`,
    )
  await connected(1)
  symlinkSync('two', join(parent, 'next'))
  renameSync(join(parent, 'next'), join(parent, 'store'))
  await connected(2)
  renameSync(parent, `${parent}-before`)
  mkdirSync(join(parent, 'store'), { recursive: true })
  await connected(3)
})

t.test('records that are links through a directory that is swapped, as in Kubernetes, are followed', async (t) => {
  const version = (fqdn: string) => ({ 'srv-abcde.json': JSON.stringify(local({ fqdn })) })
  const directory = testDirectory(t, { '..1': version('v1'), '..2': version('v2') })
  symlinkSync('..1', join(directory, '..data'))
  symlinkSync('..data/srv-abcde.json', join(directory, 'srv-abcde.json'))
  const daemon = await startDaemon(t, { IMDS_STORE: `file:${directory}` })
  await until(async () => (await hostname(daemon)) === 'v1', 'the record')
  symlinkSync('..2', join(directory, '..data_tmp'))
  renameSync(join(directory, '..data_tmp'), join(directory, '..data'))
  await until(async () => (await hostname(daemon)) === 'v2', 'the other record')
})

t.test("a daemon with a hypervisor's name serves only its instances", async (t) => {
  const { directory, daemon } = await aHost(t, { IMDS_HYPERVISOR: 'hv2' })
  const store = await openStore({ url: `file:${directory}` })
  await store.put(local())
  const resyncs = await daemon.metric('imds_resyncs_total{result="completed"}')
  await until(async () => (await daemon.metric('imds_resyncs_total{result="completed"}')) > resyncs + 1, 'two resyncs')
  t.equal((await daemon.get('/')).status, 503)
  await store.put(local({ revision: 2, hypervisors: ['hv1', 'hv2'] }))
  await until(async () => (await daemon.get('/')).status === 200, 'the instance to arrive')
})

async function imdsctl(
  args: readonly string[],
  { input = '', env = {} }: { input?: string | Buffer; env?: Record<string, string> } = {},
): Promise<{ status: number | null; stdout: Buffer; stderr: string }> {
  const child = spawn(process.execPath, [IMDSCTL, ...args], { env: { ...programEnvironment(), ...env } })
  child.stdin.end(input)
  const [stdout, stderr] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => Buffer.concat((await stream.toArray()) as Buffer[])),
  )
  if (child.exitCode === null) await once(child, 'exit')
  return { status: child.exitCode, stdout: stdout!, stderr: stderr!.toString() }
}

t.test('imdsctl puts, gets, lists and removes, and reports the result in its exit status', async (t) => {
  const directory = testDirectory(t, {
    'good.yaml': stringify(local()),
    data: Buffer.from([0, 255, 10]),
    'bad.json': JSON.stringify(local({ region: 1, id: 'x y' })),
    'no.json': '{',
    big: Buffer.alloc(16385),
  })
  const env = { IMDS_STORE: `file:${join(directory, 'store')}` }
  const file = (name: string) => join(directory, name)
  t.match(await imdsctl(['put', file('good.yaml'), '--user-data', file('data')], { env }), {
    status: 0,
    stdout: /^published srv-abcde revision 1\n$/,
  })
  t.match(await imdsctl(['put', '-'], { env, input: JSON.stringify(local({ revision: 2 })) }), { status: 0 })
  t.same(
    (await imdsctl(['user-data', 'srv-abcde'], { env })).stdout,
    Buffer.from([0, 255, 10]),
    'without --user-data the user-data stays',
  )
  t.match(JSON.parse((await imdsctl(['get', 'srv-abcde'], { env })).stdout.toString()), {
    revision: 2,
    userData: { size: 3 },
  })
  t.match((await imdsctl(['list'], { env })).stdout.toString(), /^ID .*\nsrv-abcde +2 +hv1 +- +default 127.0.0.1\n/)
  t.match(JSON.parse((await imdsctl(['--json', 'list'], { env })).stdout.toString()), { id: 'srv-abcde', revision: 2 })
  t.match(await imdsctl(['put', file('good.yaml')], { env }), { status: 2, stderr: /revision 2.*publish a higher one/ })
  t.match(await imdsctl(['put', file('bad.json')], { env }), {
    status: 65,
    stderr: /\/region must be(.|\n)*\/id must be|\/id must be(.|\n)*\/region must be/,
  })
  t.match(await imdsctl(['--json', 'put', file('bad.json')], { env }), { status: 65, stdout: /"faults":\[/ })
  t.match(await imdsctl(['put', file('no.json')], { env }), { status: 65, stderr: /neither JSON nor YAML/ })
  t.match(await imdsctl(['put', file('good.yaml'), '-u', file('big')], { env }), {
    status: 65,
    stderr: /16385 bytes, more than the limit of 16384/,
  })
  t.match(await imdsctl(['put', file('none.json')], { env }), { status: 66, stderr: /cannot be read/ })
  t.match(await imdsctl(['put', '-', '--no-user-data'], { env, input: JSON.stringify(local({ revision: 3 })) }), {
    status: 0,
  })
  t.equal((await imdsctl(['user-data', 'srv-abcde'], { env })).stdout.length, 0)
  t.match(await imdsctl(['remove', 'srv-abcde'], { env }), { status: 0, stdout: /^removed srv-abcde at revision 4/ })
  t.match(await imdsctl(['get', 'srv-abcde'], { env }), { status: 1, stderr: /has no srv-abcde/ })
  t.match(await imdsctl(['get', 'a b'], { env }), { status: 64 })
  t.match(await imdsctl(['frob'], { env }), { status: 64 })
  t.match(await imdsctl(['list']), { status: 64, stderr: /no store/ })
  t.match(await imdsctl(['-s', 'redis://127.0.0.1:1', '-r', 'gb1', 'list']), {
    status: 69,
    stderr: /cannot use the store/,
  })
  t.match(await imdsctl(['validate']), { status: 64 })
  t.match(await imdsctl(['validate', '-'], { input: Buffer.from('{"id":"a"}\n\n{"id":"gr\xfc"}\n', 'latin1') }), {
    status: 65,
    stderr: /^imdsctl: - cannot be read: it is not UTF-8: the byte at offset 21 is wrong$/m,
  })
  t.match(await imdsctl(['--help']), { status: 0, stdout: /Exit statuses/ })
})

t.test('imdsctl ignores SIGUSR1, at which Node.js would open its debugger', async (t) => {
  const child = spawn(process.execPath, [IMDSCTL, 'validate', '-'], { stdio: 'pipe' })
  const stderr = child.stderr.toArray()
  t.teardown(() => {
    child.kill()
  })
  let printed = ''
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    printed += chunk
  })
  const validate = async (revision: number) => {
    child.stdin.write(`${JSON.stringify(local({ revision }))}\n`)
    await until(() => printed.includes(`revision ${String(revision)}\n`), 'a record to be validated')
  }
  await validate(1)
  child.kill('SIGUSR1')
  await validate(2)
  child.stdin.end()
  await once(child, 'exit')
  t.equal(child.exitCode, 0)
  t.equal(Buffer.concat(await stderr).toString(), '', 'Node.js would print where its debugger listens')
})

t.test('FIFOs, directories and huge files are faults of their instances, and hold up nothing else', async (t) => {
  const { directory, daemon } = await aHost(t)
  const fifos = Array.from({ length: 8 }, (_, i) =>
    join(directory, `srv-fifo${String(i)}${['.json', '.removed', '.pending', '.user-data'][i % 4]!}`),
  ) // more than threads for files
  // before their records: a daemon that reads a record between the two would serve it, and its address
  execFileSync('mkfifo', fifos)
  for (const fifo of fifos.filter((name) => name.endsWith('.user-data')))
    writeFileSync(fifo.replace('.user-data', '.json'), JSON.stringify(local({ id: basename(fifo, '.user-data') })))
  mkdirSync(join(directory, 'srv-bad00.json'))
  for (const [i, ending] of ['.json', '.pending', '.user-data', '.removed'].entries()) {
    const id = `srv-huge${String(i)}`
    writeFileSync(join(directory, id + ending), '')
    truncateSync(join(directory, id + ending), 1.5 * 2 ** 30)
    if (ending === '.user-data') writeFileSync(join(directory, `${id}.json`), JSON.stringify(local({ id })))
  }
  writeFileSync(join(directory, 'srv-abcde.json'), JSON.stringify(local()))
  await until(async () => (await daemon.get('/')).status === 200, 'the good record')
  await until(async () => (await daemon.metric('imds_view_faulty_records')) === 13, 'the faults')
  const message = 'srv-fifo0.json is a FIFO, not a regular file: delete it'
  t.ok(
    daemon.log.some(({ faults }) => JSON.stringify(faults ?? '').includes(message)),
    'the log names the file and the remedy',
  )
  t.ok((await daemon.metric('process_resident_memory_bytes')) < 500 * 2 ** 20, 'nothing of the huge files is in memory')
  const store = await openStore({ url: `file:${directory}` })
  t.match(await store.put(local({ revision: 2 })), { kind: 'published' }, 'a publisher is not stopped either')
  t.equal(await daemon.stop(), 0)
})
