/**
 * Detects that this hypervisor has lost the address of a listener.
 *
 * A socket stays bound when its address is removed, and systemd's FreeBind= binds to an address that no interface has.
 * So the daemon and its unit look healthy while no packet of a guest arrives. If `net.ipv4.ip_nonlocal_bind` is set,
 * the loss of an address is not detected.
 */
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { isIPv6 } from 'node:net'
import { Address6 } from 'ip-address'
import { isOneAddress } from '../metadata/address.ts'

const CHECK_INTERVAL_MS = 2_000

export interface AddressWatch {
  /** The addresses that no interface had at the last check. */
  missing(): readonly string[]
  /** Checks now and every 2 s. Resolves after the first check. */
  start(): Promise<void>
  stop(): void
}

/**
 * `hosts`: what the listeners are bound to. Wildcards (0.0.0.0, ::) are not checked. `onChange`: an address has gone or
 * is back.
 */
export function buildAddressWatch(hosts: readonly string[], onChange: () => void): AddressWatch {
  const addresses = [...new Set(hosts.filter(isOneAddress))]
  let missing: readonly string[] = []
  let timer: NodeJS.Timeout | undefined

  const check = async () => {
    const before = missing
    const now: string[] = []
    for (const address of addresses) if (!(await isOurs(address))) now.push(address)
    missing = now
    if (now.join() !== before.join()) onChange()
  }
  return {
    missing: () => missing,
    start: async () => {
      timer = setInterval(() => void check(), CHECK_INTERVAL_MS)
      await check()
    },
    stop: () => clearInterval(timer),
  }
}

/** Why guests cannot reach a listener. */
export function formatMissing(address: string): string {
  return `no guest can reach imds at ${address}, since no interface of this hypervisor has that address`
}

/**
 * True if the kernel accepts packets to this address: if a socket can be bound to it. For an address of a VRF the
 * kernel refuses to bind, so the kernel's tables of addresses are read then. (Node's list of interfaces omits a bridge
 * without ports, and needs a netlink socket, which the unit forbids.)
 */
export async function isOurs(address: string): Promise<boolean> {
  const socket = createSocket(isIPv6(address) ? 'udp6' : 'udp4')
  try {
    const bound = once(socket, 'listening')
    socket.bind({ address, port: 0 })
    await bound
    return true
  } catch (error) {
    // other errors, such as no free port, do not mean that the address is missing
    if ((error as NodeJS.ErrnoException).code !== 'EADDRNOTAVAIL') return true
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
