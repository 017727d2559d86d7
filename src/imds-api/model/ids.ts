/**
 * Ids of resources: a prefix, a dash and a number in base 36, of five characters; of six once a tenth of the
 * five-character ids is used up, since clients expect five (Terraform: `^srv-.....$`). Numbers come from sequences of
 * the database, so no id is given twice. Consecutive numbers give ids that do not look alike. Ids are no secrets.
 */
import { ALL_ROWS, type Kind } from './resources.ts'

const KINDS: ReadonlyMap<string, Kind> = new Map(ALL_ROWS.map(({ prefix, kind }) => [prefix, kind]))

/** What an id identifies, by its prefix alone. Undefined: the text is no id, or has an unknown prefix. */
export function kindOf(id: string): Kind | undefined {
  const prefix = id.slice(0, 3)
  return isIdOf(prefix, id) ? KINDS.get(prefix) : undefined
}

const FIVE = 36n ** 5n
const SIX = 36n ** 6n
const SHORT_IDS = FIVE / 10n
/**
 * Multipliers near the golden ratio of each space, and coprime to it: `n * multiplier` modulo the space gives each
 * value once.
 */
const FIVE_MULTIPLIER = 37_370_153n
const SIX_MULTIPLIER = 1_345_325_411n
const PREFIX_SHIFT = 1_299_709n

/** The id with a number, counted from 1. */
export function formatId(prefix: string, number: number): string {
  const n = BigInt(number)
  const shift = BigInt(Number.parseInt(prefix, 36)) * PREFIX_SHIFT // the first ids of two prefixes must not look alike
  const text =
    n <= SHORT_IDS
      ? ((n * FIVE_MULTIPLIER + shift) % FIVE).toString(36).padStart(5, '0')
      : (((n - SHORT_IDS) * SIX_MULTIPLIER + shift) % SIX).toString(36).padStart(6, '0')
  return `${prefix}-${text}`
}

/** True for an id with this prefix, as clients and the region file may write it. */
export function isIdOf(prefix: string, text: string): boolean {
  return text.startsWith(`${prefix}-`) && /^[0-9a-z]{5,6}$/.test(text.slice(prefix.length + 1))
}
