/**
 * Which of several instances keeps a range that they claim: the one that claimed it last (invariant 7).
 *
 * The others lose it for good, also if the last one leaves. The store gives no range to two instances, so an earlier
 * claim is out of date, and it would be served again if the store went back.
 */
import { overlap, splitPrefix } from '../../metadata/address.ts'
import { rangesOf, type Interface, type NetworkRange } from '../../metadata/instance.ts'
import type { ValidRecord } from './validate.ts'

/**
 * What a new record and the records of other instances keep of their ranges. `losers`: the others that lose some, as
 * they are then. Of records with the same order, each keeps all.
 */
export function settle<T extends ValidRecord>(
  added: T,
  others: Iterable<ValidRecord>,
): { readonly record: T; readonly losers: readonly ValidRecord[] } {
  let record = added
  const losers: ValidRecord[] = []
  for (const other of others) {
    if (other.order > record.order) record = without(record, rangesOf(other.instance))
    if (other.order < record.order) {
      const rest = without(other, rangesOf(record.instance))
      if (rest !== other) losers.push(rest)
    }
  }
  return { record, losers }
}

/** A record without its ranges that overlap some others; the same object if none does. */
export function without<T extends ValidRecord>(record: T, ranges: readonly NetworkRange[]): T {
  const isLost = ({ network, range }: NetworkRange) =>
    ranges.some((other) => other.network === network && overlap(range, other.range))
  const lost = rangesOf(record.instance).filter(isLost)
  if (lost.length === 0) return record
  const rest = (one: Interface): Interface => {
    const isKept = (range: string) => !isLost({ network: one.network, range: splitPrefix(range).address })
    return {
      ...one,
      ipv4Addresses: one.ipv4Addresses.filter(isKept),
      ipv6Addresses: one.ipv6Addresses.filter(isKept),
      ipv6Prefixes: one.ipv6Prefixes.filter((range) => !isLost({ network: one.network, range })),
    }
  }
  const instance = { ...record.instance, interfaces: record.instance.interfaces.map(rest) }
  return { ...record, instance, lost: [...record.lost, ...lost] }
}
