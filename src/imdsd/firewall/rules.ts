/**
 * Builds the nftables rules of this hypervisor from the firewall document. Pure: the result is text for `nft -f -`.
 *
 * The daemon identifies a guest by the source address. These rules make that safe: a packet reaches a listener only if
 * its link, MAC, source address and destination are those of one interface in the listener's network. The document has
 * no address that the instance of the interface has lost to another one (outranked.ts). A response leaves by the same
 * link or is dropped, so a response that is in flight when a guest goes away reaches no other guest.
 *
 * The response to a token PUT travels no further than the instance's hop limit (contract D6): the daemon marks its
 * packets by their DSCP (imdsd/guest/hop-limit.ts), and the rules set the limit on packets with the mark. The rules do not
 * use conntrack: one guest could fill its table.
 *
 * New connections of an interface have a rate limit; the excess is reset.
 *
 * Each value of the document is checked, because guests connect to the process that sends it: no value can end a set
 * and begin a rule. An interface with an invalid value is left out and reported.
 */
import { ipv6Digits, isIpv4, isIpv6, isIpv6Prefix, isOneAddress } from '../../metadata/address.ts'
import { linkHead, linksOf, type Links } from './link.ts'
import type { FirewallRefusal } from './agent-report.ts'
import { hopChain, formatBaseRules, TABLE } from './base-rules.ts'
import type { FirewallGuest, FirewallInterface, FirewallListener, FirewallDocument } from './document.ts'

/** A part of the document that is left out of the rules. `instance` undefined: a part of the daemon's configuration. */
export interface FirewallFault {
  readonly instance: string | undefined
  readonly message: string
}

/** Key of an element -> what a map has for it, such as a verdict; empty in a set. */
type Elements = ReadonlyMap<string, string>

/**
 * The rules for a document: the base rules as text for `nft -f`, the hop limits in use and the DSCP of the packets that
 * get them, and the elements of each set and map.
 */
export interface FirewallRules {
  readonly baseRules: string
  readonly hops: ReadonlySet<number>
  readonly limitedDscp: number
  readonly sets: ReadonlyMap<string, Elements>
  readonly interfaces: number
  readonly faults: readonly FirewallFault[]
}

const MAC = /^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/
const HOPS = { least: 1, most: 64 }

/** Builds the rules, without the interfaces that nft has refused. */
export function buildRules(document: FirewallDocument, refused: readonly FirewallRefusal[]): FirewallRules {
  const faults: FirewallFault[] = []
  const refusals = new Map(
    refused.map(({ instance, interface: id, message }) => [`${instance} ${id}`, `interface ${id}: ${message}`]),
  )
  const listeners = document.listeners.filter(({ address, port }) => isOneAddress(address) && isPort(port))
  for (const { address } of document.listeners.filter((listener) => !listeners.includes(listener))) {
    faults.push({
      instance: undefined,
      message:
        `a listener on ${JSON.stringify(address)} cannot be protected: ` +
        'it needs one IPv4 or IPv6 address of its own',
    })
  }
  const sets = new Sets()
  let interfaces = 0
  const hops = new Set<number>()
  const links = linksOf(
    document.link,
    document.guests.flatMap(({ interfaces }) => interfaces),
  )
  for (const guest of document.guests) {
    for (const one of guest.interfaces) {
      const message = faultOf(links, guest, one) ?? refusals.get(`${guest.id} ${one.id}`)
      if (message !== undefined) {
        faults.push({ instance: guest.id, message })
        continue
      }
      interfaces += 1
      hops.add(guest.httpPutResponseHopLimit)
      addInterface(sets, links, listeners, guest.httpPutResponseHopLimit, one)
    }
  }
  const baseRules = formatBaseRules({
    listeners,
    operatorPort: isPort(document.operator.port) ? document.operator.port : undefined,
    linkHead: linkHead(document.link),
  })
  return { baseRules, hops, limitedDscp: document.limitedDscp, sets: sets.all(), interfaces, faults }
}

export interface Counted {
  readonly packets: number
  readonly bytes: number
}

/** A transaction that replaces the whole table. `counted`: what its counters begin with, by name; others begin with 0. */
export function replacement(
  { baseRules, hops, limitedDscp, sets }: FirewallRules,
  counted: ReadonlyMap<string, Counted> = new Map(),
): string {
  const elements = [...sets].map(([set, some]) => statement('add', set, some))
  const base = baseRules.replace(/^ {2}counter (\w+) \{ \}$/gm, (line, name: string) => {
    const { packets, bytes } = counted.get(name) ?? {}
    return packets === undefined ? line : `  counter ${name} { packets ${packets} bytes ${String(bytes)} }`
  })
  return `table ${TABLE}\ndelete table ${TABLE}\n${base}${chains(hops, limitedDscp)}${elements.join('')}`
}

/**
 * A transaction that tests whether nft accepts the table, and changes nothing: it creates the table under another name,
 * dormant, and deletes it. No value of a document contains a space, so replacing the name affects nothing else.
 */
export function trial(rules: FirewallRules): string {
  const name = `${TABLE}_trial`
  const table = replacement(rules).replaceAll(TABLE, name)
  return `${table.replace(`table ${name} {`, `table ${name} {\n  flags dormant`)}delete table ${name}\n`
}

/**
 * The statements that change one document's rules into another's; empty if they are equal. Counters and dynamic sets
 * keep their content. Both must have the same base rules and DSCP. Only the differences are written: `flush` and adding
 * all elements takes half a second for 500 guests.
 */
export function change(before: FirewallRules, after: FirewallRules): string {
  const differences = (of: FirewallRules, from: FirewallRules) =>
    [...of.sets].map(
      ([set, elements]) =>
        [set, new Map([...elements].filter(([key, verdict]) => from.sets.get(set)?.get(key) !== verdict))] as const,
    )
  const gone = differences(before, after).map(([set, elements]) =>
    statement('delete', set, new Map([...elements.keys()].map((key) => [key, '']))),
  )
  const added = differences(after, before).map(([set, elements]) => statement('add', set, elements))
  return [chains(after.hops.difference(before.hops), after.limitedDscp), ...gone, ...added].join('')
}

/** Every element as nft lists it, sorted. */
export function listed({ sets }: FirewallRules): string[] {
  return [...sets].flatMap(([, elements]) => [...elements].map(formatElement)).sort()
}

/** A transaction that deletes the table, whether it exists or not. */
export const REMOVAL = `table ${TABLE}\ndelete table ${TABLE}\n`

/** Why an interface cannot be admitted, or undefined. */
function faultOf(
  links: Links,
  guest: FirewallGuest,
  { id, network, macAddress, ipv4Addresses, ipv6Addresses, ipv6Prefixes }: FirewallInterface,
): string | undefined {
  const link = links({ id, network })
  if (!link.ok) return `interface ${id}: ${link.faults.join('; ')}`
  const { httpPutResponseHopLimit: limit } = guest
  const isGood =
    MAC.test(macAddress) &&
    ipv4Addresses.every(isIpv4) &&
    ipv6Addresses.every(isIpv6) &&
    ipv6Prefixes.every(isIpv6Prefix) &&
    Number.isInteger(limit) &&
    limit >= HOPS.least &&
    limit <= HOPS.most
  return isGood ? undefined : `interface ${JSON.stringify(id)} has an invalid address, prefix, MAC address or hop limit`
}

function addInterface(
  sets: Sets,
  links: Links,
  listeners: readonly FirewallListener[],
  limit: number,
  one: FirewallInterface,
): void {
  const name = links(one)
  if (!name.ok) return
  const { value: link } = name
  sets.add('links', `"${link}"`)
  const verdict = `goto hop_${limit}`
  for (const { network, address, port } of listeners) {
    if (network !== one.network) continue
    const ask = (source: string) => `"${link}" . ${one.macAddress} . ${source} . ${address} . ${port}`
    const answer = (to: string) => `"${link}" . ${to}`
    if (!address.includes(':')) {
      for (const source of one.ipv4Addresses) {
        sets.add('guests4', ask(source))
        sets.add('answers4', answer(source), verdict)
      }
      continue
    }
    for (const source of one.ipv6Addresses) {
      sets.add('guests6', ask(source))
      sets.add('answers6', answer(source), verdict)
    }
    for (const prefix of one.ipv6Prefixes) {
      sets.addRange('prefixes6', ask('PREFIX'), prefix)
      sets.addRange('ranges6', answer('PREFIX'), prefix, verdict)
    }
  }
}

/**
 * The content of the sets and maps. Each key is unique, and no range is inside another one with the same rest, since
 * nft would refuse the whole transaction. If two keys have different verdicts, two instances claim one address, and
 * neither is served: the first verdict stays.
 */
class Sets {
  /** Set -> key -> what a map has for it. */
  readonly #elements = new Map<string, Map<string, string>>()
  /** By set and key, which has PREFIX in the place of the range: the verdict of each range. */
  readonly #ranges = new Map<string, { set: string; key: string; verdicts: Map<string, string> }>()

  add(set: string, key: string, verdict = ''): void {
    const keys = this.#elements.get(set) ?? new Map<string, string>()
    this.#elements.set(set, keys)
    if (!keys.has(key)) keys.set(key, verdict)
  }

  addRange(set: string, key: string, range: string, verdict = ''): void {
    const { verdicts } = this.#ranges.get(`${set} ${key}`) ?? { verdicts: new Map<string, string>() }
    this.#ranges.set(`${set} ${key}`, { set, key, verdicts })
    if (!verdicts.has(range)) verdicts.set(range, verdict)
  }

  all(): ReadonlyMap<string, Elements> {
    for (const { set, key, verdicts } of this.#ranges.values())
      for (const range of outermost([...verdicts.keys()]))
        this.add(set, key.replace('PREFIX', range), verdicts.get(range))
    return this.#elements
  }
}

function chains(hops: ReadonlySet<number>, limitedDscp: number): string {
  return [...hops]
    .sort((a, b) => a - b)
    .flatMap((limit) => hopChain(limit, limitedDscp))
    .map((line) => `${line}\n`)
    .join('')
}

function statement(verb: 'add' | 'delete', set: string, elements: Elements): string {
  if (elements.size === 0) return ''
  const lines = [...elements].map((element) => `  ${formatElement(element)}`)
  return `${verb} element ${TABLE} ${set} {\n${lines.join(',\n')}\n}\n`
}

function formatElement([key, verdict]: readonly [string, string]): string {
  return verdict === '' ? key : `${key} : ${verdict}`
}

/** The prefixes that no other one contains. */
function outermost(ranges: readonly string[]): string[] {
  const kept: string[] = []
  let last: string | undefined
  for (const range of [...ranges].sort((a, b) => (ipv6Digits(a) < ipv6Digits(b) ? -1 : 1))) {
    const digits = ipv6Digits(range)
    if (last !== undefined && digits.startsWith(last)) continue
    kept.push(range)
    last = digits
  }
  return kept
}

function isPort(port: number): boolean {
  return Number.isInteger(port) && port >= 1 && port <= 65_535
}
