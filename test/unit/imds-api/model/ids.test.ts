import { expect, test } from 'vitest'
import { formatId, isIdOf } from '../../../../src/imds-api/model/ids.ts'
import { ALL_ROWS } from '../../../../src/imds-api/model/resources.ts'

const SHORT = Math.floor(36 ** 5 / 10)

test('ids have a prefix and five characters, and six once a tenth of the five is used up', () => {
  for (const number of [1, 2, 36, SHORT]) expect(formatId('srv', number)).toMatch(/^srv-[0-9a-z]{5}$/)
  for (const number of [SHORT + 1, SHORT + 2, 10 ** 9]) expect(formatId('srv', number)).toMatch(/^srv-[0-9a-z]{6}$/)
})

test('no id is given twice', () => {
  const ids = new Set<string>()
  for (let number = 1; number <= 100_000; number++) ids.add(formatId('cip', number))
  for (let number = SHORT - 50_000; number <= SHORT + 50_000; number++) ids.add(formatId('cip', number))
  expect(ids.size).toBe(200_001)
})

test('the numbers of the five characters come back to the first only after all of them', () => {
  const first = formatId('srv', 0)
  expect(formatId('srv', 1)).not.toBe(first)
  const gcd = (a: bigint, b: bigint): bigint => (b === 0n ? a : gcd(b, a % b))
  for (const [multiplier, space] of [
    [37_370_153n, 36n ** 5n],
    [1_345_325_411n, 36n ** 6n],
  ] as const)
    expect(gcd(multiplier, space)).toBe(1n)
})

test('neighbours and the first ids of two prefixes do not look alike', () => {
  const first = ALL_ROWS.filter(({ givesIds }) => givesIds).map(({ prefix }) => formatId(prefix, 1).slice(4))
  expect(new Set(first).size).toBe(first.length)
  expect(formatId('srv', 1).slice(4, 7)).not.toBe(formatId('srv', 2).slice(4, 7))
})

test.each([
  ['srv', 'srv-abc12', true],
  ['srv', 'srv-abc123', true],
  ['srv', 'srv-abcd', false],
  ['srv', 'srv-abc1234', false],
  ['srv', 'int-abc12', false],
  ['srv', 'srv-ABC12', false],
  ['srv', 'srvabc12', false],
  ['srv', 'srv-abc12\n', false],
])('isIdOf(%j, %j) is %j', (prefix, text, is) => expect(isIdOf(prefix, text)).toBe(is))
