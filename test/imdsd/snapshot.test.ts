/**
 * The snapshot at a start (contract G1, G2): the daemon serves it until the store answers.
 */
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { chownSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { runDaemon, startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const ID = '/latest/meta-data/instance-id'
const local = (n: number, revision = 1) =>
  anInstance({
    id: `srv-n${String(n)}`,
    revision,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`127.0.0.${String(n)}/8`] }],
  })

interface Host {
  redis: TestRedis
  store: Publisher
  env: Record<string, string>
  path: string
}

async function aHost(t: Test): Promise<Host> {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const directory = testDirectory(t)
  return {
    redis,
    store,
    env: {
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_HYPERVISOR: 'hv1',
      IMDS_STATE_DIR: directory,
      IMDS_RESYNC_SECONDS: '1',
    },
    path: join(directory, 'view.snapshot'),
  }
}

async function kill(daemon: TestDaemon): Promise<void> {
  daemon.process.kill('SIGKILL')
  await once(daemon.process, 'exit')
}

/** Runs a daemon until its snapshot has two instances, then kills it. */
async function writeSnapshot(t: Test, { store, env, path }: Host): Promise<void> {
  const first = await startDaemon(t, env)
  await store.put(local(1), Buffer.from([0, 255, 10]))
  await store.put(local(2))
  await until(
    async () => (await first.get(ID)).status === 200 && (await first.get(ID, '127.0.0.2')).status === 200,
    'both instances',
  )
  t.ok(existsSync(path))
  await kill(first)
}

t.test('G1: a start without Redis serves the snapshot at the first request; readyz reports it', async (t) => {
  const host = await aHost(t)
  await writeSnapshot(t, host)
  await host.redis.kill()
  const second = await startDaemon(t, host.env)
  t.equal((await second.get(ID)).body.toString(), 'srv-n1')
  t.ok((await second.get('/latest/user-data')).body.equals(Buffer.from([0, 255, 10])))
  const answer = await second.operator('/readyz')
  t.equal(answer.status, 503)
  const state = JSON.parse(answer.body.toString()) as { viewAgeSeconds: number }
  t.match(state, { ready: false, connected: false, instances: 2 })
  t.ok(state.viewAgeSeconds > 0 && state.viewAgeSeconds < 60)
  t.match(
    second.log.find(({ msg }) => msg === 'listening'),
    { fromSnapshot: 2 },
  )
})

t.test('changes and removals made while the daemon was down arrive with the first resync', async (t) => {
  const host = await aHost(t)
  await writeSnapshot(t, host)
  await host.store.put(local(1, 2), 'none')
  await host.store.remove('srv-n2')
  const second = await startDaemon(t, host.env)
  await until(async () => (await second.operator('/readyz')).status === 200, 'readiness')
  t.equal((await second.get('/latest/user-data')).status, 404)
  t.equal((await second.get(ID, '127.0.0.2')).status, 503)
})

t.test('a removed instance is removed from the snapshot and the journal too', async (t) => {
  const host = await aHost(t)
  await startDaemon(t, host.env)
  const files = () =>
    // a file may go meanwhile
    execFileSync('sh', ['-c', 'cat view.* 2> /dev/null || true'], { cwd: dirname(host.path) }).toString('latin1')
  await host.store.put(local(1), Buffer.from('S3CRET'))
  await until(() => files().includes('S3CRET'), 'the instance on disk')
  await host.store.remove('srv-n1')
  await until(() => !/S3CRET|srv-n1/.test(files()), 'the removal from the files', 60_000)
})

t.test('E3: a start does not serve a journal that it cannot flush: a power failure could cut it', async (t) => {
  const host = await aHost(t)
  await writeSnapshot(t, host) // the second instance is in the journal
  await host.redis.kill()
  const second = await startDaemon(t, host.env, [
    'strace',
    '--daemonize',
    '--follow-forks',
    '--inject=fdatasync:error=EIO',
    '--output=/dev/null',
  ])
  t.match(
    second.log.find(({ msg }) => msg.startsWith('the snapshot cannot be read')),
    { err: { code: 'EIO' } },
  )
  t.equal((await second.get(ID)).status, 503)
})

t.test('a torn snapshot is deleted and not served: 503 until the store answers', async (t) => {
  const host = await aHost(t)
  await writeSnapshot(t, host)
  writeFileSync(host.path, readFileSync(host.path).subarray(0, -10))
  await host.redis.kill()
  const second = await startDaemon(t, host.env)
  t.equal((await second.get(ID)).status, 503)
  matchAll(
    t,
    second.log.filter(({ msg }) => msg.includes('snapshot')),
    [{ level: 'warn', msg: /rejected and deleted/, reason: /torn/ }],
  )
  t.strictSame(readdirSync(dirname(host.path)), ['token-key', 'view.lock'])
})

t.test(
  'the snapshot of another hypervisor is not served and stays: with the right name it is served again',
  async (t) => {
    const host = await aHost(t)
    await writeSnapshot(t, host)
    const second = await startDaemon(t, { ...host.env, IMDS_HYPERVISOR: 'hv2' })
    await until(async () => (await second.operator('/readyz')).status === 200, 'readiness')
    t.equal((await second.get(ID)).status, 503)
    matchAll(
      t,
      second.log.filter(({ msg }) => msg.includes('snapshot')),
      [{ level: 'warn', msg: /stays where it is/, reason: /hypervisor/ }],
    )
    second.process.kill('SIGTERM')
    await once(second.process, 'exit')
    await host.redis.kill()
    const third = await startDaemon(t, host.env)
    t.equal((await third.get(ID)).body.toString(), 'srv-n1')
  },
)

t.test('a clean stop writes the latest change to the snapshot', async (t) => {
  const host = await aHost(t)
  const daemon = await startDaemon(t, host.env)
  await host.store.put(local(1), Buffer.from('latest'))
  await until(async () => (await daemon.get(ID)).status === 200, 'the instance')
  daemon.process.kill('SIGTERM')
  await once(daemon.process, 'exit')
  t.match(readFileSync(host.path, 'latin1'), /latest/)
  await daemon.stop()
})

t.test('a second daemon with the same state directory is refused, and leaves the files of the first', async (t) => {
  const host = await aHost(t)
  const first = await startDaemon(t, host.env)
  await host.store.put(local(1))
  await until(async () => (await first.get(ID)).status === 200, 'the instance')
  writeFileSync(`${host.path}.2.tmp`, 'a start deletes it')
  const { status, stdout } = await runDaemon({
    ...host.env,
    IMDS_LISTEN: '127.0.0.1:0',
    IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
  })
  t.equal(status, 1)
  t.match(stdout, `IMDS_STATE_DIR: another imdsd uses ${dirname(host.path)}`)
  t.ok(existsSync(`${host.path}.2.tmp`))

  await kill(first)
  const next = await startDaemon(t, host.env)
  t.match(
    next.log.find(({ msg }) => msg === 'listening'),
    { fromSnapshot: 1 },
  )
})

t.test(
  'root starts no daemon in a state directory of another user',
  { skip: process.getuid?.() === 0 ? false : 'needs root' },
  async (t) => {
    const directory = testDirectory(t)
    chownSync(directory, 65_534, 65_534)
    const { status, stdout } = await runDaemon({ IMDS_STORE: `file:${directory}/store`, IMDS_STATE_DIR: directory })
    t.equal(status, 1)
    t.match(
      stdout,
      `IMDS_STATE_DIR: ${directory} belongs to the user with the id 65534: run imdsd as that user, not as root`,
    )
    t.strictSame(readdirSync(directory), [])
  },
)
