/**
 * The launch gate: a program that starts guests first waits until the daemon of this hypervisor serves the instance.
 * test/imdsd/operator-client.test.ts has every answer of a daemon to a wait.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { waitForInstance } from '../../src/library.ts'
import { startDaemon, unlessReset, until } from '../support/programs/daemon.ts'
import { imdsctl } from '../support/programs/imdsctl.ts'
import { aLocalInstance } from '../support/fixtures/instance.ts'
import { startRedis } from '../support/redis/redis.ts'
import { openTestStore } from '../support/test-store.ts'

t.test("a wait that begins before the publish ends when the guest's next GET returns that revision", async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  const operator = daemon.operatorSocket
  /** Without a store, which `wait` with a revision does not need. */
  const wait = (...args: string[]) => imdsctl(['wait', 'srv-n1', ...args, '--operator', operator])
  const settings = ['--store', redis.url, '--region', 'gb1']
  t.match(await wait(...settings), { status: 1, stderr: 'imdsctl: the store has no srv-n1\n' })
  for (const revision of [1, 2]) {
    const waits = [
      waitForInstance({ operator, id: 'srv-n1', revision, timeoutMs: 60_000 }),
      wait('--revision', String(revision)),
    ] as const
    await store.put(aLocalInstance(1, revision))
    t.same(await waits[0], { kind: 'answers', revision })
    t.equal((await daemon.get('/latest/meta-data/hostname')).body.toString(), `r${revision}.n1.example.com`)
    t.same(await waits[1], { status: 0, stdout: `srv-n1 is served at revision ${revision}\n`, stderr: '' })
  }
  t.match(await wait(...settings), { status: 0, stdout: 'srv-n1 is served at revision 2\n' }, 'that of the store')
  t.match(await wait('--revision', '3', '--timeout', '3'), {
    status: 75,
    stdout: '',
    stderr: 'imdsctl: the daemon does not serve revision 3 of srv-n1: it serves revision 2\n',
  })
  const { status, stdout } = await wait('--json', '--revision', '3', '--timeout', '3')
  t.equal(status, 75)
  t.match(JSON.parse(stdout), { id: 'srv-n1', result: 'timeout', revision: 2, error: /does not serve revision 3/ })
  await store.put(aLocalInstance(1, 3, { hypervisors: ['hv2'] }))
  await until(async () => (await unlessReset(daemon.get('/')))?.status === 503, 'the move')
  t.match(await wait('--revision', '3', '--timeout', '3'), {
    status: 75,
    stderr: /: the record of srv-n1 names hv2, not this hypervisor \(hv1\)\n$/,
  })
})

t.test('sealed user-data is removed from view and journal, and a wait for the seal ends then', async (t) => {
  const redis = await startRedis(t)
  const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
  await store.put(aLocalInstance(1), Buffer.from('S3CRET'))
  const daemon = await startDaemon(t, {
    IMDS_STORE: redis.url,
    IMDS_REGION: 'gb1',
    IMDS_HYPERVISOR: 'hv1',
    IMDS_RESYNC_SECONDS: '3600',
  })
  const journal = () => readFileSync(join(daemon.directory, 'view.journal'), 'latin1')
  const rewrites = () => daemon.metric('imds_journal_rewrites_total{result="written"}')
  await until(async () => (await rewrites()) > 0 && journal().includes('S3CRET'), 'the journal')
  await store.seal('srv-n1')
  t.match(await imdsctl(['wait', 'srv-n1', '--revision', '2', '--operator', daemon.operatorSocket]), { status: 0 })
  t.equal((await daemon.get('/latest/user-data')).status, 404)
  await until(() => !journal().includes('S3CRET'), 'the seal in the journal', 40_000)
})

t.test('a wait for an invalid id or revision is a usage error', async (t) => {
  for (const args of [['no sense', '--revision', '1'], ['srv-abcde'], ['srv-abcde', '--revision', '0']])
    t.match(await imdsctl(['wait', ...args, '--operator', 'unix:/nowhere']), { status: 64 }, args.join(' '))
})
