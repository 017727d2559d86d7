/**
 * Parses request targets, and remembers the ones that were parsed: guests ask for the same targets again and again, and V8 keeps the hash of a
 * remembered path. Memory is bounded, whatever guests ask for.
 */
import { LRUCache } from 'lru-cache'
import { parseTarget } from '../metadata/target.ts'

/** The number of targets that are remembered, and the length of the longest. */
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
