/** Which instances own an address, or a part of a range, by the records of a directory. */
import { ipv6Digits } from '../../metadata/address.ts'
import type { NetworkRange } from '../../metadata/instance.ts'

/** The owners of ranges. Two instances may own one, since people edit records. */
export class Owners {
  /** `NETWORK ADDRESS` for IPv4, `NETWORK DIGITS` for IPv6 (metadata/address.ts) -> ids. */
  readonly #ids = new Map<string, Set<string>>()

  add(id: string, ranges: readonly NetworkRange[]): void {
    for (const range of ranges) {
      const key = keyOf(range)
      const ids = this.#ids.get(key)
      if (ids === undefined) this.#ids.set(key, new Set([id]))
      else ids.add(id)
    }
  }

  remove(id: string, ranges: readonly NetworkRange[]): void {
    for (const range of ranges) {
      const key = keyOf(range)
      const ids = this.#ids.get(key)
      ids?.delete(id)
      if (ids?.size === 0) this.#ids.delete(key)
    }
  }

  /**
   * The instances that own an address of a range. Takes a few lookups, and a search of all ranges for an IPv6 prefix.
   */
  overlapping(range: NetworkRange): Set<string> {
    const key = keyOf(range)
    if (!range.range.includes(':')) return new Set(this.#ids.get(key))
    const found = new Set<string>()
    const shortest = range.network.length + 2
    for (let end = shortest; end <= key.length; end++)
      for (const id of this.#ids.get(key.slice(0, end)) ?? []) found.add(id)
    if (range.range.includes('/'))
      for (const [inside, ids] of this.#ids) if (inside.startsWith(key)) for (const id of ids) found.add(id)
    return found
  }
}

function keyOf({ network, range }: NetworkRange): string {
  return `${network} ${range.includes(':') ? ipv6Digits(range) : range}`
}
