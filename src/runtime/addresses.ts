/**
 * Notices when this host loses the address of a listener.
 *
 * A socket stays bound to an address that is removed (systemd's FreeBind= makes one for an address that was never there), so the daemon and its
 * unit look well while no packet of a guest arrives. Not seen: an address that `net.ipv4.ip_nonlocal_bind` lets programs bind to.
 */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { isIPv6 } from 'node:net'
import { Address6 } from 'ip-address'
import type { Logger } from 'pino'
import { isOneAddress } from '../metadata/address.ts'

/** How often a running daemon looks, in ms. */
const CHECK_INTERVAL_MS = 2_000

/** Looks for the addresses of listeners. */
export class AddressWatch {
  readonly #addresses: readonly string[]
  readonly #log: Logger
  #missing: readonly string[] = []
  #timer: NodeJS.Timeout | undefined

  /** `hosts`: what the listeners are bound to. A wildcard needs no address of its own. */
  constructor(hosts: readonly string[], log: Logger) {
    this.#addresses = [...new Set(hosts.filter(isOneAddress))]
    this.#log = log
  }

  /** The addresses that no interface had at the last look. */
  missing(): readonly string[] {
    return this.#missing
  }

  /** Looks now, and from then on every 2 s. Resolves after the first look. */
  async start(): Promise<void> {
    this.#timer = setInterval(() => { void this.#look() }, CHECK_INTERVAL_MS)
    await this.#look()
  }

  /** Stops looking. */
  stop(): void {
    clearInterval(this.#timer)
  }

  async #look(): Promise<void> {
    const were = this.#missing
    const are: string[] = []
    for (const address of this.#addresses) if (!await isOurs(address)) are.push(address)
    this.#missing = are
    for (const address of are) if (!were.includes(address)) this.#log.error({ address }, formatMissing(address))
    for (const address of were) if (!are.includes(address)) this.#log.info({ address }, 'the address is back')
  }
}

/** Why guests cannot reach a listener, in words that name the remedy. */
export function formatMissing(address: string): string {
  return `no guest can reach imds at ${address}, since no interface of this host has that address any more: put it back (systemctl restart imds-address)`
}

/**
 * Does the kernel take packets to this address for ours? It says so when a socket is bound to it, but refuses an address of a VRF: its tables of
 * addresses are read then. (Not Node's list of interfaces: it leaves out a bridge without ports, and needs a kind of socket that the unit forbids.)
 */
async function isOurs(address: string): Promise<boolean> {
  const socket = createSocket(isIPv6(address) ? 'udp6' : 'udp4')
  try {
    const bound = once(socket, 'listening')
    socket.bind({ address, port: 0 })
    await bound
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EADDRNOTAVAIL') return true // such as without a free port: it cannot be found out
    return isIPv6(address) ? hasIpv6(await tableOf('if_inet6'), address) : hasIpv4(await tableOf('fib_trie'), address)
  } finally {
    socket.close()
  }
}

async function tableOf(name: string): Promise<string> {
  return readFile(`/proc/self/net/${name}`, 'utf8').catch(() => '')
}

function hasIpv4(trie: string, address: string): boolean {
  return new RegExp(`\\|-- ${RegExp.escape(address)}\\n\\s+/32 host LOCAL`).test(trie)
}

/** Each line begins with the 32 hexadecimal digits of an address. */
function hasIpv6(table: string, address: string): boolean {
  const digits = new Address6(address).canonicalForm().replaceAll(':', '')
  return table.split('\n').some((line) => line.startsWith(digits))
}
