/**
 * What is the name of a guest's link on this host?
 *
 * Hypervisors name the taps that they make by a rule of their own; here it is a text with placeholders. Linux gives a name 15
 * characters. A name that comes out longer is nobody's: no shortening is guessed, and that interface is kept out until the rule fits.
 */

/** A rule and what it is filled in from. */
export interface LinkOf { readonly id: string, readonly network: string }

/** A name, or why there is none. */
export type LinkName = { readonly ok: true, readonly link: string } | { readonly ok: false, readonly message: string }

/** Linux: IFNAMSIZ less the final zero. */
const MOST = 15
/** Of what Linux allows in a name, what needs no quoting anywhere and is no wildcard. */
const NAME = /^[A-Za-z0-9_.-]+$/
/** `{interfaceId:11}`: the first 11 characters of the id. */
const PLACEHOLDER = /\{(interfaceId|network)(?::([1-9]\d?))?\}/g
/** A head of one character would also be that of the host's own links. */
const LEAST_HEAD = 2

/** True when a rule can give a name at all. */
export function isLinkRule(rule: string): boolean {
  return isLinkName(rule.replaceAll(PLACEHOLDER, 'x'))
}

/** True for a name that an interface can have and that stands for itself in a rule. */
export function isLinkName(name: string): boolean {
  return NAME.test(name) && name.length <= MOST && name !== '.' && name !== '..'
}

/**
 * The links of all interfaces by a rule.
 *
 * Where the rule has the interface's id, each has a link of its own. Two may come out the same: where ids are cut, or an id is there twice. Each of
 * the two guests could pass for the other by that link, so neither has one.
 */
export class Links {
  readonly #rule: string
  /** Link -> ids of the interfaces that would have it, for links that more than one would have. */
  readonly #shared: ReadonlyMap<string, readonly string[]>

  constructor(rule: string, interfaces: Iterable<LinkOf>) {
    this.#rule = rule
    // Without the id the rule names a bridge: all guests of a network are meant to share it.
    const named = rule.includes('{interfaceId') ? [...interfaces].flatMap((one) => {
      const name = linkOf(rule, one)
      return name.ok ? [{ link: name.link, id: one.id }] : []
    }) : []
    const byLink = Map.groupBy(named, ({ link }) => link)
    this.#shared = new Map([...byLink].filter(([, sharing]) => sharing.length > 1).map(([link, sharing]) => [link, sharing.map(({ id }) => id)]))
  }

  /** The link of an interface. */
  of(one: LinkOf): LinkName {
    const name = linkOf(this.#rule, one)
    const ids = name.ok ? this.#shared.get(name.link) : undefined
    if (!name.ok || ids === undefined) return name
    const [first = '', ...others] = new Set(ids)
    const whose = others.length === 0 ? `${String(ids.length)} interfaces with the id ${first}` : `interfaces ${[first, ...others].join(' and ')}`
    return { ok: false, message: `its link ${name.link} by the rule ${this.#rule} would be that of ${whose}` }
  }
}

/** What the names of all guests' links begin with, so that one that is not known yet can be told; undefined where the rule does not say. */
export function linkHead(rule: string): string | undefined {
  const [first] = [...rule.matchAll(PLACEHOLDER)]
  const head = rule.slice(0, first?.index)
  return first?.[1] === 'interfaceId' && head.length >= LEAST_HEAD ? head : undefined
}

function linkOf(rule: string, { id, network }: LinkOf): LinkName {
  const link = rule.replaceAll(PLACEHOLDER, (_, name: string, length?: string) => (name === 'network' ? network : id).slice(0, length === undefined ? Infinity : Number(length)))
  if (isLinkName(link)) return { ok: true, link }
  const length = link.length > MOST ? ` has ${String(link.length)} characters, and Linux allows ${String(MOST)}; {interfaceId:11} takes the first 11 of an id` : ' is no name of an interface'
  return { ok: false, message: `its link by the rule ${rule}${length}` }
}
