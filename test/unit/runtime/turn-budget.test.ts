import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { buildFileSource } from '../../../src/store/files/source.ts'
import { sha256InSlices, SLICE_BYTES, slices, TurnBudget } from '../../../src/runtime/turn-budget.ts'
import { sha256 } from '../../../src/metadata/user-data.ts'
import { assemble } from '../../../src/view/validate.ts'
import { mostBytesPerTurn } from '../../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

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
  const { hashed } = await mostBytesPerTurn(async () => { digest = await sha256InSlices(bytes, new TurnBudget()) })
  expect(digest).toBe(sha256(bytes))
  expect(hashed).toBeLessThanOrEqual(MIB)
})

test('many small values share a turn of the event loop, and end it together', async () => {
  const budget = new TurnBudget()
  const values = Array.from({ length: 1000 }, () => Buffer.alloc(16_384))
  const { hashed } = await mostBytesPerTurn(async () => { for (const value of values) await sha256InSlices(value, budget) })
  expect(hashed).toBeLessThanOrEqual(MIB)
})

test('an exhausted time budget ends the turn, however few the bytes', async () => {
  const budget = new TurnBudget()
  for (const startedMs = performance.now(); performance.now() - startedMs < 6;) { /* work */ }
  let isNextTurn = false
  setImmediate(() => { isNextTurn = true })
  await budget.spend(1)
  expect(isNextTurn).toBe(true)
})

test('a file store hashes user-data in slices, for the index, the record and their check', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-turns-'))
  try {
    for (const [id, size] of [['srv-large', 16 * MIB], ['srv-small', 5]] as const) {
      writeFileSync(join(directory, `${id}.json`), JSON.stringify(anInstance({ id })))
      writeFileSync(join(directory, `${id}.user-data`), Buffer.alloc(size, id))
    }
    const source = buildFileSource(directory, 16 * MIB)
    const found: string[] = []
    const { hashed } = await mostBytesPerTurn(async () => {
      const { digests } = await source.index()
      for await (const loaded of source.load([...digests.keys()])) {
        if (loaded.kind !== 'record') throw new Error(loaded.kind)
        const assembled = assemble(loaded, 16 * MIB)
        if ('reason' in assembled) throw new Error(JSON.stringify(assembled.faults))
        found.push(assembled.instance.id)
      }
    })
    expect(found.sort()).toEqual(['srv-large', 'srv-small'])
    expect(hashed).toBeGreaterThan(0)
    expect(hashed).toBeLessThanOrEqual(MIB + SLICE_BYTES)
  } finally {
    rmSync(directory, { recursive: true })
  }
})
