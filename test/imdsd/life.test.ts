/** The daemon as a process: its start, failing starts, its stop, and the demo of README.md. */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, openSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { openStore } from '../../src/store/open.ts'
import { type LogLine, request, runDaemon, startDaemon, until } from '../support/programs/daemon.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { IMDSD, LIBRARY, programEnvironment } from '../support/programs/imds.ts'
import { PASS_SOCKET } from '../support/redis/fleet.ts'
import { openListeningSocket } from '../support/netns/listening-socket.ts'
import { freePort } from '../support/redis/redis.ts'
import { shortDirectory, testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'

const LOCAL = anInstance({ interfaces: loopback() })

t.test('with a bad configuration the daemon names each bad variable and exits with 78 before it listens', async (t) => {
  const port = await freePort()
  const { status, stdout, stderr } = await runDaemon({
    IMDS_LISTEN: `127.0.0.1:${port}`,
    IMDS_STORE: 'redis://x',
    IMDS_LOG_LEVEL: 'loud',
    IMDS_RESYNC_SECONDS: 'soon',
  })
  t.equal(status, 78)
  t.equal(stdout, '')
  for (const variable of ['IMDS_REGION', 'IMDS_HYPERVISOR', 'IMDS_LOG_LEVEL', 'IMDS_RESYNC_SECONDS'])
    t.match(stderr, new RegExp(`^  ${variable} .+`, 'm'))
})

t.test('a daemon that cannot open a listener names it with a remedy and exits with 1', async (t) => {
  const blocker = createServer().listen(0, '127.0.0.1')
  await once(blocker, 'listening')
  t.teardown(() => blocker.close())
  const { port } = blocker.address() as { port: number }
  for (const [listen, remedy] of [
    [`127.0.0.1:${port}`, /another program listens there/],
    ['192.0.2.1:8169', /does not have the address.*imds-address/],
  ] as const) {
    const { status, stdout } = await runDaemon({
      IMDS_LISTEN: listen,
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_STORE: `file:${testDirectory(t)}`,
    })
    t.equal(status, 1)
    t.match(stdout, /"level":"fatal".*IMDS_LISTEN: cannot listen on/)
    t.match(stdout, remedy)
    t.notMatch(stdout, /"stack"/, 'there is no stack trace')
  }
})

t.test('SIGTERM during the start stops the daemon cleanly too', async (t) => {
  const port = await freePort()
  const { status, stdout } = await runDaemon(
    {
      IMDS_LISTEN: `127.0.0.1:${port}`,
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_STORE: `file:${testDirectory(t)}`,
    },
    async (daemon) => {
      await until(() => isListening(port), 'a listener')
      daemon.kill('SIGTERM')
    },
  )
  t.equal(status, 0)
  t.match(stdout, /"signal":"SIGTERM","msg":"stopping"/)
})

t.test('each of several listeners serves the instances of its own network', async (t) => {
  const [plain, red] = [await freePort(), await freePort()]
  const url = `file:${testDirectory(t)}`
  const store = await openStore({ url })
  const on = (id: string, network: string) =>
    anInstance({
      id,
      interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', network, ipv4Addresses: ['127.0.0.1/8'] }],
    })
  await store.put(on('srv-plain', 'default'))
  await store.put(on('srv-red', 'red'))
  await startDaemon(t, {
    IMDS_STORE: url,
    IMDS_LISTEN: `127.0.0.1:${plain},red=127.0.0.1:${red}`,
  })
  const id = async (port: number) => (await request(port, '/latest/meta-data/instance-id')).body.toString()
  await until(async () => (await id(plain)) === 'srv-plain' && (await id(red)) === 'srv-red', "each network's instance")
})

t.test('npm start serves the demo instance, runs the documented examples and leaves nothing behind', async (t) => {
  const [guest, operator] = [await freePort(), await freePort()]
  const child = spawn(process.execPath, [IMDSD, '--demo'], {
    env: demoOn(guest, operator),
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const lines: string[] = []
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(line))
  await until(
    () => ['imdsctl', 'ready'].every((word) => lines.some((line) => line.includes(word))),
    'the example commands and the first resync',
  )
  const base = `http://127.0.0.1:${guest}`
  t.ok(lines.includes(`  curl ${base}/latest/meta-data/`))
  const here = (example: string) =>
    example
      .replaceAll('127.0.0.1:8169', `127.0.0.1:${guest}`)
      .replaceAll('169.254.169.254', `127.0.0.1:${guest}`)
      .replaceAll('127.0.0.1:9169', `127.0.0.1:${operator}`)
  const { status, stdout } = spawnSync('sh', ['-euc', here(executed('README.md', 'demo'))], { encoding: 'utf8' })
  t.equal(status, 0)
  for (const part of [
    '\ninstance-id\n',
    'ssh-ed25519 ',
    '#cloud-config\n',
    'srv-demo1',
    '"ready":true',
    '\nimds_requests_total{',
  ])
    t.ok(stdout.includes(part), part)
  t.match(spawnSync('sh', ['-euc', here(executed('docs/guests.md', 'session token'))], { encoding: 'utf8' }), {
    status: 0,
    stdout: 'srv-demo1',
  })
  const directory = /--store file:(\S+)/.exec(lines.join('\n'))![1]!
  t.ok(existsSync(directory))
  const record = anInstance({
    id: 'srv-x1y2z',
    revision: 3,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:02', ipv4Addresses: ['10.0.0.2/30'] }],
  })
  const library = here(executed('docs/publishing.md', 'library'))
    .replace("'imds'", `'${LIBRARY}'`)
    .replace(/\{ url: .*? \}/, `{ url: 'file:${directory}' }`)
    .replace('/run/imds/operator.sock', join(directory, '../operator.sock'))
  const program = `const record = ${JSON.stringify(record)}, userData = 'x'\n${library}\nconsole.log(put.kind, gate.kind)`
  t.match(
    spawnSync(process.execPath, ['--input-type=module-typescript', '-e', program], {
      env: programEnvironment(),
      encoding: 'utf8',
    }),
    { status: 0, stdout: 'published answers\n', stderr: '' },
  )
  child.kill('SIGTERM')
  await once(child, 'exit')
  t.equal(child.exitCode, 0)
  t.notOk(existsSync(directory))
  const log = lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as LogLine)
  t.same(
    log.filter(({ level }) => level !== 'info'),
    [],
    'the demo logs no warning',
  )
  matchAll(t, log.slice(0, 1), [{ msg: 'listening' }])
})

/** Starts a daemon that serves LOCAL, with a file descriptor or a shell's redirection for its log. */
t.test('G3: on a socket that outlives the daemon, as that of imds.socket, no connection is refused', async (t) => {
  const port = await freePort()
  const socket = await openListeningSocket(['env'], '127.0.0.1', port)
  t.teardown(() => socket.close())
  const directory = testDirectory(t, { state: {} })
  const url = `file:${join(directory, 'store')}`
  await (await openStore({ url })).put(LOCAL)
  const env = { IMDS_STORE: url, IMDS_LISTEN: `127.0.0.1:${port}`, IMDS_STATE_DIR: join(directory, 'state') }
  const start = () => startDaemon(t, env, PASS_SOCKET, { fds: [socket.fd] })
  let daemon = await start()
  const ask = async () => (await request(port, '/latest/meta-data/instance-id')).body.toString()
  await until(async () => (await ask()) === 'srv-abcde', 'the instance')
  for (let i = 0; i < 2; i++) {
    t.equal(await daemon.stop(), 0)
    const waiting = [ask(), ask()]
    daemon = await start()
    t.same(await Promise.all(waiting), ['srv-abcde', 'srv-abcde'])
  }
})

async function startWithLog(t: Test, log: number | string) {
  const port = await freePort()
  const directory = testDirectory(t)
  const url = `file:${directory}/store`
  await (await openStore({ url })).put(LOCAL)
  const command = typeof log === 'string' ? ['sh', '-c', `exec "$0" "$1" ${log}`] : []
  const [program, ...args] = [...command, process.execPath, IMDSD]
  const child = spawn(program, args, {
    env: {
      ...programEnvironment(),
      IMDS_STORE: url,
      IMDS_LISTEN: `127.0.0.1:${port}`,
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_OPERATOR_SOCKET: join(shortDirectory(t), 'operator.sock'),
      IMDS_LOG_LEVEL: 'debug',
      IMDS_STATE_DIR: directory,
      IMDS_GUEST_BURST: '1000000',
    },
    stdio: ['ignore', typeof log === 'string' ? 'ignore' : log, 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  const statusOf = async () =>
    request(port, '/').then(
      ({ status }) => status,
      () => 0,
    )
  await until(async () => (await statusOf()) === 200, 'an answer')
  return { child, statusOf }
}

t.test('a daemon whose log cannot be written, because the disk is full, still serves guests', async (t) => {
  const { child, statusOf } = await startWithLog(t, '> /dev/full')
  for (let i = 0; i < 50; i++) t.equal(await statusOf(), 200)
  t.equal(child.exitCode, null)
})

t.test('a daemon whose log nobody reads still serves guests, and writes the lines once it is read', async (t) => {
  const pipe = join(shortDirectory(t), 'log')
  spawnSync('mkfifo', [pipe])
  const { child, statusOf } = await startWithLog(t, openSync(pipe, 'r+'))
  const requests = 400 // their lines are more than the 64 KiB of the pipe
  const statuses = new Set<number>()
  for (let i = 0; i < requests; i++) statuses.add(await statusOf())
  t.same([...statuses], [200])
  const lines: string[] = []
  const reader = spawn('cat', [pipe], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => reader.kill('SIGKILL'))
  createInterface({ input: reader.stdout }).on('line', (line) => lines.push(line))
  await until(() => lines.filter((line) => line.includes('"msg":"request"')).length > requests, 'the lines')
  child.kill('SIGTERM')
  t.same(await once(child, 'exit'), [0, null])
  await until(() => lines.some((line) => line.includes('"msg":"stopping"')), 'the last line')
  for (const line of lines) JSON.parse(line)
})

/** The environment of a demo on these ports. */
function demoOn(guest: number, operator: number): Record<string, string | undefined> {
  return {
    ...programEnvironment(),
    IMDS_LISTEN: `127.0.0.1:${guest}`,
    IMDS_OPERATOR_LISTEN: `127.0.0.1:${operator}`,
  }
}

async function isListening(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1')
  return once(socket, 'connect')
    .then(
      () => true,
      () => false,
    )
    .finally(() => socket.destroy())
}
