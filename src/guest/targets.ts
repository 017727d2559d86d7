/**
 * Parses request targets, and caches the results: guests request the same targets repeatedly, and V8 keeps the
 * hash of a cached path. Memory is bounded, whatever guests request.
 */
import { LRUCache } from 'lru-cache'
import { parseTarget } from '../metadata/target.ts'

/** The most targets in the cache, and the length of the longest. */
const MAX_TARGETS = 1_024
const MAX_LENGTH = 256

/** Parses targets, as `parseTarget` does. */
export class Targets {
  readonly #parsed = new LRUCache<string, ReturnType<typeof parseTarget>>({ max: MAX_TARGETS })

  parse(text: string): ReturnType<typeof parseTarget> {
    const known = this.#parsed.get(text)
    if (known !== undefined) return known
    const parsed = parseTarget(text)
    if (parsed.ok && text.length <= MAX_LENGTH) this.#parsed.set(text, parsed)
    return parsed
  }
}
