/** A hypervisor's namespace with a daemon on a file store, and guests that a test adds and publishes. */
import type { Test } from 'tap'
import { openStore, type UserDataChange } from '../../../src/store/open.ts'
import { startDaemon, until } from '../programs/daemon.ts'
import { makeHypervisor, SERVICE, type Guest } from './namespaces.ts'
import { shortDirectory } from '../test-directory.ts'

/** The first interface of an instance, as in its record. */
export interface FirstInterface {
  readonly id: string
  readonly macAddress: string
  readonly ipv4Addresses: readonly string[]
}

/** A running host. */
export interface Host {
  /** Adds a guest without a record. Returns it with the interface that its record needs. `device`: default eth0. */
  addGuest(device?: string): Promise<{ guest: Guest; first: FirstInterface }>
  /** Publishes a new instance and waits until the daemon serves it. */
  put(record: Record<string, unknown>, userData: UserDataChange): Promise<void>
  /** GET of the operator API, on the unix socket. */
  operator(path: string): Promise<string>
  /** The metrics lines that count requests without a 200, except the lines in `before`. */
  refusals(before?: readonly string[]): Promise<string[]>
}

/** Starts a host that stops with the test. */
export async function startHost(t: Test): Promise<Host> {
  const hypervisor = await makeHypervisor()
  t.teardown(() => hypervisor.remove())
  const directory = shortDirectory(t)
  const url = `file:${directory}`
  const store = await openStore({ url })
  const daemon = await startDaemon(t, { IMDS_STORE: url, IMDS_LISTEN: `${SERVICE}:80` }, hypervisor.within)
  const operator = async (path: string) => (await daemon.operator(path)).body.toString()
  let guests = 0

  return {
    addGuest: async (guestDevice = 'eth0') => {
      const n = String(++guests)
      const link = {
        address: `10.88.${n}.2/29`,
        gateway: `10.88.${n}.1`,
        macAddress: `02:24:19:00:01:0${n}`,
        guestDevice,
      }
      return {
        guest: await hypervisor.addGuest(link),
        first: { id: `int-aaaa${n}`, macAddress: link.macAddress, ipv4Addresses: [link.address] },
      }
    },
    put: async (record, userData) => {
      const { kind } = await store.put(record, userData)
      if (kind !== 'published') throw new Error(`the record of ${String(record['id'])} was not published: ${kind}`)
      const { length } = await store.list()
      await until(
        async () => (JSON.parse(await operator('/readyz')) as { instances: number }).instances === length,
        'the record to be served',
      )
    },
    operator,
    refusals: async (before = []) =>
      (await operator('/metrics'))
        .split('\n')
        .filter(
          (line) =>
            line.startsWith('imds_requests_total{') && !line.includes('reason="served"') && !before.includes(line),
        ),
  }
}
