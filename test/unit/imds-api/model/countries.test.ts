import { expect, test } from 'vitest'
import { countryName, isCountryCode } from '../../../../src/imds-api/model/countries.ts'

test('a country has the name of ISO 3166-1', () => {
  expect(['GB', 'US', 'DE', 'CI', 'KR'].map(countryName)).toEqual([
    'United Kingdom of Great Britain and Northern Ireland',
    'United States of America',
    'Germany',
    "Côte d'Ivoire",
    'Korea, Republic of',
  ])
  expect(countryName('QQ')).toBe('QQ')
})

test('there are 249 countries', () => {
  const letters = 'A B C D E F G H I J K L M N O P Q R S T U V W X Y Z'.split(' ')
  expect(letters.flatMap((first) => letters.filter((second) => isCountryCode(first + second)))).toHaveLength(249)
})

test.each([
  ['GB', true],
  ['US', true],
  ['AX', true],
  ['gb', false],
  ['GBR', false],
  ['QQ', false],
  ['', false],
  ['G\n', false],
  ['UK', false],
  ['EU', false],
  ['XK', false],
  ['AC', false],
  ['SU', false],
  ['ZZ', false], // reserved, withdrawn, or for private use
])('%j is a code: %j', (code, is) => expect(isCountryCode(code)).toBe(is))
