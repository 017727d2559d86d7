/**
 * A Redis in its own network namespace, with a link to the hypervisor. A test uses a unix socket, so that it reaches
 * Redis even when the daemon does not.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { startChild } from '../programs/processes.ts'
import type { Hypervisor } from '../netns/namespaces.ts'
import { freePort } from './redis.ts'

/** A Redis for tests of faults. It saves its data only if a test makes it. */
export interface FaultyRedis {
  /** The URL for the daemon. */
  readonly url: string
  readonly address: string
  /** The URL for the test's publishers. */
  readonly publisherUrl: string
  readonly client: Redis
  /** The directory with dump.rdb. */
  readonly directory: string
  signal(name: 'SIGSTOP' | 'SIGCONT'): void
  /** Ends it with SIGKILL. */
  kill(): Promise<void>
  start(): Promise<void>
  /** Stops it and removes its files. */
  stop(): Promise<void>
}

const ADDRESS = '10.77.0.2'
const FORWARDER = new URL('../programs/forwarder.ts', import.meta.url).pathname

/** Starts a Redis with a link to the hypervisor. */
export async function startFaultyRedis(hypervisor: Hypervisor): Promise<FaultyRedis> {
  const { within } = await hypervisor.addGuest({
    address: `${ADDRESS}/30`,
    gateway: '10.77.0.1',
    macAddress: '02:24:19:00:77:02',
  })
  const directory = mkdtempSync(join(tmpdir(), 'imds-redis-'))
  const socketPath = join(directory, 'socket')
  const args = [
    '--bind',
    ADDRESS,
    '--protected-mode',
    'no',
    '--unixsocket',
    socketPath,
    '--dir',
    directory,
    '--save',
    '',
    '--appendonly',
    'no',
  ]
  const client = new Redis({ path: socketPath, lazyConnect: true, retryStrategy: () => 20, maxRetriesPerRequest: null })
  client.on('error', () => undefined)
  let child: ChildProcess
  const kill = async () => {
    if (child.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  }
  const start = async () => {
    child = spawn(within[0]!, [...within.slice(1), 'redis-server', ...args], { stdio: 'ignore' })
    await client.ping()
  }
  await start()
  const port = await freePort()
  const forwarder = await startChild([process.execPath, FORWARDER, String(port), socketPath])
  return {
    url: `redis://${ADDRESS}`,
    address: ADDRESS,
    publisherUrl: `redis://127.0.0.1:${port}`,
    client,
    directory,
    kill,
    start,
    signal: (name) => child.kill(name),
    stop: async () => {
      client.disconnect()
      await kill()
      await forwarder.stop()
      rmSync(directory, { recursive: true, force: true })
    },
  }
}
