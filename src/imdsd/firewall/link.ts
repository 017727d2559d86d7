/**
 * The names of guests' links on this hypervisor.
 *
 * Each cloud names its taps by a rule, which IMDS_LINK gives as a text with placeholders. Linux allows 15 characters in
 * a name. A longer name is not shortened: the firewall keeps the interface out until the rule gives a name that fits.
 */
import type { Parsed } from '../../metadata/parsed.ts'

/** What the placeholders of a rule stand for. */
export interface LinkOf {
  readonly id: string
  readonly network: string
}

/** A name, or why there is none. */
export type LinkName = Parsed<string, string>

export const DEFAULT_LINK = 'tap-{interfaceId}'

/** Linux: IFNAMSIZ less the final zero. */
const MAX_LENGTH = 15
/** The characters that Linux allows in a name and that nft needs no quotes for. */
const NAME = /^[A-Za-z0-9_.-]+$/
/** `{interfaceId:11}`: the first 11 characters of the id. */
const PLACEHOLDER = /\{(interfaceId|network)(?::([1-9]\d?))?\}/g
/** A shorter head could match the hypervisor's own links. */
const MIN_HEAD = 2

/** True if a rule can give a valid name. */
export function isLinkRule(rule: string): boolean {
  return isLinkName(rule.replaceAll(PLACEHOLDER, 'x'))
}

/** True if a rule gives each interface its own link. Other rules name bridges, which guests share. */
export function isLinkOfInterface(rule: string): boolean {
  return rule.includes('{interfaceId')
}

/** True for a valid interface name that has no special meaning in a rule. */
function isLinkName(name: string): boolean {
  return NAME.test(name) && name.length <= MAX_LENGTH && name !== '.' && name !== '..'
}

/** The link of an interface among others. */
export type Links = (nic: LinkOf) => LinkName

/**
 * The links of all interfaces by a rule.
 *
 * If the rule has the interface's id, each interface has its own link. Two names can still be equal: if the rule
 * shortens ids, or if two interfaces have the same id. Then each of the two guests could impersonate the other, so
 * neither gets a link. (Without the id the rule names a bridge, which all guests of a network share.)
 */
export class LinkNames {
  readonly #rule: string
  /** Name -> the ids of the interfaces that it is for, and the version at which they changed. */
  readonly #shared = new Map<string, { readonly ids: readonly string[]; readonly version: number }>()

  constructor(rule: string) {
    this.#rule = rule
  }

  add(nic: LinkOf, version: number): void {
    const name = linkOf(this.#rule, nic)
    if (!name.ok || !isLinkOfInterface(this.#rule)) return
    const ids = this.#shared.get(name.value)?.ids ?? []
    this.#shared.set(name.value, { ids: [...ids, nic.id], version })
  }

  remove(nic: LinkOf, version: number): void {
    const name = linkOf(this.#rule, nic)
    const ids = name.ok ? this.#shared.get(name.value)?.ids : undefined
    if (!name.ok || ids === undefined) return
    const rest = ids.toSpliced(ids.indexOf(nic.id), 1)
    if (rest.length === 0) this.#shared.delete(name.value)
    else this.#shared.set(name.value, { ids: rest, version })
  }

  /** The first version in which the link of an interface is what it is now. */
  versionOf(nic: LinkOf): number {
    const name = linkOf(this.#rule, nic)
    return (name.ok ? this.#shared.get(name.value)?.version : undefined) ?? 0
  }

  nameOf(nic: LinkOf): LinkName {
    const name = linkOf(this.#rule, nic)
    const ids = name.ok ? (this.#shared.get(name.value)?.ids ?? []) : []
    if (!name.ok || ids.length < 2) return name
    const [first = '', ...others] = new Set(ids)
    const whose =
      others.length === 0
        ? `${ids.length} interfaces with the id ${first}`
        : `interfaces ${[first, ...others].join(' and ')}`
    const fault = `the rule ${this.#rule} gives it the link name ${name.value}, which ${whose} would share`
    return { ok: false, faults: [fault] }
  }
}

/** The links of some interfaces. */
export function linksOf(rule: string, interfaces: Iterable<LinkOf>): Links {
  const names = new LinkNames(rule)
  for (const nic of interfaces) names.add(nic, 0)
  return (nic) => names.nameOf(nic)
}

/**
 * The common beginning of all guests' link names, which also matches links of guests that are not known; undefined if
 * the rule has none.
 */
export function linkHead(rule: string): string | undefined {
  const [first] = [...rule.matchAll(PLACEHOLDER)]
  const head = rule.slice(0, first?.index)
  return first?.[1] === 'interfaceId' && head.length >= MIN_HEAD ? head : undefined
}

/** The name of the link of one interface, also if others would share it. */
export function linkOf(rule: string, { id, network }: LinkOf): LinkName {
  const link = rule.replaceAll(PLACEHOLDER, (_, name: string, length?: string) =>
    (name === 'network' ? network : id).slice(0, length === undefined ? Infinity : Number(length)),
  )
  if (isLinkName(link)) return { ok: true, value: link }
  const length =
    link.length > MAX_LENGTH
      ? ` has ${link.length} characters, and Linux allows ${MAX_LENGTH}; ` +
        '{interfaceId:11} takes the first 11 of an id'
      : ' is not a valid link name'
  return { ok: false, faults: [`its link name by the rule ${rule}${length}`] }
}
