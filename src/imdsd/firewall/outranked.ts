/**
 * Leaves out of the rules what an instance has lost to one of a higher rank (view.ts). The store no longer has the
 * instance, but its guest may still run: at an address or a link that it has lost, it would get the other one's data.
 */
import { overlap, splitPrefix } from '../../metadata/address.ts'
import type { Instance, Interface } from '../../metadata/instance.ts'
import { isLinkOfInterface, linkOf, type LinkOf } from './link.ts'

/** What the view knows of ranks. `lost`: by `network range`, with the instances that lost it. */
export interface Ranks {
  rankOf(id: string): number
  lost(): ReadonlyMap<string, { readonly losers: readonly string[] }>
}

/**
 * The instances, without interfaces whose link an instance of a higher rank needs, and without addresses and prefixes
 * that they have lost, also in part. One that has lost nothing is the same object as before. What is contested stays:
 * its guests get 503.
 */
export function withoutOutranked(rule: string, instances: readonly Instance[], ranks: Ranks): readonly Instance[] {
  const isUnconfirmed = ({ id }: Instance) => ranks.rankOf(id) < Infinity
  if (!instances.some(isUnconfirmed)) return instances
  const nameOf = (one: LinkOf) => {
    const name = linkOf(rule, one)
    return name.ok && isLinkOfInterface(rule) ? name.value : undefined
  }
  const highest = new Map<string | undefined, number>()
  for (const { id, interfaces } of instances)
    for (const one of interfaces) highest.set(nameOf(one), Math.max(ranks.rankOf(id), highest.get(nameOf(one)) ?? 0))
  const allLost = [...ranks.lost()]
  return instances.map((instance) => {
    if (!isUnconfirmed(instance)) return instance
    const { id } = instance
    const interfaces = instance.interfaces.filter((one) => {
      const name = nameOf(one)
      return name === undefined || ranks.rankOf(id) === highest.get(name)
    })
    const lost = allLost.filter(([, { losers }]) => losers.includes(id)).map(([range]) => range.split(' '))
    if (lost.length === 0 && interfaces.length === instance.interfaces.length) return instance
    return { ...instance, interfaces: interfaces.map((one) => withoutRanges(one, lost)) }
  })
}

/** `ranges`: each a network and a range. */
function withoutRanges(one: Interface, ranges: readonly (readonly string[])[]): Interface {
  const keeps = (range: string) => !ranges.some(([network, other]) => network === one.network && overlap(range, other!))
  const keepsAddress = (address: string) => keeps(splitPrefix(address).address)
  return {
    ...one,
    ipv4Addresses: one.ipv4Addresses.filter(keepsAddress),
    ipv6Addresses: one.ipv6Addresses.filter(keepsAddress),
    ipv6Prefixes: one.ipv6Prefixes.filter(keeps),
  }
}
