/** A real primary, its replica and three Sentinels. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { Redis } from 'ioredis'
import { until } from '../programs/daemon.ts'
import { freePort, startRedis, untilAnswers, type TestRedis } from './redis.ts'
import { shortDirectory } from '../test-directory.ts'

/** Servers that Sentinels watch. All of them stop with the test. */
export interface Watched {
  /** A `redis-sentinel:` URL of all three Sentinels, for the primary `main`. */
  readonly url: string
  /** The two servers; the first is the primary at first. */
  readonly servers: readonly [TestRedis, TestRedis]
  /** The server that all Sentinels consider the primary; undefined while they disagree. */
  primary(): Promise<TestRedis | undefined>
  /** Requests a failover from one Sentinel. */
  failover(): Promise<void>
  /** Kills all Sentinels with SIGKILL. */
  killSentinels(): Promise<void>
  /** Starts them again on their ports with their state. */
  restartSentinels(): Promise<void>
}

/** Intervals in milliseconds, a tenth of the defaults. TILT-TRIGGER avoids a pause of 30 s on a slow machine. */
const INTERVALS = [
  'INFO-PERIOD',
  '500',
  'PUBLISH-PERIOD',
  '200',
  'ASK-PERIOD',
  '200',
  'ELECTION-TIMEOUT',
  '2000',
  'MIN-LINK-RECONNECT-PERIOD',
  '500',
  'TILT-TRIGGER',
  '600000',
]

/** Starts the servers and the Sentinels, which require `password` and consider a server down after half a second. */
export async function startWatched(t: Test, password: string): Promise<Watched> {
  const withoutDelay = ['--repl-diskless-sync-delay', '0']
  const first = await startRedis(t, withoutDelay)
  const second = await startRedis(t, [...withoutDelay, '--replicaof', `127.0.0.1 ${first.port}`])
  await until(
    async () => (await second.client.info('replication')).includes('master_link_status:up'),
    'the replica to be synchronised',
  )
  const servers = [first, second] as const

  const directory = shortDirectory(t)
  const ports = [await freePort(), await freePort(), await freePort()]
  for (const port of ports)
    writeFileSync(join(directory, `${port}.conf`), configuration(port, first.port, directory, password))
  const clients = ports.map(
    (port) =>
      new Redis(port, '127.0.0.1', {
        password,
        retryStrategy: () => 50,
        maxRetriesPerRequest: null,
        enableReadyCheck: false,
      }),
  )
  for (const client of clients) client.on('error', () => undefined)
  let processes: ChildProcess[] = []
  const killSentinels = async () => {
    await Promise.all(
      processes.map(async (child) => {
        if (child.exitCode === null && child.kill('SIGKILL')) await once(child, 'exit')
      }),
    )
    processes = []
  }
  const restartSentinels = async () => {
    processes = ports.map((port) =>
      spawn('redis-server', [join(directory, `${port}.conf`), '--sentinel'], { stdio: 'ignore' }),
    )
    await Promise.all(ports.map(untilAnswers))
    for (const client of clients) await client.call('SENTINEL', 'DEBUG', ...INTERVALS)
  }
  t.teardown(async () => {
    for (const client of clients) client.disconnect()
    await killSentinels()
  })
  await restartSentinels()
  await until(
    async () =>
      (await Promise.all(clients.map((client) => client.call('SENTINEL', 'CKQUORUM', 'main').catch(() => '')))).every(
        (answer) => String(answer).startsWith('OK 3'),
      ),
    'the Sentinels to know each other',
  )
  await until(
    async () =>
      (
        await Promise.all(clients.map((client) => client.call('SENTINEL', 'REPLICAS', 'main') as Promise<unknown[]>))
      ).every(({ length }) => length === 1),
    'the Sentinels to know the replica',
    20_000,
  )
  return {
    url: `redis-sentinel://${ports.map((port) => `127.0.0.1:${port}`).join()}/main`,
    servers,
    killSentinels,
    restartSentinels,
    primary: async () => {
      const named = await Promise.all(
        clients.map(
          (client) => client.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', 'main') as Promise<[string, string]>,
        ),
      )
      return servers.find((server) => named.every(([, port]) => server.port === Number(port)))
    },
    failover: async () => {
      await clients[0]!.call('SENTINEL', 'FAILOVER', 'main')
    },
  }
}

/**
 * Starts a Sentinel that calls a server the primary `main`, whatever its role, and can never fail over: it needs a
 * second one. `epoch` is that of the last failover that it knows. Returns its URL.
 */
export async function startMistakenSentinel(t: Test, port: number, epoch = 0): Promise<string> {
  const directory = shortDirectory(t)
  const own = await freePort()
  const file = join(directory, 'sentinel.conf')
  writeFileSync(file, `${configuration(own, port, directory, 'sentinels')}sentinel config-epoch main ${epoch}\n`)
  const child = spawn('redis-server', [file, '--sentinel'], { stdio: 'ignore' })
  t.teardown(async () => {
    if (child.exitCode === null && child.kill('SIGKILL')) await once(child, 'exit')
  })
  await untilAnswers(own)
  return `redis-sentinel://127.0.0.1:${own}/main`
}

function configuration(port: number, primaryPort: number, directory: string, password: string): string {
  return `port ${port}
bind 127.0.0.1
dir ${directory}
requirepass ${password}
sentinel monitor main 127.0.0.1 ${primaryPort} 2
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 3000
`
}
