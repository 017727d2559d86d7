import { expect, test } from 'vitest'
import { countryName, isCountryCode } from '../../../../src/api/model/countries.ts'

test('a country has its English name', () => {
  expect(['GB', 'DE', 'CI'].map(countryName)).toEqual(['United Kingdom', 'Germany', 'Côte d’Ivoire'])
  expect(countryName('QQ')).toBe('QQ')
})

test.each([['GB', true], ['US', true], ['gb', false], ['GBR', false], ['QQ', false], ['', false], ['G\n', false]])('%j is a code: %j', (code, is) => { expect(isCountryCode(code)).toBe(is) })
