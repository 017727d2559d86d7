import { expect, onTestFinished, test, vi } from 'vitest'
import { sha256InSlices, SLICE_BYTES, slices, TurnBudget } from '../../../src/limits/turn-budget.ts'
import { sha256 } from '../../../src/metadata/user-data.ts'
import { mostBytesPerTurn } from '../../support/fixtures/bytes-per-turn.ts'

const MIB = 1024 * 1024

test('slices are the parts of a value, of at most SLICE_BYTES, without a copy', () => {
  for (const size of [0, 1, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES]) {
    const bytes = Buffer.alloc(size, 'abc')
    const parts = [...slices(bytes)]
    expect(Buffer.concat(parts).equals(bytes)).toBe(true)
    expect(parts.every((part) => part.length <= SLICE_BYTES && part.buffer === bytes.buffer)).toBe(true)
    expect(parts).toHaveLength(Math.ceil(size / SLICE_BYTES))
  }
})

test('a digest in slices equals the digest, with at most a mebibyte per turn of the event loop', async () => {
  const bytes = Buffer.alloc(16 * MIB + 5, 'abc')
  let digest = ''
  const { hashed } = await mostBytesPerTurn(async () => {
    digest = await sha256InSlices(bytes, new TurnBudget())
  })
  expect(digest).toBe(sha256(bytes))
  expect(hashed).toBeLessThanOrEqual(MIB)
})

test('many small values share the bytes of a turn of the event loop', async () => {
  const budget = new TurnBudget()
  const values = Array.from({ length: 1000 }, () => Buffer.alloc(16_384))
  const { hashed } = await mostBytesPerTurn(async () => {
    for (const value of values) await sha256InSlices(value, budget)
  })
  expect(hashed).toBeLessThanOrEqual(MIB)
})

test('the end of the time ends the turn, however few the bytes; until then it goes on', async () => {
  const clock = vi.spyOn(performance, 'now').mockReturnValue(1_000)
  onTestFinished(() => clock.mockRestore())
  const budget = new TurnBudget()
  let isNextTurn = false
  setImmediate(() => {
    isNextTurn = true
  })
  clock.mockReturnValue(1_003.9)
  await budget.spend(1)
  expect(isNextTurn).toBe(false)
  clock.mockReturnValue(1_004)
  await budget.spend(1)
  expect(isNextTurn).toBe(true)
})
