import { describe, expect, test } from 'vitest'
import { parseVatNumber } from '../../../../src/imds-api/model/vat-number.ts'

/** Numbers with the right check digits, each state of the EU and Northern Ireland. */
const VALID = [
  'ATU13585627',
  'BE0411905847',
  'BE1000000417',
  'BG202320104',
  'BG831902088',
  'CY10259033P',
  'CZ25123891',
  'DE136695976',
  'DK13585628',
  'EE100931558',
  'EL094259216',
  'ESB58378431',
  'FI20774740',
  'FR40303265045',
  'FRK7399859412',
  'HR33392005961',
  'HU12892312',
  'IE6433435F',
  'IE3206488LH',
  'IE8F52100V',
  'IT00743110157',
  'LT119511515',
  'LU15027442',
  'LV40003521600',
  'MT11679112',
  'NL004495445B01',
  'NL123456789B13',
  'PL8567346215',
  'PT501964843',
  'RO361757',
  'SE123456789701',
  'SI50223054',
  'SK2022749619',
  'SK1020459330',
  'XI980780684',
]

test('numbers of the 27 states and of Northern Ireland are valid', () => {
  expect(new Set(VALID.map((number) => number.slice(0, 2))).size).toBe(28)
})

describe.each(VALID)('%s', (number) => {
  test('is valid, also as people write it', () => {
    expect(parseVatNumber(number)).toBe(number)
    expect(
      parseVatNumber(
        `${number.slice(0, 2).toLowerCase()} ${number.slice(2, 5)}.${number.slice(5, 8)}-${number.slice(8)}`,
      ),
    ).toBe(number)
  })

  test('is refused with another digit, without its prefix, cut, or with more', () => {
    // Dutch numbers have two rules of which one is enough, and the digits behind B have no check in the older one.
    const at = number.startsWith('NL') ? 8 : number.startsWith('SE') ? 9 : number.search(/\d\D*$/)
    const other = `${number.slice(0, at)}${(Number(number[at]) + 1) % 10}${number.slice(at + 1)}`
    for (const wrong of [
      other,
      number.slice(2),
      number.slice(0, -1),
      `${number}0`,
      `${number.slice(0, 2)}${number}`,
      `${number}\n`,
    ])
      expect(parseVatNumber(wrong), wrong).toBeUndefined()
  })
})

test.each(['LV32044887341', 'BG7501020018', 'SK7103192745'])('%j is the number of a person', (number) => {
  expect(parseVatNumber(number)).toBe(number)
})

test('of Bulgarian numbers of ten digits, few are right', () => {
  const numbers = Array.from({ length: 10 }, (_, digit) => `BG999999999${digit}`)
  expect(numbers.filter((number) => parseVatNumber(number) !== undefined).length).toBeLessThan(4)
})

test.each([
  '',
  'DE',
  'XX123456789',
  'US123456789',
  'GB980780684',
  'GR094259216',
  'DE１３６６９５９７６',
  'DE136695976 DE136695976',
  '136695976',
  'DE13669597６',
  'constructor',
  '__proto__',
])('%j is no EU VAT number', (text) => expect(parseVatNumber(text)).toBeUndefined())
