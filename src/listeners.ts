/**
 * Where guests connect: at the addresses of IMDS_LISTEN, or at sockets that systemd passes. A listener serves one network, so several networks
 * are refused if nothing keeps the guests of one from the listener of another: either each socket is bound to a link, or the firewall is required.
 */
import { DEFAULT_NETWORK } from './metadata/identifiers.ts'
import { parseGuestListener } from './runtime/guest-listeners.ts'
import { isLoopback } from './runtime/host-port.ts'
import type { Listener } from './runtime/listen.ts'
import type { SystemdSockets } from './runtime/systemd.ts'

/** The listener of one network. */
export type GuestListener = Listener & { readonly network: string }
/** A network that should be served and is not, and why, with the remedy. */
export interface UnservedNetwork { readonly network: string, readonly problem: string }

/** `overruledListen`: IMDS_LISTEN, if it is set but systemd decides where to listen; else undefined. */
export interface GuestListeners {
  readonly listen: readonly GuestListener[]
  readonly overruledListen: readonly { readonly network: string, readonly host: string, readonly port: number }[] | undefined
  readonly unserved: readonly UnservedNetwork[]
}

/** The names that systemd gives to a socket without FileDescriptorName=. */
const UNNAMED = /^$|^unknown$|\.socket$/

const REMEDY = 'enable imds-network@NETWORK.socket for each network, which binds its socket to a link (docs/install.md#several-networks), or set IMDS_FIREWALL=required'

/** Parses `places`, the parts of IMDS_LISTEN. `isSet`: whether an operator has set that variable. `fault` reports what is wrong with it. */
export function parseListeners(
  places: readonly string[], isSet: boolean, { passed, enabled, faults = [] }: SystemdSockets, isFirewallRequired: boolean, fault: (message: string) => void,
): GuestListeners {
  const listed = places.map((text) => {
    const listener = parseGuestListener(text)
    if (listener === undefined) fault(`"${text}" is not ADDRESS:PORT or NETWORK=ADDRESS:PORT, such as 169.254.169.254:80 or [fd00:ec2::254]:80`)
    return listener ?? { network: DEFAULT_NETWORK, host: '', port: 0 }
  })
  if (listed.length === 0) fault('names no address')
  for (const message of faults) fault(message)

  const sockets = passed.map(({ fd, name }): GuestListener => ({ fd, network: UNNAMED.test(name) ? DEFAULT_NETWORK : name }))
  if (sockets.length === 0 && enabled.length === 0) {
    const fixed = listed.filter(({ port }) => port !== 0).map(({ host, port }) => `${host} ${String(port)}`)
    if (new Set(fixed).size < fixed.length) fault('names one address and port twice')
    // Who connects over loopback is a process of this machine, so networks there separate nobody.
    if (!isFirewallRequired && !listed.every(({ host }) => isLoopback(host))) refuseSeveral(listed, 'names', fault)
    return { listen: listed, overruledListen: undefined, unserved: [] }
  }
  const overruledListen = isSet ? listed : undefined
  if (enabled.length > 0) return { ...bound(sockets, enabled), overruledListen }
  if (!isFirewallRequired) refuseSeveral(sockets, 'is replaced by sockets of systemd, which have', fault)
  return { listen: sockets, overruledListen, unserved: [] }
}

function refuseSeveral(listeners: readonly GuestListener[], has: string, fault: (message: string) => void): void {
  const networks = [...new Set(listeners.map(({ network }) => network))]
  if (networks.length > 1) fault(`${has} several networks (${networks.join(', ')}), and a guest of one could read the records of another: ${REMEDY}`)
}

/** Only sockets of enabled units imds-network@NETWORK.socket are served, since only these are known to be bound to a link. */
function bound(sockets: readonly GuestListener[], enabled: readonly string[]): Pick<GuestListeners, 'listen' | 'unserved'> {
  const unitOf = (network: string) => `imds-network@${network}.socket`
  const others = [...new Set(sockets.map(({ network }) => network))].filter((network) => !enabled.includes(network))
  return {
    listen: sockets.filter(({ network }) => enabled.includes(network)),
    unserved: [
      ...enabled.filter((network) => !sockets.some((socket) => socket.network === network)).map((network) =>
        ({ network, problem: `network ${network} is not served, since ${unitOf(network)} is enabled and has no socket: see systemctl status ${unitOf(network)}, then restart imds` })),
      ...others.map((network) =>
        ({ network, problem: `network ${network} is not served, since its socket is not that of an enabled ${unitOf(network)}: enable that unit or stop the one that has the socket, then restart imds` })),
    ],
  }
}
