/**
 * The journal at a start (contract G1, G2): the daemon serves it until the store answers. test/unit/imdsd/journal/ has which
 * journals are served, and what a write leaves.
 */
import { once } from 'node:events'
import { chownSync, existsSync, readdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import t, { type Test } from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { runDaemon, startDaemon, until } from '../support/programs/daemon.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis, type TestRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { openTestStore } from '../support/test-store.ts'

const ID = '/latest/meta-data/instance-id'

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
    path: join(directory, 'view.journal'),
  }
}

/** Runs a daemon until its journal has two instances, then kills it. */
async function writeJournal(t: Test, { store, env, path }: Host): Promise<void> {
  const first = await startDaemon(t, env)
  await store.put(aLocalInstance(1), Buffer.from([0, 255, 10]))
  await store.put(aLocalInstance(2))
  await until(
    async () => (await first.get(ID)).status === 200 && (await first.get(ID, '127.0.0.2')).status === 200,
    'both instances',
  )
  t.ok(existsSync(path))
  first.process.kill('SIGKILL')
  await once(first.process, 'exit')
}

t.test('G2: without Redis and a journal, guests get 503 with Retry-After and never 404', async (t) => {
  const env = { IMDS_STORE: 'redis://127.0.0.1:1', IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' }
  const daemon = await startDaemon(t, env)
  for (const path of ['/', ID, '/latest/user-data', '/nothing'])
    t.match(await daemon.get(path), { status: 503, headers: { 'retry-after': '1' } })
  t.equal((await daemon.operator('/livez')).status, 200)
  t.match(JSON.parse((await daemon.operator('/readyz')).body.toString()), { ready: false, connected: false })
  t.match(await daemon.condition('store-lost'), /ECONNREFUSED/)
})

t.test('G1: a start without Redis serves the journal at the first request; readyz reports it', async (t) => {
  const host = await aHost(t)
  await writeJournal(t, host)
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
    { fromJournal: 2 },
  )
  const third = await runDaemon({ ...host.env, IMDS_LISTEN: '127.0.0.1:0', IMDS_OPERATOR_LISTEN: '127.0.0.1:0' })
  t.match(third, { status: 1, stdout: `IMDS_STATE_DIR: another imdsd uses ${dirname(host.path)}, or` })
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
