/** Invariant 3 with generated records. */
import { expect, test } from 'vitest'
import { diceOf } from '../../fuzz/dice.ts'
import { checkRecord, mutatedRecord } from '../../fuzz/records.ts'

const [SEED, RECORDS] = [5, 600]

test('invariant 3: a mutated record is a valid instance, or faults with places and no values', () => {
  let valid = 0
  for (let n = 0; n < RECORDS; n++) {
    const document = mutatedRecord(diceOf(SEED, n))
    const result = checkRecord(document)
    expect(result.wrong, JSON.stringify(document)).toBeUndefined()
    valid += Number(result.valid)
  }
  expect(valid).toBeGreaterThan(RECORDS / 20)
  expect(RECORDS - valid).toBeGreaterThan(RECORDS / 20)
})
