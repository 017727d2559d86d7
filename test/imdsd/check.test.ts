/**
 * `imdsd --check` finds the faults of a configuration and of the files that it names, and has no other effect.
 * test/unit/imdsd/check.test.ts has each fault.
 */
import { once } from 'node:events'
import { chmodSync, mkdirSync, readdirSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { run } from '../support/programs/processes.ts'
import { IMDS_API, IMDSCTL, IMDSD, programEnvironment } from '../support/programs/imds.ts'
import { anAuthority } from '../support/redis/tls.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { testDirectory } from '../support/test-directory.ts'

/** Runs as a user who cannot bypass file permissions: root can, unless it lacks these capabilities. */
const PLAIN_USER = process.getuid?.() === 0 ? ['setpriv', '--bounding-set=-dac_override,-dac_read_search'] : []

async function check(
  env: Record<string, string>,
  within: readonly string[] = PLAIN_USER,
): Promise<{ status: number | null; stdout: string; stderr: string }> {
  const { status, stdout, stderr } = await run([...within, process.execPath, IMDSD, '--check'], {
    env: { ...programEnvironment(), ...env },
  })
  return { status, stdout: stdout.toString(), stderr }
}

/** The printed faults, one per line. */
const faults = (stderr: string) =>
  stderr
    .split('\n')
    .filter((line) => line.startsWith('  '))
    .map((line) => line.trim())
    .sort()

t.test('--check accepts a good configuration and does not connect, listen or write', async (t) => {
  const directory = testDirectory(t, {
    state: {},
    password: 'secret\n',
    'record-keys': keyLines('k1'),
    'token-keys': `${Buffer.alloc(32).toString('base64')}\n`,
  })
  const authority = await anAuthority(directory, 'ours')
  const { certFile, keyFile } = await authority.issue('client')
  const redis = createServer().listen(0, '127.0.0.1')
  await once(redis, 'listening')
  t.teardown(() => redis.close())
  let connections = 0
  redis.on('connection', (socket) => {
    connections += 1
    socket.destroy()
  })
  const { port } = redis.address() as { port: number }
  const env = {
    IMDS_STORE: `rediss-sentinel://imds-hv1@127.0.0.1:${port}/main`,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_STATE_DIR: join(directory, 'state'),
    IMDS_LISTEN: `127.0.0.1:${port}`,
    IMDS_OPERATOR_LISTEN: `127.0.0.1:${port}`,
    IMDS_REDIS_PASSWORD_FILE: join(directory, 'password'),
    IMDS_REDIS_SENTINEL_PASSWORD_FILE: join(directory, 'password'),
    IMDS_REDIS_CA_FILE: authority.caFile,
    IMDS_REDIS_CERT_FILE: certFile,
    IMDS_REDIS_KEY_FILE: keyFile,
    IMDS_RECORD_KEYS_FILE: join(directory, 'record-keys'),
    IMDS_TOKEN_KEYS_FILE: join(directory, 'token-keys'),
    IMDS_LISTN: 'x',
  }
  const { status, stdout, stderr } = await check(env)
  t.same([status, stdout, faults(stderr)], [0, 'imds: the configuration is valid\n', []], stderr)
  t.match(stderr, /^note: unknown variables, which are ignored: IMDS_LISTN/m)
  t.equal(connections, 0)
  t.same(readdirSync(join(directory, 'state')), [])
})

t.test('--check names each fault on a line of its own, exits with 78 and prints no secret', async (t) => {
  const directory = testDirectory(t, { empty: '\nS3CRET', 'record-keys': 'S3CRET' })
  const at = (name: string) => join(directory, name)
  const { status, stdout, stderr } = await check({
    IMDS_STORE: 'rediss://r',
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_STATE_DIR: directory,
    IMDS_LOG_LEVEL: 'loud',
    IMDS_REDIS_PASSWORD_FILE: at('empty'),
    IMDS_RECORD_KEYS_FILE: at('record-keys'),
  })
  t.same([status, stdout], [78, ''])
  t.notMatch(stderr, /S3CRET/)
  t.same(faults(stderr), [
    'IMDS_LOG_LEVEL must be one of fatal, error, warn, info, debug',
    'IMDS_RECORD_KEYS_FILE has no NAME:BASE64-OF-32-BYTES in line 1',
    `IMDS_REDIS_PASSWORD_FILE ${at('empty')} has no password in its first line`,
  ])
})

t.test('a password in the URL of the store is refused by all programs and never printed', async (t) => {
  const env = {
    IMDS_STORE: 'redis://imds:S3CRET@127.0.0.1:1',
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_STATE_DIR: testDirectory(t),
    IMDS_API_DATABASE: 'postgres://imds@127.0.0.1:1/imds',
  }
  const refusal =
    / must not have a password in it, since other programs can read it: name its file in IMDS_REDIS_PASSWORD_FILE/
  for (const [status, ...command] of [
    [78, IMDSD],
    [78, IMDSD, '--check'],
    [78, IMDS_API],
    [69, IMDSCTL, 'list'],
    [69, IMDSCTL, '--store', env.IMDS_STORE, 'list'],
  ] as const) {
    const ended = await run([process.execPath, ...command], { env: { ...programEnvironment(), ...env } })
    t.match(ended, { status, stderr: refusal }, command.join(' '))
    t.notMatch(`${ended.stdout.toString()}${ended.stderr}`, 'S3CRET')
  }
})

t.test('--check names the files and directories that this user may not read or write', async (t) => {
  const directory = testDirectory(t, { password: 'secret', 'record-keys': keyLines('k1'), state: {}, store: {} })
  const at = (name: string) => join(directory, name)
  for (const name of ['password', 'record-keys']) chmodSync(at(name), 0)
  mkdirSync(at('state/own'))
  chmodSync(at('state'), 0o500)
  chmodSync(at('store'), 0o300)
  const redis = {
    IMDS_STORE: 'redis://r',
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_REDIS_PASSWORD_FILE: at('password'),
    IMDS_RECORD_KEYS_FILE: at('record-keys'),
  }
  t.same(faults((await check({ ...redis, IMDS_STATE_DIR: at('state') })).stderr), [
    `IMDS_RECORD_KEYS_FILE ${at('record-keys')} cannot be read: EACCES`,
    `IMDS_REDIS_PASSWORD_FILE ${at('password')} cannot be read: EACCES`,
    `IMDS_STATE_DIR this user cannot write ${at('state')}: EACCES`,
  ])
  t.same(faults((await check({ IMDS_STORE: `file:${at('store')}`, IMDS_STATE_DIR: at('state/missing/one') })).stderr), [
    `IMDS_STATE_DIR this user cannot write ${at('state')}: EACCES`,
    `IMDS_STORE this user cannot read ${at('store')}: EACCES`,
  ])
  t.match(await check({ IMDS_STORE: `file:${at('state')}`, IMDS_STATE_DIR: at('state/own') }), { status: 0 })
  for (const name of ['state', 'store']) chmodSync(at(name), 0o700) // so that the directory can be removed
})
