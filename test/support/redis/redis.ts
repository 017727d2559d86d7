/** A real redis-server for one test, with its own process, port and temporary directory. */
import { spawn, type ChildProcess } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis } from 'ioredis'
import type { Test } from 'tap'

/** A running redis-server. */
export interface TestRedis {
  readonly port: number
  readonly url: string
  /** The test's own connection. */
  readonly client: Redis
  readonly process: () => ChildProcess
  /** Kills the server with SIGKILL. Its port and directory stay. */
  kill(): Promise<void>
  /** Starts it again on the same port and directory. */
  restart(): Promise<void>
  stop(): Promise<void>
}

/**
 * Starts a redis-server on 127.0.0.1, which stops with the test, if there is one. It saves no data, unless `args`, which
 * are added to its command line, change that.
 */
export async function startRedis(
  t: Pick<Test, 'teardown'> | undefined,
  args: readonly string[] = [],
): Promise<TestRedis> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-redis-'))
  const port = await freePort()
  let child: ChildProcess
  const start = async () => {
    child = spawn(
      'redis-server',
      ['--port', String(port), '--bind', '127.0.0.1', '--dir', directory, '--save', '', '--appendonly', 'no', ...args],
      { stdio: 'ignore' },
    )
    await untilAnswers(port)
  }
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
  await start()
  const client = new Redis(port, '127.0.0.1', { retryStrategy: () => 50, maxRetriesPerRequest: null })
  client.on('error', () => undefined)
  const stop = async () => {
    client.disconnect()
    await kill()
    rmSync(directory, { recursive: true, force: true })
  }
  t?.teardown(stop)
  return {
    port,
    url: `redis://127.0.0.1:${port}`,
    client,
    process: () => child,
    kill,
    restart: start,
    stop,
  }
}

/** Processes that run at the same time use different ranges of ports. */
const PORTS = 1_000
const FIRST = 12_000 + (process.pid % 20) * PORTS
const returned = new Set<number>()

/**
 * A free TCP port of 127.0.0.1, below the range for outgoing connections. No port is returned again before all others.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    if (returned.size === PORTS) returned.clear() // the files before have ended
    const port = FIRST + randomInt(PORTS)
    if (returned.has(port)) continue
    returned.add(port)
    const server = createServer().listen(port, '127.0.0.1')
    if (
      await once(server, 'listening').then(
        () => true,
        () => false,
      )
    ) {
      server.close()
      await once(server, 'close')
      return port
    }
  }
}

/**
 * Waits until a server on a port of 127.0.0.1 answers a PING, if only with an error. (It listens before it has loaded
 * its files.)
 */
export async function untilAnswers(port: number): Promise<void> {
  for (let i = 0; i < 1000; i++) {
    const answered = await new Promise<boolean>((resolve) => {
      const socket = connect(port, '127.0.0.1', () => socket.write('PING\r\n'))
      const end = (hasAnswered: boolean) => {
        socket.destroy()
        resolve(hasAnswered)
      }
      socket.on('data', () => end(true))
      for (const event of ['error', 'close']) socket.on(event, () => end(false))
    })
    if (answered) return
    await sleep(10)
  }
  throw new Error(`nothing answers on port ${port}`)
}

/** How many bytes a server has sent since its start. */
export async function sentBy({ client }: TestRedis): Promise<number> {
  return Number(/total_net_output_bytes:(\d+)/.exec(await client.info('stats'))?.[1])
}
