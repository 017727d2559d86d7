/**
 * VAT numbers of the European Union: the 27 member states, with the prefixes of VIES (Greece has EL), and Northern
 * Ireland (XI). Format and check digits are checked, not whether the number is registered. Since 2021 the numbers of
 * Great Britain are not among them.
 */
// one file for each country: the index loads all countries of the world
import { validate as at } from 'stdnum/lib/cjs/at/uid.js'
import { validate as be } from 'stdnum/lib/cjs/be/vat.js'
import { validate as egn } from 'stdnum/lib/cjs/bg/egn.js'
import { validate as pnf } from 'stdnum/lib/cjs/bg/pnf.js'
import { validate as cy } from 'stdnum/lib/cjs/cy/vat.js'
import { validate as cz } from 'stdnum/lib/cjs/cz/dic.js'
import { validate as de } from 'stdnum/lib/cjs/de/vat.js'
import { validate as dk } from 'stdnum/lib/cjs/dk/cvr.js'
import { validate as ee } from 'stdnum/lib/cjs/ee/kmkr.js'
import { validate as es } from 'stdnum/lib/cjs/es/nif.js'
import { validate as fi } from 'stdnum/lib/cjs/fi/alv.js'
import { validate as fr } from 'stdnum/lib/cjs/fr/tva.js'
import { validate as gb } from 'stdnum/lib/cjs/gb/vat.js'
import { validate as gr } from 'stdnum/lib/cjs/gr/vat.js'
import { validate as hr } from 'stdnum/lib/cjs/hr/oib.js'
import { validate as hu } from 'stdnum/lib/cjs/hu/anum.js'
import { validate as ie } from 'stdnum/lib/cjs/ie/vat.js'
import { validate as it } from 'stdnum/lib/cjs/it/iva.js'
import { validate as lt } from 'stdnum/lib/cjs/lt/pvm.js'
import { validate as lu } from 'stdnum/lib/cjs/lu/tva.js'
import { validate as lv } from 'stdnum/lib/cjs/lv/pvn.js'
import { validate as mt } from 'stdnum/lib/cjs/mt/vat.js'
import { validate as nl } from 'stdnum/lib/cjs/nl/btw.js'
import { validate as pl } from 'stdnum/lib/cjs/pl/nip.js'
import { validate as pt } from 'stdnum/lib/cjs/pt/nif.js'
import { validate as ro } from 'stdnum/lib/cjs/ro/cif.js'
import { validate as se } from 'stdnum/lib/cjs/se/vat.js'
import { validate as si } from 'stdnum/lib/cjs/si/ddv.js'
import { validate as rc } from 'stdnum/lib/cjs/sk/rc.js'

type Check = (body: string) => boolean

/** Accepts complete numbers only: the library also accepts a number with its prefix, or without leading zeros. */
function complete(validate: typeof at): Check {
  return (body) => {
    const result = validate(body)
    return result.isValid && result.compact === body
  }
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
  if (/^\d{10}$/.test(body))
    return (
      [egn, pnf].some((validate) => complete(validate)(body)) ||
      (11 - sumOf(body, [4, 3, 2, 7, 6, 5, 4, 3, 2])) % 11 === Number(body[9])
    )
  if (!/^\d{9}$/.test(body)) return false
  const sum = sumOf(body, [1, 2, 3, 4, 5, 6, 7, 8])
  return (sum === 10 ? sumOf(body, [3, 4, 5, 6, 7, 8, 9, 10]) % 10 : sum) === Number(body[8])
}

/**
 * Latvia. The personal numbers of 2017 and later begin with 32 and have no check digit; the library does not know them.
 */
function isLatvian(body: string): boolean {
  return /^32\d{9}$/.test(body) || complete(lv)(body)
}

/** Slovakia. The library checks the first digit instead of the third, and so rejects the numbers of people. */
function isSlovak(body: string): boolean {
  return (
    (/^[1-9]\d[234789]\d{7}$/.test(body) && Number(body) % 11 === 0) || (/^\d{10}$/.test(body) && complete(rc)(body))
  )
}

const CHECKS: ReadonlyMap<string, Check> = new Map<string, Check>([
  ['BG', isBulgarian],
  ['LV', isLatvian],
  ['SK', isSlovak],
  ...Object.entries({
    AT: at,
    BE: be,
    CY: cy,
    CZ: cz,
    DE: de,
    DK: dk,
    EE: ee,
    EL: gr,
    ES: es,
    FI: fi,
    FR: fr,
    HR: hr,
    HU: hu,
    IE: ie,
    IT: it,
    LT: lt,
    LU: lu,
    MT: mt,
    NL: nl,
    PL: pl,
    PT: pt,
    RO: ro,
    SE: se,
    SI: si,
    XI: gb,
  }).map(([prefix, validate]): [string, Check] => [prefix, complete(validate)]),
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
