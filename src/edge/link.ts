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
const PLACEHOLDER = /\{(interfaceId|network)\}/g

/** Every interface's id begins so. */
const ID_HEAD = 'int-'

/** True when a rule can give a name at all. */
export function isLinkRule(rule: string): boolean {
  const shortest = rule.replaceAll(PLACEHOLDER, (_, name) => name === 'network' ? 'x' : `${ID_HEAD}x`)
  return isLinkName(shortest)
}

/** True for a name that an interface can have and that stands for itself in a rule. */
export function isLinkName(name: string): boolean {
  return NAME.test(name) && name.length <= MOST && name !== '.' && name !== '..'
}

/** The name of an interface's link by a rule such as `tap-{interfaceId}`. */
export function linkOf(rule: string, { id, network }: LinkOf): LinkName {
  const link = rule.replaceAll(PLACEHOLDER, (_, name) => name === 'network' ? network : id)
  if (isLinkName(link)) return { ok: true, link }
  const length = link.length > MOST ? ` has ${String(link.length)} characters, and Linux allows ${String(MOST)}` : ' is no name of an interface'
  return { ok: false, message: `its link by the rule ${rule}${length}` }
}

/** What the names of all guests' links begin with, so that one that is not known yet can be told; undefined where the rule does not say. */
export function linkHead(rule: string): string | undefined {
  const at = rule.indexOf('{interfaceId}')
  const head = rule.slice(0, Math.max(0, at)) + ID_HEAD
  return at === -1 || head.includes('{') || !isLinkName(`${head}x`) ? undefined : head
}
