import { mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { buildFileSource } from '../../../../src/store/files/source.ts'
import { assemble } from '../../../../src/view/validate.ts'
import { SLICE_BYTES } from '../../../../src/runtime/turn-budget.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const MIB = 1024 * 1024
const ROOT = mkdtempSync(join(tmpdir(), 'imds-files-'))
afterAll(() => { rmSync(ROOT, { recursive: true }) })
const aDirectory = () => mkdtempSync(join(ROOT, 'store-'))

test('a file store hashes user-data in slices, for the index, the record and their check', async () => {
  const directory = aDirectory()
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
  const write = (revision: number, seconds: number) => {
    writeFileSync(path, JSON.stringify(anInstance({ revision })))
    utimesSync(path, seconds, seconds)
  }
  const source = buildFileSource(directory, 16_384)
  const digest = async () => (await source.index()).digests.get('srv-abcde')
  write(1, 1000)
  const first = await digest()
  write(2, 1000) // with the stamp of the first: it is not read
  expect(await digest()).toBe(first)
  write(2, 1001)
  const second = await digest()
  expect(second).not.toBe(first)
  const seconds = Date.now() / 1000 + 60 // a file that may change again with the same stamp
  write(3, seconds)
  const third = await digest()
  write(4, seconds)
  const fourth = await digest()
  expect(new Set([first, second, third, fourth]).size).toBe(4)
  writeFileSync(join(directory, 'srv-abcde.user-data'), 'new')
  expect(await digest()).not.toBe(fourth)
  rmSync(path)
  expect(await digest()).toBe(undefined)
})

test('a directory names the hypervisors of its records; one without records names none', async () => {
  const directory = aDirectory()
  const source = buildFileSource(directory, MIB)
  writeFileSync(join(directory, 'srv-a.removed'), '1')
  writeFileSync(join(directory, 'srv-a.user-data'), 'x')
  expect(await source.hypervisors()).toEqual([])
  writeFileSync(join(directory, 'srv-b.json'), 'no JSON')
  expect(await source.hypervisors()).toBe(undefined)
  writeFileSync(join(directory, 'srv-c.json'), JSON.stringify(anInstance({ id: 'srv-c', hypervisors: ['hv2', 'hv1'] })))
  expect(await source.hypervisors()).toEqual(['hv1', 'hv2'])
})
