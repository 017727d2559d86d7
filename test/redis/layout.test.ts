/**
 * The README's example for a control plane in another language is run as it stands there.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import t from 'tap'
import { openStore } from '../../src/store/open.ts'
import { startDaemon, until } from '../support/daemon.ts'
import { matchAll } from '../support/match.ts'
import { startRedis } from '../support/redis.ts'

const ROOT = new URL('../..', import.meta.url).pathname
const hasRedisCli = spawnSync('redis-cli', ['--version']).status === 0

t.test('the README\'s redis-cli example publishes and removes what a daemon answers', { skip: hasRedisCli ? false : 'redis-cli is missing' }, async (t) => {
  const readme = readFileSync(new URL('../../README.md', import.meta.url), 'utf8')
  const examples = [...readme.matchAll(/<!-- redis-cli example -->\n```sh\n(.*?)```/gs)].map(([, code]) => code!)
  t.equal(examples.length, 2, 'one publishes, one removes')
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const daemon = await startDaemon({ IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
  t.teardown(() => daemon.stop())
  const run = (code: string) => spawnSync('sh', ['-euc', code], { cwd: ROOT, env: { PATH: process.env['PATH'], REDIS: redis.url, TMPDIR: t.testdir() }, encoding: 'utf8' })

  const published = run(examples[0]!.replace('10.0.0.2/30', '127.0.0.1/8'))
  t.match(published, { status: 0, stdout: /^published\n1\n$/ }, published.stderr)
  await until(async () => (await daemon.get('/latest/user-data')).status === 200, 'the published instance')
  t.equal((await daemon.get('/latest/user-data')).body.toString(), '#cloud-config\nruncmd: [echo hello]\n')
  t.equal((await daemon.get('/latest/meta-data/instance-id')).body.toString(), 'srv-x1y2z')
  const store = await openStore({ url: redis.url, region: 'gb1' })
  t.teardown(() => store.close())
  matchAll(t, await store.list(), [{ id: 'srv-x1y2z', revision: 1, hypervisors: ['hv1'] }])

  const removed = run(examples[1]!)
  t.match(removed, { status: 0, stdout: /^removed\n2\n$/ }, removed.stderr)
  await until(async () => (await daemon.get('/latest/user-data')).status === 503, 'the removal')
})
