import { execFileSync } from 'node:child_process'
import { mkdtempSync, renameSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { buildFileSource, loadFiles } from '../../../../src/store/files/source.ts'
import { formatPending } from '../../../../src/store/files/pending.ts'
import { assemble } from '../../../../src/view/validate.ts'
import { SLICE_BYTES } from '../../../../src/runtime/turn-budget.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const MIB = 1024 * 1024
const ROOT = mkdtempSync(join(tmpdir(), 'imds-files-'))
afterAll(() => { rmSync(ROOT, { recursive: true }) })
const aDirectory = () => mkdtempSync(join(ROOT, 'store-'))

test('a read during a write returns one state, not a record with the user-data of another', async () => {
  const directory = aDirectory()
  const userData = join(directory, `${ID}.user-data`)
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  execFileSync('mkfifo', [userData])
  const loading = loadFiles(directory, ID)
  const held = await open(userData, 'w') // opens once the reader has
  writeFileSync(join(directory, `${ID}.pending`), formatPending({ kind: 'put', document: anInstance({ revision: 2 }), userData: Buffer.from('two') }))
  await held.writeFile('half of a change')
  await held.close()
  expect(await loading).toMatchObject({ kind: 'record', document: { revision: 2, userData: { size: 3 } }, userData: Buffer.from('two') })
})

test.each(['', '\n', 'null\n', '[]\n', '{}\n', '{"userData":"all"}\n', '{"record":{},"userData":"set"', '{"tombstone":3}\n'])('an invalid pending change is a fault of its instance only: %j', async (text) => {
  const directory = aDirectory()
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  writeFileSync(join(directory, `${ID}.pending`), text)
  expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'unreadable', reason: `${ID}.pending is not a valid pending change` })
})

test('a file that cannot be looked up does not count as absent', async () => {
  const directory = aDirectory()
  symlinkSync(`${ID}.json`, join(directory, `${ID}.json`))
  await expect(loadFiles(directory, ID)).rejects.toThrow('ELOOP')
})

test('user-data beyond the limit is a fault, is not read, and changes the digest with its file', async () => {
  const directory = aDirectory()
  const path = join(directory, `${ID}.user-data`)
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance()))
  writeFileSync(path, '')
  const digests = new Set<string>()
  for (const bytes of [2 ** 42, 2 ** 42 + 1]) { // more than a read could give
    truncateSync(path, bytes)
    const loaded = await loadFiles(directory, ID, 16_384)
    expect(loaded).toMatchObject({ kind: 'user-data', reason: `the user-data is ${String(bytes)} bytes, more than the limit of 16384 (IMDS_USER_DATA_MAX_BYTES)` })
    if ('digest' in loaded) digests.add(loaded.digest!)
  }
  truncateSync(path, 16_384)
  const good = await loadFiles(directory, ID, 16_384)
  expect(good).toMatchObject({ kind: 'record', document: { userData: { size: 16_384 } } })
  if ('digest' in good) digests.add(good.digest!)
  expect(digests.size).toBe(3)
})

test.each(['.yaml', '.yml'])('a %s file of more than 64 KiB is a fault before it is parsed; as JSON it is read', async (ending) => {
  const directory = aDirectory()
  const path = join(directory, `${ID}${ending}`)
  const record = JSON.stringify(anInstance()) // JSON is YAML
  writeFileSync(path, record.padEnd(65_536))
  expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'record' })
  writeFileSync(path, record.padEnd(65_537))
  expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'unreadable', reason: `${ID}${ending} is 65537 bytes, more than the limit of 65536 for YAML: write it as JSON` })
  renameSync(path, join(directory, `${ID}.json`))
  expect(await loadFiles(directory, ID)).toMatchObject({ kind: 'record' })
})

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
