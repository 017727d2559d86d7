import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { buildFileSource } from '../../../../src/store/files/source.ts'
import { validate } from '../../../../src/imdsd/view/validate.ts'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const MIB = 1024 * 1024
const warned: object[] = []
const log = {
  warn: (details: object) => warned.push(details),
}
const aDirectory = () => temporaryDirectory()

test('a file store hashes user-data in slices, for the index, the record and their check', async () => {
  const directory = aDirectory()
  for (const [id, size] of [
    ['srv-large', 16 * MIB],
    ['srv-small', 5],
  ] as const) {
    writeFileSync(join(directory, `${id}.json`), JSON.stringify(anInstance({ id })))
    writeFileSync(join(directory, `${id}.user-data`), Buffer.alloc(size, id))
  }
  const source = buildFileSource(directory, 16 * MIB, log)
  const found: string[] = []
  const { hashed } = await mostBytesPerTurn(async () => {
    const { digests } = await source.index()
    for await (const loaded of source.load([...digests.keys()])) {
      if (loaded.kind !== 'record') throw new Error(loaded.kind)
      const assembled = validate(loaded, 16 * MIB)
      if (!assembled.ok) throw new Error(JSON.stringify(assembled.faults))
      found.push(assembled.value.instance.id)
    }
  })
  expect(found.sort()).toEqual(['srv-large', 'srv-small'])
  expect(hashed).toBeGreaterThan(0)
  expect(hashed).toBeLessThanOrEqual(MIB + SLICE_BYTES)
})

test('an index reads only files that changed since the last one, or just before it', async () => {
  const directory = aDirectory()
  const path = join(directory, 'srv-abcde.json')
  const write = (revision: number) => writeFileSync(path, JSON.stringify(anInstance({ revision })))
  const source = buildFileSource(directory, 16_384, log)
  const digest = async () => (await source.index()).digests.get('srv-abcde')
  const isRead = async () => (await mostBytesPerTurn(digest)).hashed > 0
  write(1)
  const [first, nowMs] = [await digest(), Date.now()]
  expect(await isRead()).toBe(true) // it may change again within the same tick
  const clock = vi.spyOn(Date, 'now').mockReturnValue(nowMs + 10_000)
  expect([await isRead(), await isRead()]).toEqual([true, false])
  expect(await digest()).toBe(first)
  write(2)
  const second = await digest()
  clock.mockRestore()
  expect(second).not.toBe(first)
  writeFileSync(join(directory, 'srv-abcde.user-data'), 'new')
  expect(await digest()).not.toBe(second)
  rmSync(path)
  expect(await digest()).toBe(undefined)
})

test('files that are not read, though their names end like those of the store, are named once', async () => {
  const directory = aDirectory()
  const source = buildFileSource(directory, MIB, log)
  for (const name of ['srv-a.json', 'srv c.json', 'srv-x.JSON', '.srv-y.json', 'notes.txt', 'srv-a.user-data'])
    writeFileSync(join(directory, name), JSON.stringify(anInstance({ id: 'srv-a' })))
  await source.index()
  await source.index()
  expect(warned).toEqual([{ code: 'files-misnamed', files: ['srv c.json', 'srv-x.JSON'], count: 2 }])
})
