/**
 * Finds the interfaces that nft refuses, so that the rules of all others can be applied. It bisects the interfaces, and
 * tests each half together with those that are accepted already, since nft may refuse an interface because of another
 * one.
 */
import { MAX_REFUSED, type FirewallRefusal } from '../../imdsd/firewall/refusal.ts'
import { buildRules } from '../../imdsd/firewall/rules.ts'
import type { FirewallInterface, FirewallDocument } from '../../imdsd/firewall/document.ts'
import { refusalOf } from './nft.ts'

interface Place {
  readonly instance: string
  readonly one: FirewallInterface
}

/**
 * The interfaces that must be left out of a refused view. `before`: the interfaces that nft refused the last time,
 * which are tested last. Undefined if nft refuses the rules even without any interface, or refuses more than
 * MAX_REFUSED interfaces.
 */
export async function findRefused(
  document: FirewallDocument,
  before: readonly FirewallRefusal[],
): Promise<readonly FirewallRefusal[] | undefined> {
  const refused: FirewallRefusal[] = []
  const refusal = (places: readonly Place[]) => {
    const taken = new Set(places.map(({ one }) => one))
    const guests = document.guests.map((guest) => ({
      ...guest,
      interfaces: guest.interfaces.filter((one) => taken.has(one)),
    }))
    return refusalOf(buildRules({ ...document, guests }, []))
  }
  /** Those of `places` that nft accepts together with `beside`. */
  const accepted = async (places: readonly Place[], beside: readonly Place[]): Promise<readonly Place[]> => {
    if (places.length === 0 || refused.length > MAX_REFUSED) return []
    const message = await refusal([...beside, ...places])
    if (message === undefined) return places
    if (places.length === 1) {
      refused.push({ instance: places[0]!.instance, interface: places[0]!.one.id, message })
      return []
    }
    const half = places.length >> 1
    const first = await accepted(places.slice(0, half), beside)
    return [...first, ...(await accepted(places.slice(half), [...beside, ...first]))]
  }
  if ((await refusal([])) !== undefined) return undefined
  const places = document.guests.flatMap(({ id, interfaces }) => interfaces.map((one) => ({ instance: id, one })))
  const wasRefused = ({ instance, one }: Place) =>
    before.some((other) => other.instance === instance && other.interface === one.id)
  const others = await accepted(
    places.filter((place) => !wasRefused(place)),
    [],
  )
  await accepted(places.filter(wasRefused), others)
  return refused.length > MAX_REFUSED ? undefined : refused
}
