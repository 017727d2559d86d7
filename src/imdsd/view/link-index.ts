/**
 * Which instance has a link of this hypervisor: a guest that connects from a link-local address is identified by its
 * link (contract E1). The index follows the view.
 *
 * If two interfaces would have one link, the link is contested, and neither is served by it: the firewall admits
 * neither. Interfaces of instances that the store no longer has lose it to others, as addresses (view.ts).
 */
import { CONTESTED, UNKNOWN } from '../../metadata/address.ts'
import type { FoundInstance, View } from './view.ts'

/** An interface of an instance, as far as the name of its link depends on it. */
interface LinkOf {
  readonly id: string
  readonly network: string
}
interface Claim {
  readonly instance: string
  readonly network: string
}

/** The instances of a view by link. `nameOf`: the name of an interface's link; undefined if it can have none. */
export class LinkIndex {
  readonly #view: Pick<View, 'get' | 'isUnconfirmed'>
  readonly #nameOf: (one: LinkOf) => string | undefined
  /** Link -> the interfaces that would have it. */
  readonly #claims = new Map<string, readonly Claim[]>()
  /** Instance -> the links of its interfaces. */
  readonly #links = new Map<string, ReadonlySet<string>>()

  constructor(view: Pick<View, 'get' | 'isUnconfirmed'>, nameOf: (one: LinkOf) => string | undefined) {
    this.#view = view
    this.#nameOf = nameOf
  }

  /** Updates the links of an instance that the view has changed. */
  update(id: string): void {
    for (const link of this.#links.get(id) ?? []) {
      const others = this.#claims.get(link)!.filter(({ instance }) => instance !== id)
      if (others.length === 0) this.#claims.delete(link)
      else this.#claims.set(link, others)
    }
    const links = new Set<string>()
    for (const one of this.#view.get(id)?.instance.interfaces ?? []) {
      const link = this.#nameOf(one)
      if (link === undefined) continue
      links.add(link)
      this.#claims.set(link, [...(this.#claims.get(link) ?? []), { instance: id, network: one.network }])
    }
    if (links.size === 0) this.#links.delete(id)
    else this.#links.set(id, links)
  }

  /** The instance that has a link, with an interface on this network. */
  find(network: string, link: string): FoundInstance {
    const claims = this.#claims.get(link) ?? []
    const present = claims.filter(({ instance }) => !this.#view.isUnconfirmed(instance))
    const [claim, other] = present.length > 0 ? present : claims
    if (claim === undefined) return UNKNOWN
    if (other !== undefined) return CONTESTED
    const owner = claim.network === network ? this.#view.get(claim.instance) : undefined
    return owner === undefined ? UNKNOWN : { kind: 'owned', owner }
  }
}
