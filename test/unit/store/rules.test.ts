import { expect, test } from 'vitest'
import { isOtherIncarnation, judgePut, type Stored } from '../../../src/store/rules.ts'

const STORED: Stored = { revision: 5, incarnation: 'a', sealedAt: undefined, ranges: [], isRemoved: false }

test.each([true, false])('a revision that the store has had is not written again (removed: %s)', (isRemoved) => {
  expect(judgePut(5, { ...STORED, isRemoved }, false, undefined)).toEqual({ kind: 'stale', revision: 5 })
  expect(judgePut(6, { ...STORED, isRemoved }, false, undefined)).toEqual({ kind: 'write' })
})

test('a record is of another incarnation only if both say which', () => {
  expect(isOtherIncarnation(STORED, 'b')).toBe(true)
  for (const [stored, given] of [
    [STORED, 'a'],
    [STORED, undefined],
    [{ ...STORED, incarnation: undefined }, 'b'],
    [undefined, 'b'],
  ] as const)
    expect(isOtherIncarnation(stored, given)).toBe(false)
})
