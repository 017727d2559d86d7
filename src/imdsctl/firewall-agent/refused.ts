/**
 * Finds the interfaces that nft refuses, so that the rules of all others can be applied. It bisects the interfaces, and
 * tests each half together with those that are accepted already, since nft may refuse an interface because of another
 * one.
 */
import { MAX_REFUSED, type FirewallRefusal } from '../../imdsd/firewall/agent-report.ts'
import { buildRules } from '../../imdsd/firewall/rules.ts'
import type { FirewallInterface, FirewallDocument } from '../../imdsd/firewall/document.ts'
import { refusalOf } from './nft.ts'

interface Candidate {
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
  const refusal = (candidates: readonly Candidate[]) => {
    const taken = new Set(candidates.map(({ one }) => one))
    const guests = document.guests.map((guest) => ({
      ...guest,
      interfaces: guest.interfaces.filter((one) => taken.has(one)),
    }))
    return refusalOf(buildRules({ ...document, guests }, []))
  }
  /** Those of `candidates` that nft accepts together with `beside`. */
  const accepted = async (
    candidates: readonly Candidate[],
    beside: readonly Candidate[],
  ): Promise<readonly Candidate[]> => {
    if (candidates.length === 0 || refused.length > MAX_REFUSED) return []
    const message = await refusal([...beside, ...candidates])
    if (message === undefined) return candidates
    if (candidates.length === 1) {
      refused.push({ instance: candidates[0]!.instance, interface: candidates[0]!.one.id, message })
      return []
    }
    const half = candidates.length >> 1
    const first = await accepted(candidates.slice(0, half), beside)
    return [...first, ...(await accepted(candidates.slice(half), [...beside, ...first]))]
  }
  if ((await refusal([])) !== undefined) return undefined
  const candidates = document.guests.flatMap(({ id, interfaces }) => interfaces.map((one) => ({ instance: id, one })))
  const wasRefused = ({ instance, one }: Candidate) =>
    before.some((other) => other.instance === instance && other.interface === one.id)
  const others = await accepted(
    candidates.filter((candidate) => !wasRefused(candidate)),
    [],
  )
  await accepted(candidates.filter(wasRefused), others)
  return refused.length > MAX_REFUSED ? undefined : refused
}
