/**
 * Several hypervisors on one store, each with a daemon on a socket that outlives it, and a guest that asks without a
 * pause.
 */
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import type { Publisher } from '../../../src/store/open.ts'
import { openListeningSocket } from '../netns/listening-socket.ts'
import { anInstance } from '../fixtures/instance.ts'
import { request, startDaemon, until, type TestDaemon } from '../programs/daemon.ts'
import { freePort } from './redis.ts'
import { shortDirectory } from '../test-directory.ts'

/** A hypervisor with one guest. */
export interface Member {
  readonly name: string
  readonly daemon: () => TestDaemon
  restart(): Promise<void>
}

/** Hypervisors that run. */
export interface Fleet {
  readonly members: readonly Member[]
  /** Publishes the next revision of each guest's instance, and waits until the guests get it. */
  publish(store: Publisher): Promise<void>
  /** Ends the guests' requests, each of which had its own connection. Returns those without the right response. */
  failures(): Promise<readonly unknown[]>
}

/**
 * Runs a command with the variables of sd_listen_fds(3) for the socket that it inherits. LISTEN_PID must be the
 * command's own process id.
 */
export const PASS_SOCKET = ['sh', '-c', 'export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=default; exec "$@"', 'sh']

/** Starts hypervisors whose guests get revision 1, and lets the guests ask. All ends with the test. */
export async function startFleet(
  t: Test,
  names: readonly string[],
  store: Publisher,
  envOf: (name: string) => Readonly<Record<string, string>>,
): Promise<Fleet> {
  const directory = shortDirectory(t)
  let revision = 0
  const ports = new Map<string, number>()
  const addressOf = (name: string) => `127.0.9.${names.indexOf(name) + 2}`
  const hostname = (name: string) => `r${revision}.${name}.example.com`
  const get = (name: string, path: string) => request(ports.get(name)!, `/latest/meta-data/${path}`, addressOf(name))

  const start = async (name: string): Promise<Member> => {
    const port = await freePort()
    ports.set(name, port)
    const socket = await openListeningSocket(['env'], '127.0.0.1', port)
    t.teardown(() => socket.close())
    mkdirSync(join(directory, name))
    const env: Readonly<Record<string, string>> = {
      IMDS_HYPERVISOR: name,
      IMDS_REGION: 'gb1',
      IMDS_STATE_DIR: join(directory, name),
      IMDS_OPERATOR_SOCKET: join(directory, `${name}.sock`),
      ...envOf(name),
    }
    const begin = () => startDaemon(t, env, PASS_SOCKET, { fds: [socket.fd] })
    let daemon = await begin()
    return {
      name,
      daemon: () => daemon,
      restart: async () => {
        daemon.process.kill('SIGTERM')
        await once(daemon.process, 'exit')
        daemon = await begin()
      },
    }
  }
  const members: Member[] = []
  for (const name of names) members.push(await start(name))

  const publish = async (to: Publisher) => {
    revision += 1
    for (const name of names) {
      const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${addressOf(name)}/8`] }]
      const put = await to.put(
        anInstance({ id: `srv-${name}`, revision, fqdn: hostname(name), interfaces, hypervisors: [name] }),
      )
      if (put.kind !== 'published') throw new Error(`srv-${name} was not published: ${put.kind}`)
    }
    for (const name of names)
      await until(
        async () => (await get(name, 'hostname')).body.toString() === hostname(name),
        `revision ${revision} on ${name}`,
      )
  }
  await publish(store)

  let isStopped = false
  const failures: unknown[] = []
  const guests = names.map(async (name) => {
    for (let requests = 0; !isStopped || requests < 100; requests++) {
      const answer = await get(name, 'instance-id').catch((error: unknown) => error as Error)
      if (answer instanceof Error) failures.push(answer)
      else if (answer.status !== 200 || answer.body.toString() !== `srv-${name}`)
        failures.push({ name, status: answer.status, body: answer.body.toString() })
      await sleep(10) // the machine has other work
    }
  })
  const stopGuests = async () => {
    isStopped = true
    await Promise.all(guests)
  }
  t.teardown(stopGuests)

  return {
    members,
    publish,
    failures: async () => {
      await stopGuests()
      return failures
    },
  }
}
