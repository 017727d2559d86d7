/**
 * Where guests connect: at the addresses of IMDS_LISTEN, each of a network. If systemd passes sockets, they are used in
 * place of opening these, and must match them (guest-side.ts compares).
 *
 * A listener serves one network. A network other than `default` is refused unless something keeps the guests of others
 * from its listener: either all sockets are of such networks, which imds-network@.socket binds to links, or the firewall
 * is required. If only the firewall separates several networks, no guest is answered before its rules are applied.
 */
import { DEFAULT_NETWORK } from '../metadata/identifiers.ts'
import { parseGuestListener, type GuestListenAddress } from '../runtime/guest-listeners.ts'
import { isLoopback } from '../runtime/host-port.ts'
import type { Listener } from '../runtime/listen.ts'
import type { PassedSocket } from '../runtime/systemd.ts'

export type GuestListener = Listener & { readonly network: string }

/**
 * `expected`: what IMDS_LISTEN names, if systemd has opened the sockets; else none. `needsFirewall`: there are several
 * networks, and only the firewall keeps the guests of one from the listener of another.
 */
export interface GuestListeners {
  readonly listen: readonly GuestListener[]
  readonly expected: readonly GuestListenAddress[]
  readonly needsFirewall: boolean
}

/** The names that systemd gives to a socket without FileDescriptorName=. */
const UNNAMED = /^$|^unknown$|\.socket$/

const REMEDY =
  'enable imds-network@NETWORK.socket for each network, ' +
  'which binds its socket to a link (docs/install.md#several-networks), or set IMDS_FIREWALL=required'

/** Parses the parts of IMDS_LISTEN. `passed`: the sockets of systemd. `fault` reports what is wrong. */
export function parseListeners(
  parts: readonly string[],
  passed: readonly PassedSocket[],
  isFirewallRequired: boolean,
  fault: (message: string) => void,
): GuestListeners {
  const listed = parts.map((text) => {
    const listener = parseGuestListener(text)
    if (listener === undefined)
      fault(`"${text}" is not ADDRESS:PORT or NETWORK=ADDRESS:PORT, such as 169.254.169.254:80 or [fd00:ec2::254]:80`)
    return listener ?? { network: DEFAULT_NETWORK, host: '', port: 0 }
  })
  if (listed.length === 0) fault('names no address')
  const fixed = listed.filter(({ port }) => port !== 0)
  const hasSockets = passed.length > 0
  if (!hasSockets && new Set(fixed.map(({ host, port }) => `${host} ${port}`)).size < fixed.length)
    fault('names one address and port twice')

  const listen = hasSockets
    ? passed.map(({ fd, name }) => ({ fd, network: UNNAMED.test(name) ? DEFAULT_NETWORK : name }))
    : listed
  const networks = networksOf(listen)
  // who connects over loopback is a process of this machine, so networks there separate nobody
  const isSeparate = hasSockets
    ? !networks.includes(DEFAULT_NETWORK)
    : listed.every(({ network, host }) => network === DEFAULT_NETWORK || isLoopback(host))
  const isAllDefault = networks.every((network) => network === DEFAULT_NETWORK)
  if (!isSeparate && !isAllDefault && !isFirewallRequired)
    fault(
      `${hasSockets ? 'is replaced by sockets of systemd, which have' : 'names'} networks (${networks.join(', ')}) ` +
        `that nothing separates, and a guest of one could read the records of another: ${REMEDY}`,
    )
  return { listen, expected: hasSockets ? fixed : [], needsFirewall: !isSeparate && networks.length > 1 }
}

/** Why no guest is answered before the firewall has applied its rules, if it `needsFirewall`. */
export function describeFirewallWait(listeners: readonly GuestListener[]): string {
  return (
    'no guest is answered until imds-firewall has applied its rules for this daemon, ' +
    `since nothing else separates networks ${networksOf(listeners).join(' and ')}`
  )
}

function networksOf(listeners: readonly GuestListener[]): string[] {
  return [...new Set(listeners.map(({ network }) => network))]
}
