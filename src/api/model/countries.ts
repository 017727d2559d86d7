/** Countries by their code (ISO 3166-1), from the runtime's own data (Unicode CLDR). */

const NAMES = new Intl.DisplayNames(['en-GB'], { type: 'region', fallback: 'none' })

/** The English name of a country; its code where it is unknown. */
export function countryName(code: string): string {
  return isCountryCode(code) ? NAMES.of(code)! : code
}

/** True for the code of a country. */
export function isCountryCode(code: string): boolean {
  return /^[A-Z]{2}$/.test(code) && NAMES.of(code) !== undefined
}
