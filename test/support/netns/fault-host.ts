/**
 * A host for tests of faults: four guests, each in its own namespace; the daemon in the hypervisor's namespace, on a
 * socket that outlives it; and Redis in another namespace.
 */
import { once } from 'node:events'
import type { Test } from 'tap'
import { sha256 } from '../../../src/metadata/user-data.ts'
import type { Publisher } from '../../../src/store/open.ts'
import { startDaemon, until, type TestDaemon } from '../programs/daemon.ts'
import { startFaultyRedis, type FaultyRedis } from '../redis/namespaced-redis.ts'
import { openListeningSocket } from './listening-socket.ts'
import { must } from '../programs/processes.ts'
import { anInstance } from '../fixtures/instance.ts'
import { makeHypervisor, SERVICE, type Guest, type Hypervisor, type Link } from './namespaces.ts'
import { openTestStore } from '../test-store.ts'
import { shortDirectory } from '../test-directory.ts'

/** One revision of an instance; `text` is its record as JSON. */
export interface State {
  readonly id: string
  readonly revision: number
  readonly text: string
  readonly userData: Buffer
}

/** A running host. Guests are numbered from 0. */
export interface FaultHost {
  readonly hypervisor: Hypervisor
  readonly redis: FaultyRedis
  readonly store: Publisher
  readonly guests: readonly { readonly id: string; readonly guest: Guest }[]
  /** The current daemon. */
  readonly daemon: () => TestDaemon
  /** The daemon's metrics as text. */
  metrics(): Promise<string>
  /** Returns the next state of a guest's instance without publishing it. From now on `arrived` waits for it. */
  next(n: number): State
  /** Publishes a change of every instance. */
  publish(): Promise<void>
  /** Publishes the last state of every instance again, as a control plane does after the store lost them. */
  publishAgain(): Promise<void>
  /** Waits until every guest gets the last state of its instance. */
  arrived(): Promise<void>
  /** Ends the daemon by a signal. New connections wait until the next start. */
  endDaemon(signal: 'SIGTERM' | 'SIGKILL'): Promise<void>
  /** Starts a new daemon on the same socket and state directory. `main` is the entry point of another build. */
  startDaemon(main?: string): Promise<void>
}

const GUESTS = 4
const REGION = 'gb1'
/**
 * Runs a command with the variables of sd_listen_fds(3) for the socket that it inherits. LISTEN_PID must be the
 * command's own process id.
 */
export const PASS_SOCKET = ['sh', '-c', 'export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=default; exec "$@"', 'sh']

/** Starts a host whose guests are published and served. It stops with the test. */
export async function startFaultHost(t: Test): Promise<FaultHost> {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const redis = await startFaultyRedis(hypervisor)
  t.teardown(() => redis.stop())
  const store = await openTestStore(t, { url: redis.publisherUrl, region: REGION })
  const stateDirectory = shortDirectory(t)
  const socket = await openListeningSocket(hypervisor.within, SERVICE, 80)
  t.teardown(() => socket.close())

  const guests = await Promise.all(
    Array.from({ length: GUESTS }, async (_, n) => {
      const link: Link = {
        address: `10.88.${n}.2/29`,
        gateway: `10.88.${n}.1`,
        macAddress: `02:24:19:00:01:0${n}`,
      }
      return { id: `srv-g${n}`, guest: await hypervisor.addGuest(link), link, revision: 0 }
    }),
  )
  const stateOf = (n: number): State => {
    const { id, link, revision } = guests[n]!
    const userData = Buffer.from(`#cloud-config\n# ${id} r${revision}\n`.padEnd(4096, '#'))
    const record = anInstance({
      id,
      revision,
      fqdn: `r${revision}.${id}.example.com`,
      interfaces: [{ id: `int-g${n}`, macAddress: link.macAddress, ipv4Addresses: [link.address] }],
      userData: { size: userData.length, sha256: sha256(userData) },
    })
    return { id, revision, text: JSON.stringify(record), userData }
  }
  const put = async ({ id, text, userData }: State) => {
    const { kind } = await store.put(JSON.parse(text), userData)
    if (kind !== 'published' && kind !== 'unchanged') throw new Error(`${id} was not published: ${kind}`)
  }
  const next = (n: number) => {
    guests[n]!.revision += 1
    return stateOf(n)
  }
  const all = <T>(of: (n: number) => T) => guests.map((_guest, n) => of(n))

  let daemon: TestDaemon
  const start = async (main?: string) => {
    const env = {
      IMDS_STORE: redis.url,
      IMDS_REGION: REGION,
      IMDS_HYPERVISOR: 'hv1',
      IMDS_RESYNC_SECONDS: '1',
      IMDS_STATE_DIR: stateDirectory,
    }
    daemon = await startDaemon(t, env, [...hypervisor.within, ...PASS_SOCKET], {
      fds: [socket.fd],
      ...(main !== undefined && { main }),
    })
  }
  const host: FaultHost = {
    hypervisor,
    redis,
    store,
    guests,
    next,
    daemon: () => daemon,
    metrics: async () =>
      (await must([...hypervisor.within, 'curl', '-s', `http://127.0.0.1:${daemon.operatorPort}/metrics`])).toString(),
    publish: async () => {
      await Promise.all(all(next).map(put))
    },
    publishAgain: async () => {
      await Promise.all(all(stateOf).map(put))
    },
    arrived: async () => {
      await Promise.all(
        guests.map(async ({ guest }, n) => {
          const { id, userData } = stateOf(n)
          await until(
            async () => (await guest.ask({ path: '/latest/user-data' })).body.equals(userData),
            `the change of ${id}`,
            20_000,
          )
        }),
      )
    },
    endDaemon: async (signal) => {
      daemon.process.kill(signal)
      await once(daemon.process, 'exit')
    },
    startDaemon: start,
  }
  await start()
  await host.publish()
  await host.arrived()
  return host
}
