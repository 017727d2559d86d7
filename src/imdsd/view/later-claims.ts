/**
 * Which of several instances keeps a range that they claim: the last that claimed it (invariant 7).
 *
 * The others lose it for good, also if the last one leaves: a record that was published before the range was lost gets
 * nothing of it. The store gives no range to two instances, so an earlier claim is out of date, and it would be served
 * again if the store went back.
 */
import { overlap, splitPrefix } from '../../metadata/address.ts'
import { rangesOf, type Interface, type NetworkRange } from '../../metadata/instance.ts'
import type { LostRange, ValidRecord } from './validate.ts'

/**
 * What a new record and the records of other instances keep of their ranges. `known`: what its instance had lost before.
 * `losers`: the others that lose some, as they are then. Of records with the same order, each keeps all.
 */
export function settle<T extends ValidRecord>(
  added: T,
  known: readonly LostRange[],
  others: Iterable<ValidRecord>,
): { readonly record: T; readonly losers: readonly ValidRecord[] } {
  let record = known
    .filter(({ order }) => order > added.order)
    .reduce((rest, range) => without(rest, [range], range.order), added)
  const losers: ValidRecord[] = []
  for (const other of others) {
    if (other.order > record.order) record = without(record, rangesOf(other.instance), other.order)
    if (other.order < record.order) {
      const rest = without(other, rangesOf(record.instance), record.order)
      if (rest !== other) losers.push(rest)
    }
  }
  return { record, losers }
}

/** A record without its ranges that overlap some of a later order; the same object if none does. */
function without<T extends ValidRecord>(record: T, ranges: readonly NetworkRange[], order: number): T {
  const isLost = ({ network, range }: NetworkRange) =>
    ranges.some((other) => other.network === network && overlap(range, other.range))
  const lost = rangesOf(record.instance).filter(isLost)
  if (lost.length === 0) return record
  const rest = (nic: Interface): Interface => {
    const isKept = (range: string) => !isLost({ network: nic.network, range: splitPrefix(range).address })
    return {
      ...nic,
      ipv4Addresses: nic.ipv4Addresses.filter(isKept),
      ipv6Addresses: nic.ipv6Addresses.filter(isKept),
      ipv6Prefixes: nic.ipv6Prefixes.filter((range) => !isLost({ network: nic.network, range })),
    }
  }
  const instance = { ...record.instance, interfaces: record.instance.interfaces.map(rest) }
  return { ...record, instance, lost: [...record.lost, ...lost.map((range) => ({ ...range, order }))] }
}
