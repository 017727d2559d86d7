/**
 * The launch gate: a program that starts guests first waits until the daemon of this hypervisor serves the instance.
 */
import t, { type Test } from 'tap'
import { waitForInstance, type Publisher } from '../../src/library.ts'
import { startDaemon, type TestDaemon, until } from '../support/programs/daemon.ts'
import { run } from '../support/programs/processes.ts'
import { anInstance } from '../support/fixtures/instance.ts'
import { IMDSCTL, programEnvironment } from '../support/programs/imds.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

const LONG_MS = 60_000

const record = (revision: number, hypervisors = ['hv1']) =>
  anInstance({
    revision,
    hypervisors,
    fqdn: `r${String(revision)}.example.com`,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['127.0.0.1/8'] }],
  })

async function start(t: Test): Promise<{ store: Publisher; daemon: TestDaemon; operator: string; url: string }> {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  return { store, daemon, url: redis.url, operator: `127.0.0.1:${String(daemon.operatorPort)}` }
}

/** Runs imdsctl without a store, which `wait` with a revision does not need. */
const wait = async (operator: string, ...args: string[]) => {
  const { status, stdout, stderr } = await run([process.execPath, IMDSCTL, ...args, '--operator', operator], {
    env: programEnvironment(),
  })
  return { status, stdout: stdout.toString(), stderr }
}
const hostname = async (daemon: TestDaemon) => (await daemon.get('/latest/meta-data/hostname')).body.toString()

t.test("a wait that begins before the publish ends when the guest's next GET returns that revision", async (t) => {
  const { store, daemon, operator } = await start(t)
  for (const revision of [1, 2]) {
    const waits = [
      waitForInstance({ operator: `http://${operator}`, id: 'srv-abcde', revision, timeoutMs: LONG_MS }),
      wait(operator, 'wait', 'srv-abcde', '--revision', String(revision)),
    ] as const
    await store.put(record(revision))
    t.same(await waits[0], { kind: 'answers', revision })
    t.equal(await hostname(daemon), `r${String(revision)}.example.com`)
    t.same(await waits[1], { status: 0, stdout: `srv-abcde is served at revision ${String(revision)}\n`, stderr: '' })
  }
})

t.test('a wait that times out reports the state of the daemon and exits with 75', async (t) => {
  const { store, daemon, operator } = await start(t)
  const waitShortly = () => wait(operator, 'wait', 'srv-abcde', '--revision', '2', '--timeout', '3')
  t.match(await waitShortly(), {
    status: 75,
    stdout: '',
    stderr:
      /^imdsctl: the daemon does not serve revision 2 of srv-abcde: the store has no record of srv-abcde; not ready .*has nothing of this region/,
  })
  await store.put(record(1))
  await until(async () => (await hostname(daemon)) === 'r1.example.com', 'revision 1')
  t.match(await waitShortly(), { status: 75, stderr: /: it serves revision 1\n$/ })
  const { status, stdout } = await wait(operator, '--json', 'wait', 'srv-abcde', '--revision', '2', '--timeout', '3')
  t.equal(status, 75)
  t.match(JSON.parse(stdout), { id: 'srv-abcde', result: 'timeout', revision: 1, error: /does not serve revision 2/ })
})

t.test('an instance of another hypervisor is not served here', async (t) => {
  const { store, operator } = await start(t)
  await store.put(record(1, ['hv2']))
  await store.put(
    anInstance({
      id: 'srv-other',
      interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: ['127.0.0.2/8'] }],
    }),
  )
  t.match(await wait(operator, 'wait', 'srv-other', '--revision', '1'), { status: 0 })
  t.match(await wait(operator, 'wait', 'srv-abcde', '--revision', '1', '--timeout', '3'), {
    status: 75,
    stderr: /: the record of srv-abcde names hv2, not this hypervisor \(hv1\)\n$/,
  })
})

t.test('a wait for an invalid id or revision is a usage error', async (t) => {
  for (const args of [
    ['wait', 'no sense', '--revision', '1'],
    ['wait', 'srv-abcde'],
    ['wait', 'no sense'],
    ['wait', 'srv-abcde', '--revision', '0'],
  ]) {
    t.match(await wait('127.0.0.1:1', ...args), { status: 64 }, args.join(' '))
  }
})

t.test('without a revision, wait uses the revision in the store', async (t) => {
  const { store, operator, url } = await start(t)
  const settings = ['--store', url, '--region', 'gb1']
  t.match(await wait(operator, ...settings, 'wait', 'srv-abcde'), {
    status: 1,
    stderr: 'imdsctl: the store has no srv-abcde\n',
  })
  await store.put(record(7))
  t.match(await wait(operator, ...settings, 'wait', 'srv-abcde'), {
    status: 0,
    stdout: 'srv-abcde is served at revision 7\n',
  })
})
