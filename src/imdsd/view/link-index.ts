/**
 * Which instance has a link of this hypervisor: a guest that connects from a link-local address is identified by its
 * link (contract E1). The index follows the view.
 *
 * Interfaces claim their links as they claim addresses (address-index.ts): if two would have one link, it is contested,
 * and the firewall admits neither; those of instances that the store no longer has rank lower (view.ts).
 */
import { UNKNOWN } from '../../metadata/address.ts'
import type { Interface } from '../../metadata/instance.ts'
import { AddressIndex } from './address-index.ts'
import type { FoundInstance, View } from './view.ts'

/** An interface of an instance, by its link. */
interface Claim {
  readonly link: string
  readonly instance: string
  readonly network: string
}

/** The instances of a view by link. `nameOf`: the name of an interface's link; undefined if it can have none. */
export class LinkIndex {
  readonly #view: Pick<View, 'get' | 'rankOf'>
  readonly #nameOf: (one: Pick<Interface, 'id' | 'network'>) => string | undefined
  readonly #index: AddressIndex<Claim>
  /** By instance. */
  readonly #claims = new Map<string, readonly Claim[]>()

  constructor(
    view: Pick<View, 'get' | 'rankOf'>,
    nameOf: (one: Pick<Interface, 'id' | 'network'>) => string | undefined,
  ) {
    this.#view = view
    this.#nameOf = nameOf
    this.#index = new AddressIndex(
      () => undefined,
      ({ instance }) => view.rankOf(instance),
    )
  }

  /** Updates the links of an instance that the view has changed. */
  update(id: string): void {
    for (const claim of this.#claims.get(id) ?? []) this.#index.unclaim(claim.link, claim)
    const claims = (this.#view.get(id)?.instance.interfaces ?? []).flatMap((one) => {
      const link = this.#nameOf(one)
      return link === undefined ? [] : [{ link, instance: id, network: one.network }]
    })
    for (const claim of claims) this.#index.claim(claim.link, claim)
    if (claims.length === 0) this.#claims.delete(id)
    else this.#claims.set(id, claims)
  }

  /** The instance that has a link, with an interface on this network. */
  find(network: string, link: string): FoundInstance {
    const found = this.#index.find(link)
    if (found.kind !== 'owned') return found
    const owner = found.owner.network === network ? this.#view.get(found.owner.instance) : undefined
    return owner === undefined ? UNKNOWN : { kind: 'owned', owner }
  }
}
