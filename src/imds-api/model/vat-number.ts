/**
 * VAT numbers of the European Union: the 27 member states, with the prefixes of VIES (Greece has EL), and Northern
 * Ireland (XI). Format and check digits are checked, not whether the number is registered. Since 2021 the numbers of
 * Great Britain are not among them.
 */
import { createRequire } from 'node:module'
import type { Validator } from 'stdnum'

/** Loaded with the first number: it knows all countries of the world, which takes 0.2 s and 25 MB. */
const library = () => createRequire(import.meta.url)('stdnum') as typeof import('stdnum')

type Check = (body: string) => boolean

/** Accepts complete numbers only: the library also accepts a number with its prefix, or without leading zeros. */
function isComplete(validators: readonly Validator[], body: string): boolean {
  return validators.some((validator) => {
    const result = validator.validate(body)
    return result.isValid && result.compact === body
  })
}

/** The sum of the digits, each times its weight, modulo 11. */
function sumOf(body: string, weights: readonly number[]): number {
  return weights.reduce((sum, weight, i) => sum + weight * Number(body[i]), 0) % 11
}

/**
 * Bulgaria. The library (stdnum 1.12) rejects companies whose number begins with 4 to 8, and accepts nearly every
 * number of 10 digits.
 */
function isBulgarian(body: string): boolean {
  const { egn, pnf } = library().stdnum['BG']!
  if (/^\d{10}$/.test(body))
    return isComplete([egn!, pnf!], body) || (11 - sumOf(body, [4, 3, 2, 7, 6, 5, 4, 3, 2])) % 11 === Number(body[9])
  if (!/^\d{9}$/.test(body)) return false
  const sum = sumOf(body, [1, 2, 3, 4, 5, 6, 7, 8])
  return (sum === 10 ? sumOf(body, [3, 4, 5, 6, 7, 8, 9, 10]) % 10 : sum) === Number(body[8])
}

/**
 * Latvia. The personal numbers of 2017 and later begin with 32 and have no check digit; the library does not know them.
 */
function isLatvian(body: string): boolean {
  return /^32\d{9}$/.test(body) || isComplete(library().euVat['LV']!, body)
}

/** Slovakia. The library checks the first digit instead of the third, and so rejects the numbers of people. */
function isSlovak(body: string): boolean {
  return (
    (/^[1-9]\d[234789]\d{7}$/.test(body) && Number(body) % 11 === 0) ||
    (/^\d{10}$/.test(body) && isComplete([library().stdnum['SK']!['rc']!], body))
  )
}

const CHECKS: ReadonlyMap<string, Check> = new Map<string, Check>([
  ['BG', isBulgarian],
  ['LV', isLatvian],
  ['SK', isSlovak],
  ['EL', (body) => isComplete(library().euVat['GR']!, body)],
  ['XI', (body) => isComplete([library().stdnum['GB']!['vat']!], body)],
  ...'AT BE CY CZ DE DK EE ES FI FR HR HU IE IT LT LU MT NL PL PT RO SE SI'
    .split(' ')
    .map((country): [string, Check] => [country, (body) => isComplete(library().euVat[country]!, body)]),
])

/**
 * The number without the spaces, dots and dashes that people write in it, in upper case. Undefined: it is not a VAT
 * number of the EU.
 */
export function parseVatNumber(text: string): string | undefined {
  const number = text.replaceAll(/[ .-]/g, '').toUpperCase()
  const body = number.slice(2)
  return /^[0-9A-Z+*]+$/.test(body) && CHECKS.get(number.slice(0, 2))?.(body) === true ? number : undefined
}
