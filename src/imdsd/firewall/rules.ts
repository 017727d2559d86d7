/**
 * Builds the nftables rules of this hypervisor from the firewall document. Pure: the result is text for `nft -f -`.
 *
 * The daemon identifies a guest by the source address. These rules make that safe: a packet reaches a listener only if
 * its link, MAC, source address and destination are those of one interface in the listener's network.
 *
 * A response goes to the instance that asked, by the link of its request, or is dropped (contract E6). The kernel
 * remembers both: the first packet of a connection gets a mark of them, the accepted socket takes the mark over
 * (net.ipv4.tcp_fwmark_accept, which holds for IPv6 too), and each packet of the socket has it, also those that the
 * kernel sends again after the daemon has closed the socket. The rules do not use conntrack: one guest could fill its
 * table.
 *
 * The response to a token PUT travels no further than the instance's hop limit (contract D6): the daemon marks its
 * packets by their DSCP (imdsd/guest/hop-limit.ts), and the rules set the limit on packets with that DSCP.
 *
 * New connections of an interface have a rate limit; the excess is reset.
 *
 * No value of a document can end a set and begin a rule: document.ts checks each, and link.ts the names of links.
 */
import { crc32 } from 'node:zlib'
import { canonicalAddress, ipv6Digits, isOneAddress } from '../../metadata/address.ts'
import { linkHead, linksOf } from './link.ts'
import { COUNTERS } from './counters.ts'
import { formatBaseRules, TABLE } from './base-rules.ts'
import type { FirewallGuest, FirewallInterface, FirewallListener, FirewallDocument } from './document.ts'

/** A part of the document that is left out of the rules. `instance` undefined: a part of the daemon's configuration. */
export interface FirewallFault {
  readonly instance: string | undefined
  readonly message: string
}

/** Key of an element -> what a map has for it, such as a verdict; empty in a set. */
type Elements = ReadonlyMap<string, string>

/**
 * The rules for a document. `version`: that of the document, which the comment of the table has. `baseRules`: the table
 * without counters and elements. `sets`: the elements of each set and map.
 */
export interface FirewallRules {
  readonly version: string
  readonly baseRules: string
  readonly sets: ReadonlyMap<string, Elements>
  readonly interfaces: number
  readonly faults: readonly FirewallFault[]
}

export function buildRules(document: FirewallDocument): FirewallRules {
  const faults: FirewallFault[] = []
  const listeners = document.listeners.filter(({ address }) => isOneAddress(address))
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
    for (const nic of guest.interfaces) {
      const link = links(nic)
      if (!link.ok) {
        faults.push({ instance: guest.id, message: `interface ${nic.id}: ${link.faults.join('; ')}` })
        continue
      }
      interfaces += 1
      hops.add(guest.httpPutResponseHopLimit)
      addInterface(sets, link.value, listeners, guest, nic)
    }
  }
  const baseRules = formatBaseRules({
    listeners,
    operatorPort: document.operator.port === 0 ? undefined : document.operator.port,
    linkHead: linkHead(document.link),
    hops,
    limitedDscp: document.limitedDscp,
  })
  return { version: document.version, baseRules, sets: sets.all(), interfaces, faults }
}

export interface Counted {
  readonly packets: number
  readonly bytes: number
}

/** A transaction that replaces the whole table. `counted`: what its counters begin with, by name; others begin with 0. */
export function replacement(
  { version, baseRules, sets }: FirewallRules,
  counted: ReadonlyMap<string, Counted> = new Map(),
): string {
  const counters = COUNTERS.map((name) => {
    const { packets = 0, bytes = 0 } = counted.get(name) ?? {}
    return `  counter ${name} { packets ${packets} bytes ${bytes}; }\n`
  })
  const elements = [...sets].map(
    ([set, some]) => `add element ${TABLE} ${set} {\n${[...some].map(formatElement).join(',\n')}\n}\n`,
  )
  return `${REMOVAL}table ${TABLE} {\n  comment "${version}"\n${counters.join('')}${baseRules}}\n${elements.join('')}`
}

/** A transaction that deletes the table, whether it exists or not. */
export const REMOVAL = `table ${TABLE}\ndelete table ${TABLE}\n`

/** An object of a listing (`nft -j list table`): a table, a counter, a set, a map, a chain or a rule. */
export interface ListedObject {
  readonly counter?: Counted & { readonly name: string }
  readonly set?: ListedSet
  readonly map?: ListedSet
}

interface ListedSet {
  readonly name: string
  readonly elem?: readonly ListedElement[]
}

/** An element of a map is an array of its key and what the map has for it. Another program may have added other forms. */
type ListedElement =
  | string
  | number
  | readonly ListedElement[]
  | {
      readonly concat?: readonly ListedElement[]
      readonly prefix?: { readonly addr: string; readonly len: number }
      readonly goto?: { readonly target: string }
    }

/** The set that packets of guests change. */
const DYNAMIC = 'opened'
/** What two listings of the same base rules may have of their own. */
const OWN = new Set(['metainfo', 'comment', 'handle', 'packets', 'bytes'])
/** An address as nft lists `::102:304`. */
const DOTTED = /^::\d+(?:\.\d+){3}$/

/**
 * Compares a listing of the table with rules. `hasElements`: it has exactly their elements. `frame`: all else, in a form
 * in which two listings of the same base rules are equal.
 */
export function compareListing(
  listing: readonly ListedObject[],
  { sets }: FirewallRules,
): { readonly hasElements: boolean; readonly frame: string } {
  const listed = listing
    .flatMap(({ set, map }) => set ?? map ?? [])
    .filter(({ name }) => name !== DYNAMIC)
    .flatMap(({ name, elem = [] }) => elem.map((element) => `${name} ${formatListed(element)}`))
  const wanted = [...sets].flatMap(([name, elements]) =>
    [...elements].map((element) => `${name} ${formatElement(element).replaceAll('"', '')}`),
  )
  const frame = JSON.stringify(listing, (key, value: unknown) =>
    OWN.has(key) || (key === 'elem' && Array.isArray(value)) ? undefined : value,
  )
  return {
    hasElements: listed.sort().join() === wanted.sort().join(),
    // sorted, since the kernel lists in no fixed order
    frame: frame
      .split(/["[\]{},]+/)
      .sort()
      .join(' '),
  }
}

/** An element as `formatElement` formats it, without quotation marks. */
function formatListed(element: ListedElement): string {
  if (typeof element === 'string') return DOTTED.test(element) ? (canonicalAddress(element) ?? '') : element
  if (typeof element === 'number') return String(element)
  if (element instanceof Array) return element.map(formatListed).join(' : ')
  const { concat, prefix, goto } = element
  if (concat !== undefined) return concat.map(formatListed).join(' . ')
  if (prefix !== undefined) return `${prefix.addr}/${prefix.len}`
  return goto === undefined ? JSON.stringify(element) : `goto ${goto.target}`
}

function addInterface(
  sets: Sets,
  link: string,
  listeners: readonly FirewallListener[],
  { id, httpPutResponseHopLimit }: FirewallGuest,
  nic: FirewallInterface,
): void {
  const mark = markOf(link, id)
  sets.add('links', `"${link}"`)
  sets.add('marks', `"${link}" . ${nic.macAddress}`, mark)
  const verdict = `goto hop_${httpPutResponseHopLimit}`
  for (const { network, address, port } of listeners) {
    if (network !== nic.network) continue
    const ask = (source: string) => `"${link}" . ${nic.macAddress} . ${source} . ${address} . ${port}`
    const answer = (to: string) => `"${link}" . ${mark} . ${address} . ${to}`
    if (!address.includes(':')) {
      for (const source of nic.ipv4Addresses) {
        sets.add('guests4', ask(source))
        sets.add('answers4', answer(source), verdict)
      }
      continue
    }
    for (const source of nic.ipv6Addresses) {
      sets.add('guests6', ask(source))
      sets.add('answers6', answer(source), verdict)
    }
    for (const prefix of nic.ipv6Prefixes) {
      sets.addRange('prefixes6', ask('PREFIX'), prefix)
      sets.add('marked', `"${link}" . ${mark}`)
      sets.addRange('ranges6', `"${link}" . ${address} . PREFIX`, prefix, verdict)
    }
  }
}

/**
 * The mark of an instance on a link: the same in each version of the rules, and for each agent. 0 would be no mark.
 * Two instances that have one MAC on one link have one mark, and the second gets no answers.
 */
function markOf(link: string, id: string): string {
  return String(crc32(`${link} ${id}`) || 1)
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

function formatElement([key, value]: readonly [string, string]): string {
  return value === '' ? key : `${key} : ${value}`
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
