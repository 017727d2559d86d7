/** Countries by their two-letter code, with their names (ISO 3166-1). */
import { iso31661 } from 'iso-3166/1.js' // not the index, which has all subdivisions

const NAMES: ReadonlyMap<string, string> = new Map(iso31661.map(({ alpha2, name }) => [alpha2, name]))

/** The official English short name of a country. For a code that is unknown: the code. */
export function countryName(code: string): string {
  return NAMES.get(code) ?? code
}

export function isCountryCode(code: string): boolean {
  return NAMES.has(code)
}
