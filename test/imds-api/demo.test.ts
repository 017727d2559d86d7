/**
 * `npm start` as a newcomer runs it: the daemon and imds-api together, the commands that it prints, and its end.
 */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { stripVTControlCharacters } from 'node:util'
import t, { type Test } from 'tap'
import { until } from '../support/programs/daemon.ts'
import { programEnvironment } from '../support/programs/imds.ts'
import { freePort } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed, ROOT } from '../tools/documents.ts'

const START = `${ROOT}src/start.ts`
const PORTS = {
  IMDS_LISTEN: 8169,
  IMDS_OPERATOR_LISTEN: 9169,
  IMDS_API_LISTEN: 8170,
  IMDS_API_OPERATOR_LISTEN: 9170,
} as const

/** Runs a command that starts the demo on free ports. `here` puts these ports into an example of the documents. */
async function aDemo(t: Test, command: readonly string[], more: Readonly<Record<string, string>> = {}) {
  const directory = mkdtempSync(join(tmpdir(), 'imds-start-'))
  chmodSync(directory, 0o711) // as root, PostgreSQL runs as another user
  const ports = await Promise.all(
    Object.entries(PORTS).map(async ([variable, port]) => ({
      variable,
      port,
      place: `127.0.0.1:${await freePort()}`,
    })),
  )
  const places = Object.fromEntries(ports.map(({ variable, place }) => [variable, place]))
  const child = spawn(command[0]!, command.slice(1), {
    env: { ...programEnvironment(), TMPDIR: directory, ...places, ...more },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ended = once(child, 'close').then(() => child.exitCode)
  t.teardown(async () => {
    if (child.kill('SIGTERM')) await ended
    rmSync(directory, { recursive: true, force: true })
  })
  const lines: string[] = []
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(stripVTControlCharacters(line)))
  return {
    child,
    lines,
    ended,
    directory,
    here: (example: string) =>
      ports.reduce((text, { port, place }) => text.replaceAll(`127.0.0.1:${port}`, place), example),
    prints: (text: string) => until(() => lines.some((line) => line.includes(text)), text),
  }
}

t.test('npm start: the printed lines create a server, and its guest reads user-data and cloud IP', async (t) => {
  const stderr = join(testDirectory(t), 'stderr')
  const command = ['sh', '-c', 'exec "$@" 2> "$0"', stderr, process.execPath, START]
  const { child, lines, ended, directory, here, prints } = await aDemo(t, command)
  await prints('/docs')
  t.same(
    lines.filter((line) => line.startsWith('{') && !line.includes('"level":"info"')),
    [],
    'no warning greets a newcomer',
  )
  const example = lines
    .slice(lines.findIndex((line) => line.startsWith('imds-api creates')))
    .filter((line) => line.startsWith('  '))
    .map((line) => line.slice(2))
    .join('\n')
  t.ok(example.startsWith(here(executed('README.md', 'api'))), 'the README has the first of the printed lines')
  const { status, stdout, stderr: errors } = spawnSync('sh', ['-euc', example], { encoding: 'utf8' })
  t.match({ status, errors }, { status: 0, errors: '' })
  const [created, userData, cloudIp, mapped, address] = stdout.trim().split('\n') as [
    string,
    string,
    string,
    string,
    string,
  ]
  t.match(JSON.parse(created), { resource_type: 'server', name: 'web', status: 'creating' })
  t.equal(userData, 'hello, guest')
  t.match(JSON.parse(cloudIp), { status: 'unmapped' })
  t.match(JSON.parse(mapped), { status: 'mapped', public_ipv4: address })
  t.equal(address, '203.0.113.1')
  const reference = spawnSync('curl', ['-sL', here('http://127.0.0.1:8170/docs')], { encoding: 'utf8' })
  t.match(reference.stdout, /swagger-ui/)

  const [demo] = readdirSync(directory) as [string]
  const postgres = Number(readFileSync(join(directory, demo, 'postgres/data/postmaster.pid'), 'utf8').split('\n', 1)[0])
  t.ok(existsSync(`/proc/${postgres}`))
  child.kill('SIGUSR1') // it would open the debugger of Node.js, which says so
  child.kill('SIGHUP')
  t.equal(await ended, 0)
  t.notOk(existsSync(`/proc/${postgres}`), 'PostgreSQL has ended')
  t.equal(readFileSync(stderr, 'utf8'), '')
  t.same(readdirSync(directory), [])
})

t.test(
  'npm start on a terminal: Ctrl-C during the start stops both and leaves nothing',
  { skip: spawnSync('script', ['--version']).status !== 0 && 'script is not installed' },
  async (t) => {
    const { child, lines, ended, directory, prints } = await aDemo(t, [
      'script',
      '--quiet',
      '--return',
      '--flush',
      '--command',
      `exec '${process.execPath}' '${START}'`,
      '/dev/null',
    ])
    await prints('first resync completed')
    child.stdin.write('\x03')
    t.equal(await ended, 0)
    t.same(
      lines.filter((line) => line.includes('"level"') || line.includes('FATAL')),
      [],
    )
    t.same(readdirSync(directory), [])
  },
)

t.test('npm start starts only the daemon with --daemon-only, and where IMDS_STORE names a store', async (t) => {
  const store = testDirectory(t)
  for (const [args, env] of [
    [['--daemon-only'], {}],
    [[], { IMDS_STORE: `file:${store}` }],
  ] as const) {
    const { child, lines, ended, prints } = await aDemo(t, [process.execPath, START, ...args], env)
    await prints('imds answers guests')
    child.kill('SIGTERM')
    t.equal(await ended, 0)
    t.same(
      lines.filter((line) => line.includes('imds-api ')),
      [],
    )
  }
  t.same(readdirSync(store), [])
  const { status, stderr } = spawnSync(process.execPath, [START, '--frob'], { encoding: 'utf8' })
  t.match({ status, stderr }, { status: 64, stderr: /--daemon-only/ })
})
