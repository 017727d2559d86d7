import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { buildFileSource } from '../../../../src/store/files/source.ts'
import { validate } from '../../../../src/imdsd/view/validate.ts'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const MIB = 1024 * 1024
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
  const source = buildFileSource(directory, 16 * MIB)
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

test('the digest of an instance in the index is that of its loading, and differs with each of its files', async () => {
  const directory = aDirectory()
  const path = join(directory, 'srv-abcde.json')
  const source = buildFileSource(directory, 16_384)
  const digest = async () => {
    const { digests } = await source.index()
    for await (const loaded of source.load(['srv-abcde']))
      expect(loaded).toMatchObject({ digest: digests.get('srv-abcde') })
    return digests.get('srv-abcde')
  }
  const found = new Set<string | undefined>()
  for (const write of [
    () => writeFileSync(path, JSON.stringify(anInstance())),
    () => writeFileSync(path, JSON.stringify(anInstance({ revision: 2 }))),
    () => writeFileSync(join(directory, 'srv-abcde.user-data'), ''),
    () => writeFileSync(join(directory, 'srv-abcde.user-data'), 'new'),
    () => writeFileSync(join(directory, 'srv-abcde.yml'), '{'),
    () => writeFileSync(join(directory, 'srv-abcde.user-data'), 'n'.repeat(16_385)),
  ]) {
    write()
    found.add(await digest())
  }
  expect(found.size).toBe(6)
  for (const ending of ['.json', '.yml']) rmSync(join(directory, `srv-abcde${ending}`))
  expect((await source.index()).digests.get('srv-abcde')).toBe(undefined)
})
