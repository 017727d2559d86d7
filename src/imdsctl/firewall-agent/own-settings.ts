/**
 * The firewall agent's own configuration, which it holds against the document of the daemon. Guests connect to the
 * daemon, so an attacker may take it over; the document may then name any listener, and rules for it would close a
 * service of the hypervisor.
 */
import { DEFAULT_OPERATOR_LISTEN } from '../../imdsd/operator/paths.ts'
import { DEFAULT_LISTEN, parseGuestListeners } from '../../runtime/guest-listeners.ts'
import { formatHostPort, parseAddressPort } from '../../runtime/host-port.ts'
import { DEFAULT_LINK } from '../../imdsd/firewall/link.ts'
import type { FirewallDocument } from '../../imdsd/firewall/document.ts'

/** The variables of the daemon that the agent compares. Those that are not set have the daemon's defaults. */
export type OwnSettings = Readonly<
  Partial<Record<'IMDS_LISTEN' | 'IMDS_OPERATOR_LISTEN' | 'IMDS_LINK', string | undefined>>
>

const REMEDY = 'correct it in /etc/imds/imds.env if the daemon is right, and restart imds and imds-firewall'

/**
 * What of the document the agent's own configuration does not have, with the remedy; undefined if it has all. Networks
 * are not compared: they decide which of the document's guests reach a listener, and two networks may have one address
 * and port.
 */
export function findContradiction(
  { listeners, operator, link }: Pick<FirewallDocument, 'listeners' | 'operator' | 'link'>,
  own: OwnSettings,
): string | undefined {
  const setting = (variable: keyof OwnSettings, otherwise: string) => {
    const value = (own[variable] ?? '').trim()
    return value === '' ? otherwise : value
  }
  const differs = (what: string, variable: keyof OwnSettings, value: string) =>
    `the daemon has ${what}, and ${variable} of the firewall agent is ${value}: ${REMEDY}`
  const listen = setting('IMDS_LISTEN', DEFAULT_LISTEN)
  const unknown = new Set(listeners.map(({ address, port }) => formatHostPort({ host: address, port }))).difference(
    new Set(parseGuestListeners(listen).map(formatHostPort)),
  )
  if (unknown.size > 0)
    return `${differs(`the listener ${[...unknown].join(' and ')}`, 'IMDS_LISTEN', listen)}. IMDS_LISTEN must name the addresses and ports of systemd's sockets too`
  const operatorListen = setting('IMDS_OPERATOR_LISTEN', DEFAULT_OPERATOR_LISTEN)
  const ownOperator = parseAddressPort(operatorListen)
  const theirs = formatHostPort({ host: operator.address, port: operator.port })
  if (ownOperator === undefined || formatHostPort(ownOperator) !== theirs)
    return differs(`the operators' listener ${theirs}`, 'IMDS_OPERATOR_LISTEN', operatorListen)
  const ownLink = setting('IMDS_LINK', DEFAULT_LINK)
  return link === ownLink ? undefined : differs(`the link rule ${link}`, 'IMDS_LINK', ownLink)
}
