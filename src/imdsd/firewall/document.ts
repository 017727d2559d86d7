/**
 * The firewall document: the daemon sends it to the firewall agent, which builds the rules from it.
 *
 * The agent validates it. Guests connect to the daemon, so an attacker may take it over; such an attacker must not be
 * able to change rules other than those for the daemon's listeners. And nft must accept the rules of each document that
 * is valid here, since they are applied as a whole or not at all. The daemon imports only types from here.
 */
import Type, { type Static } from 'typebox'
import { Compile } from 'typebox/compile'
import { isIpv4, isIpv6, isIpv6Prefix } from '../../metadata/address.ts'
import { ID, NAME } from '../../metadata/identifiers.ts'

const Place = { address: Type.String({ maxLength: 64 }), port: Type.Integer({ minimum: 0, maximum: 65_535 }) }
const Name = Type.String({ pattern: NAME })
const Addresses = Type.Array(Type.String({ maxLength: 64 }))

const InterfaceSchema = Type.Object({
  id: Type.String({ pattern: ID }),
  network: Name,
  macAddress: Type.String({ pattern: '^[0-9a-f]{2}(:[0-9a-f]{2}){5}$' }),
  ipv4Addresses: Addresses,
  ipv6Addresses: Addresses,
  ipv6Prefixes: Addresses,
})
const GuestSchema = Type.Object({
  id: Type.String({ pattern: ID }),
  httpPutResponseHopLimit: Type.Integer({ minimum: 1, maximum: 64 }),
  interfaces: Type.Array(InterfaceSchema),
})
const ListenerSchema = Type.Object({ network: Name, ...Place })
const DocumentSchema = Type.Object({
  version: Type.String({ pattern: '^[0-9a-z]{1,32}\\.[0-9]{1,16}$' }),
  link: Type.String({ maxLength: 64 }),
  listeners: Type.Array(ListenerSchema),
  operator: Type.Object(Place),
  limitedDscp: Type.Integer({ minimum: 1, maximum: 63 }),
  guests: Type.Array(GuestSchema),
})

/** An interface as the firewall needs it. Addresses are canonical, without a prefix length. */
export type FirewallInterface = Static<typeof InterfaceSchema>
export type FirewallGuest = Static<typeof GuestSchema>
/** A listener of guests: a canonical address and a port. */
export type FirewallListener = Static<typeof ListenerSchema>
/**
 * `link` is the rule for the names of links; `operator` is the operator listener; `limitedDscp` marks the packets that
 * get a hop limit.
 */
export type FirewallDocument = Static<typeof DocumentSchema>

const check = Compile(DocumentSchema)

/** The document, or undefined if it is not valid. */
export function parseFirewallDocument(untrusted: unknown): FirewallDocument | undefined {
  return check.Check(untrusted) && untrusted.guests.every(hasCanonicalAddresses) ? untrusted : undefined
}

function hasCanonicalAddresses({ interfaces }: FirewallGuest): boolean {
  return interfaces.every(
    ({ ipv4Addresses, ipv6Addresses, ipv6Prefixes }) =>
      ipv4Addresses.every(isIpv4) && ipv6Addresses.every(isIpv6) && ipv6Prefixes.every(isIpv6Prefix),
  )
}
