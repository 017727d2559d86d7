/** Executes the examples of docs/redis-layout.md for publishers in other languages. */
import { spawnSync } from 'node:child_process'
import { symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { parse } from 'yaml'
import { startDaemon, unlessReset, until } from '../support/programs/daemon.ts'
import { matchAll } from '../support/fixtures/match.ts'
import { programEnvironment } from '../support/programs/imds.ts'
import { startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { executed } from '../tools/documents.ts'
import { openTestStore } from '../support/test-store.ts'
import { without } from '../support/packages.ts'

const ROOT = new URL('../..', import.meta.url).pathname
t.test(
  'the redis-cli examples of docs/redis-layout.md publish and remove what a daemon serves',
  { skip: without('redis-cli', 'jq') },
  async (t) => {
    const redis = await startRedis(t)
    const daemon = await startDaemon(t, { IMDS_STORE: redis.url, IMDS_REGION: 'gb1', IMDS_HYPERVISOR: 'hv1' })
    const directory = testDirectory(t)
    symlinkSync(`${ROOT}src`, join(directory, 'src'))
    writeFileSync(join(directory, 'user-data'), '#cloud-config\nruncmd: [echo hello]\n')
    const record = JSON.stringify(parse(executed('docs/record.md', 'example')))
    writeFileSync(join(directory, 'srv-x1y2z.json'), record.replace('10.0.0.2/30', '127.0.0.1/8'))
    const run = (code: string) =>
      spawnSync('sh', ['-euc', code], {
        cwd: directory,
        env: { ...programEnvironment(), REDIS: redis.url },
        encoding: 'utf8',
      })

    const published = run(executed('docs/redis-layout.md', 'redis-cli publish'))
    t.match(published, { status: 0, stdout: /^published\n1\n\d{16}\n$/ }, published.stderr)
    await until(async () => (await daemon.get('/latest/user-data')).status === 200, 'the published instance')
    t.equal((await daemon.get('/latest/user-data')).body.toString(), '#cloud-config\nruncmd: [echo hello]\n')
    t.equal((await daemon.get('/latest/meta-data/instance-id')).body.toString(), 'srv-x1y2z')
    const store = await openTestStore(t, { url: redis.url, region: 'gb1' })
    matchAll(t, await store.list(), [{ id: 'srv-x1y2z', revision: 1, hypervisors: ['hv1'] }])

    const removed = run(executed('docs/redis-layout.md', 'redis-cli remove'))
    t.match(removed, { status: 0, stdout: /^removed\n2\n\d{16}\n$/ }, removed.stderr)
    await until(async () => (await unlessReset(daemon.get('/latest/user-data')))?.status === 503, 'the removal')
  },
)
