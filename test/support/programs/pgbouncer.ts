/** Debian's pgBouncer in front of a PostgreSQL server, with its default settings besides `pool_mode`. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import type { Test } from 'tap'
import { freePort } from '../redis/redis.ts'
import { shortDirectory } from '../test-directory.ts'
import { until } from './daemon.ts'
import type { TestPostgres } from './postgres.ts'

const NOBODY = 65_534

/** Starts one that stops with the test. Returns the URL of its database. */
export async function startPgBouncer(
  t: Test,
  postgres: Pick<TestPostgres, 'port'>,
  poolMode: 'session' | 'transaction',
): Promise<string> {
  const [directory, port] = [shortDirectory(t), await freePort()]
  chmodSync(directory, 0o711)
  const file = join(directory, 'pgbouncer.ini')
  writeFileSync(
    file,
    `[databases]
imds = host=127.0.0.1 port=${postgres.port} dbname=postgres user=imds
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
auth_type = any
pool_mode = ${poolMode}
unix_socket_dir =
`,
  )
  const user = process.getuid?.() === 0 ? { uid: NOBODY, gid: NOBODY } : {}
  const child = spawn('/usr/sbin/pgbouncer', ['-q', file], { ...user, cwd: '/', stdio: 'ignore' })
  t.teardown(async () => {
    if (child.exitCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  })
  const url = `postgres://imds@127.0.0.1:${port}/imds`
  await until(async () => {
    const client = new pg.Client(url)
    return client.connect().then(
      () => client.end().then(() => true),
      () => false,
    )
  }, 'pgBouncer to start')
  return url
}
