/**
 * What does the firewall have to know?
 *
 * The document that the daemon gives and that the rules are made from. It is checked where it arrives: the daemon talks to guests,
 * and whoever took it over must not get further than its own listeners with what it says. (The daemon itself takes only types from here.)
 */
import Type, { type Static } from 'typebox'
import { Compile } from 'typebox/compile'
import { ID, NAME } from '../metadata/identifiers.ts'

const Place = { address: Type.String({ maxLength: 64 }), port: Type.Integer({ minimum: 0, maximum: 65_535 }) }
const Name = Type.String({ pattern: NAME })
const Addresses = Type.Array(Type.String({ maxLength: 64 }))

const InterfaceSchema = Type.Object({
  id: Type.String({ pattern: ID }), network: Name, macAddress: Type.String({ maxLength: 17 }),
  ipv4Addresses: Addresses, ipv6Addresses: Addresses, ipv6Prefixes: Addresses,
})
const GuestSchema = Type.Object({
  id: Type.String({ pattern: ID }), revision: Type.Integer({ minimum: 1 }),
  httpPutResponseHopLimit: Type.Integer(), interfaces: Type.Array(InterfaceSchema),
})
const ListenerSchema = Type.Object({ network: Name, ...Place })
const ViewSchema = Type.Object({
  version: Type.String({ pattern: '^[0-9a-z]{1,32}\\.[0-9]{1,16}$' }),
  link: Type.String({ maxLength: 64 }),
  listeners: Type.Array(ListenerSchema),
  operator: Type.Object(Place),
  limitedDscp: Type.Integer({ minimum: 1, maximum: 63 }),
  guests: Type.Array(GuestSchema),
})

/** An interface as the firewall needs it. Addresses are canonical, without a length. */
export type FirewallInterface = Static<typeof InterfaceSchema>
/** An instance as the firewall needs it. */
export type FirewallGuest = Static<typeof GuestSchema>
/** A listener for guests: a canonical address and a port. */
export type FirewallListener = Static<typeof ListenerSchema>
/**
 * All that the rules are made from. `link` is the rule for the names of links; `operator` is where operators are answered; `limitedDscp` marks
 * the packets that the hop limit is for. A daemon that does not mark, and so does not say, is refused: rules of its kind stay.
 */
export type FirewallDocument = Static<typeof ViewSchema>

const check = Compile(ViewSchema)

/** The document when it has the shape of one, or undefined. What its words mean is checked where they are used. */
export function parseFirewallDocument(untrusted: unknown): FirewallDocument | undefined {
  return check.Check(untrusted) ? untrusted : undefined
}
