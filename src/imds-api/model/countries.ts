/** Countries by their two-letter code, with their names (ISO 3166-1). */
import { iso31661 } from 'iso-3166/1.js' // not the index, which has all subdivisions

const NAMES: ReadonlyMap<string, string> = new Map(iso31661.map(({ alpha2, name }) => [alpha2, name]))

/** The official English short name of a country. For a code that is unknown: the code. */
export function countryName(code: string): string {
  return NAMES.get(code) ?? code
}

/**
 * Other codes of a country: the three-letter ones, those that its people or the EU use, and its name. In upper case.
 */
const OTHER_CODES: ReadonlyMap<string, string> = new Map([
  ...iso31661.flatMap(
    ({ alpha2, alpha3, name }) =>
      [
        [alpha3, alpha2],
        [name.toUpperCase(), alpha2],
      ] as const,
  ),
  ['UK', 'GB'],
  ['EL', 'GR'],
])

/** The code of a country for a text with its code in lower case, another code of it, or its official name. */
export function suggestCountry(text: string): string | undefined {
  const upper = text.trim().toUpperCase()
  return NAMES.has(upper) ? upper : OTHER_CODES.get(upper)
}

export function isCountryCode(code: string): boolean {
  return NAMES.has(code)
}
