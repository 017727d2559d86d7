/**
 * A store with almost no usable record: the record key is wrong, or a newer control plane writes records that this
 * version cannot read.
 */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { Publisher } from '../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance, loopback } from '../support/fixtures/instance.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { startRedis } from '../support/redis/redis.ts'
import { resynced } from '../support/redis/shapes.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'

const COUNT = 20

const redis = await startRedis(t)
t.beforeEach(() => redis.client.flushall())

const address = (n: number) => `127.0.1.${n}`
const record = (n: number) =>
  anInstance({ id: `srv-n${n}`, interfaces: loopback(1, { ipv4Addresses: [`${address(n)}/8`] }) })

interface Host {
  readonly store: Publisher
  /** Starts a daemon with these record keys. */
  start(names: readonly string[], env?: Record<string, string>): Promise<TestDaemon>
}

/** A store with COUNT instances, encrypted with the key k1 unless `isPlain`, and the state directory of one host. */
async function aHost(t: Test, isPlain = false): Promise<Host> {
  const directory = testDirectory(t)
  const keysFile = join(directory, 'keys')
  writeFileSync(keysFile, keyLines('k1'))
  const store = await openTestStore(t, {
    url: redis.url,
    region: 'gb1',
    recordKeysFile: isPlain ? undefined : keysFile,
  })
  for (let n = 1; n <= COUNT; n++) await store.put(record(n))
  return {
    store,
    start: async (names, env = {}) => {
      const path = join(directory, `keys-${names.join('-')}`)
      writeFileSync(path, keyLines(...names))
      const daemon = await startDaemon(t, {
        IMDS_STORE: redis.url,
        IMDS_REGION: 'gb1',
        IMDS_HYPERVISOR: 'hv1',
        IMDS_RESYNC_SECONDS: '1',
        IMDS_STATE_DIR: join(directory, 'state'),
        ...(names.length > 0 && { IMDS_RECORD_KEYS_FILE: path }),
        ...env,
      })
      return daemon
    },
  }
}

const readiness = async (daemon: TestDaemon) => {
  const { status, body } = await daemon.operator('/readyz')
  return {
    status,
    ...(JSON.parse(body.toString()) as { ready: boolean; problem?: string; instances: number; faulty: number }),
  }
}
const isReady = (daemon: TestDaemon) => until(async () => (await readiness(daemon)).status === 200, 'readiness')
/** How many guests get each status. */
const guests = async (daemon: TestDaemon) => {
  const counts: Record<number, number> = {}
  for (let n = 1; n <= COUNT; n++) {
    const { status } = await daemon.get('/latest/meta-data/instance-id', address(n))
    counts[status] = (counts[status] ?? 0) + 1
  }
  return counts
}
const problemsLogged = (daemon: TestDaemon) =>
  daemon.log.filter(
    ({ level, msg, code }) => level === 'error' || code === 'store-unusable' || /faulty|journal/.test(msg),
  )
const UNUSABLE = 'imds_condition{code="store-unusable",severity="failure"}'

t.test('a start with a wrong key is not ready, has no view and logs one cause; the right key fixes it', async (t) => {
  const { start } = await aHost(t)
  const first = await start(['k1'])
  await isReady(first)
  t.equal((await first.operator('/firewall')).status, 200)
  await first.stop()

  const wrong = await start(['k2'])
  await resynced(wrong)
  t.match(await readiness(wrong), {
    status: 503,
    ready: false,
    connected: true,
    instances: 0,
    faulty: COUNT,
    conditions: [{ code: 'store-unusable', unready: true }],
  })
  t.match(
    await wrong.condition('store-unusable'),
    /^20 of 20 records that the store has for this hypervisor cannot be used\. Likely cause: the record keys are not those of the publishers: .*IMDS_RECORD_KEYS_FILE and restart/,
  )
  t.same(await guests(wrong), { 503: COUNT })
  t.equal((await wrong.operator('/instances/srv-n1')).status, 404, 'the launch gate is closed')
  t.equal((await wrong.operator('/firewall')).status, 503)
  t.equal(await wrong.metric(UNUSABLE), 1)
  matchAll(t, problemsLogged(wrong), [
    { msg: /^the journal of the view is not served, and stays/, reason: /not configured here: k1$/ },
    ...Array.from({ length: 5 }, () => ({
      level: 'info',
      msg: 'faulty record: this instance is not served',
      reason: 'rejected',
    })),
    { level: 'warn', code: 'store-unusable', msg: /^20 of 20 records / },
  ])
  await wrong.stop()

  const right = await start(['k1'], { IMDS_STORE: 'redis://127.0.0.1:1' })
  t.same(await guests(right), { 200: COUNT }, 'the journal was not replaced')
  await right.stop()
  const again = await start(['k1'])
  await isReady(again)
  t.same(await guests(again), { 200: COUNT })
  t.equal((await again.operator('/firewall')).status, 200)
  t.equal(await again.metric(UNUSABLE), 0)
})

t.test('E3: a few valid records among faulty ones leave the firewall rules, but not the older journal', async (t) => {
  const { store, start } = await aHost(t)
  const first = await start(['k1'])
  await isReady(first)
  await first.stop()
  const wrong = await start(['k2'])
  await resynced(wrong)
  const other = await openTestStore(t, {
    url: redis.url,
    region: 'gb1',
    recordKeysFile: join(t.testdirName, 'keys-k2'),
  })
  await store.remove('srv-n1')
  t.match(await other.put({ ...record(COUNT + 1), interfaces: record(1)['interfaces'] }), { kind: 'published' })
  await until(async () => (await readiness(wrong)).instances === 1, 'the new instance')
  await resynced(wrong)
  t.match(await readiness(wrong), { status: 503, faulty: COUNT - 1 })
  t.equal((await wrong.operator('/firewall')).status, 503)
  t.equal((await wrong.get('/latest/meta-data/instance-id', address(1))).body.toString(), 'srv-n21')
  await wrong.stop()
  const right = await start(['k1'], { IMDS_STORE: 'redis://127.0.0.1:1' })
  t.same(await guests(right), { 503: COUNT }, 'the journal would give the address back to its former owner')
  t.equal((await right.operator('/firewall')).status, 503)
  await right.stop()
  const again = await start(['k2'], { IMDS_STORE: 'redis://127.0.0.1:1' })
  t.equal((await again.get('/latest/meta-data/instance-id', address(1))).body.toString(), 'srv-n21')
  t.equal((await again.operator('/firewall')).status, 503, 'a view that no resync has confirmed replaces no rules')
})

t.test('a daemon whose keys come before the encryption does not serve the plain journal and replaces it', async (t) => {
  const { start } = await aHost(t, true)
  const before = await start([])
  await isReady(before)
  await before.stop()
  const journal = () => readFileSync(join(t.testdirName, 'state', 'view.journal'), 'latin1')
  t.match(journal(), /srv-n1/)

  const daemon = await start(['k1'])
  await resynced(daemon)
  t.match(await readiness(daemon), {
    status: 503,
    conditions: [{ text: /imdsctl encrypt --from-plain/ }],
    instances: 0,
    faulty: COUNT,
  })
  t.same(await guests(daemon), { 503: COUNT })
  t.equal((await daemon.operator('/firewall')).status, 503, 'the firewall keeps its rules')
  t.match(journal(), /srv-n1/, 'the file stays for a start without the keys')

  const publisher = await openTestStore(t, {
    url: redis.url,
    region: 'gb1',
    recordKeysFile: join(t.testdirName, 'keys-k1'),
  })
  for (let n = 1; n <= COUNT; n++) t.same(await publisher.encrypt(`srv-n${n}`, true), { kind: 'encrypted' })
  await isReady(daemon)
  await until(async () => (await readiness(daemon)).instances === COUNT, 'all instances')
  const directory = join(t.testdirName, 'state')
  await daemon.stop() // so that no temporary file disappears while it is read
  t.ok(journal().includes('imds1 k1 0\n'), 'the encrypted journal')
  for (const name of readdirSync(directory)) t.notMatch(readFileSync(join(directory, name), 'latin1'), /srv-n/)
})

t.test('the rolling restart of docs/operations/jobs.md waits for instances and fails with the reason', async (t) => {
  const example = executed('docs/operations/jobs.md', 'rolling restart')
  const { start } = await aHost(t)
  const socket = `/tmp/imds-rolling-${process.pid}.sock`
  let daemon = await start(['k1'], { IMDS_OPERATOR_SOCKET: socket })
  await isReady(daemon)
  let count = 0
  for (const [names, seconds, status] of [
    [['k1'], 60, 0],
    [['k2'], 5, 1],
  ] as const) {
    const [requested, restarted] = [
      join(t.testdirName, `requested-${++count}`),
      join(t.testdirName, `restarted-${count}`),
    ]
    const code = example
      .replace('/run/imds/operator.sock', socket)
      .replace('seq 60', `seq ${seconds}`)
      .replace('systemctl restart imds', `touch ${requested}; until [ -e ${restarted} ]; do sleep 0.1; done`)
    const rollout = run(['sh', '-euc', code])
    await until(() => existsSync(requested), 'the restart')
    await daemon.stop()
    daemon = await start(names, { IMDS_OPERATOR_SOCKET: socket })
    writeFileSync(restarted, '')
    const { status: exitStatus, stdout, stderr } = await rollout
    t.equal(exitStatus, status, stderr)
    if (status === 0) t.same(stdout.toString(), '')
    else
      t.match(JSON.parse(stdout.toString()), {
        ready: false,
        conditions: [{ text: /record keys are not those of the publishers/ }],
      })
  }
})
