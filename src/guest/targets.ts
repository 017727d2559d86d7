/**
 * What was asked before?
 *
 * Guests ask for the same targets again and again, and most are the same for all guests. What was parsed is remembered, and with it the text of
 * its path, whose hash V8 then knows: to parse anew is half of what a decision costs. What is remembered is bounded, whatever guests ask for.
 */
import { parseTarget, type Target } from '../metadata/target.ts'

/** So many targets are remembered, none longer than this; beyond it, all are forgotten. */
const MOST = 1_024
const LONGEST = 256

/** Parses targets, as `parseTarget` does. */
export class Targets {
  readonly #parsed = new Map<string, Target>()

  parse(text: string): Target | 'malformed' {
    const known = this.#parsed.get(text)
    if (known !== undefined) return known
    const target = parseTarget(text)
    if (target === 'malformed' || text.length > LONGEST) return target
    if (this.#parsed.size >= MOST) this.#parsed.clear()
    this.#parsed.set(text, target)
    return target
  }
}
