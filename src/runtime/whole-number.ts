/**
 * Parses a whole number of a variable or an option, from `least` to `most`. Undefined for any other text: with a sign,
 * a fraction, an exponent or a leading zero, or in another base, since some readers take 010 for 8 and 0x10 for 0.
 */
export function parseWhole(text: string, least: number, most: number): number | undefined {
  const value = /^(?:0|[1-9]\d*)$/.test(text) ? Number(text) : NaN
  return value >= least && value <= most ? value : undefined
}
