/** What a writer knows of a directory: what counts of records that people edit, and when tombstones end. */
import { mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { FILE_SYSTEM } from '../../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../../src/store/files/publisher.ts'
import { openStore } from '../../../../src/store/open.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'
import { anInstance, anotherInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const ID = 'srv-abcde'
const TIME = '2026-11-20T15:04:05Z'

function aDirectory(files: Record<string, string> = {}): string {
  const directory = temporaryDirectory()
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  return directory
}

async function aStore(files: Record<string, string> = {}): Promise<{ directory: string; store: Publisher }> {
  const directory = aDirectory(files)
  return { directory, store: await openStore({ url: `file:${directory}` }) }
}

test('a record edited by hand to a lower revision counts as it is', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5 }))
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance({ revision: 2 })))
  expect(await store.put(anInstance({ revision: 3 }))).toMatchObject({ kind: 'published' })
})

test('a tombstone that is deleted is forgotten', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5, sealedAt: TIME }))
  await store.remove(ID)
  rmSync(join(directory, `${ID}.removed`))
  expect(await store.remove(ID)).toEqual({ kind: 'absent' })
  const put = await store.put(anInstance({ revision: 1 }))
  expect(put).toMatchObject({ kind: 'published' })
  expect(put).not.toHaveProperty('instance.sealedAt')
})

test('while a record cannot be opened, nothing is written, because its addresses are not known', async () => {
  const { directory, store } = await aStore()
  symlinkSync(`${ID}.json`, join(directory, `${ID}.json`))
  await expect(store.put(anotherInstance(1))).rejects.toThrow('ELOOP')
  rmSync(join(directory, `${ID}.json`))
  expect(await store.put(anotherInstance(1))).toMatchObject({ kind: 'published' })
})

test.each(['.json', '.yaml', '.user-data', '.removed'])(
  'a directory in the place of a %s file refuses writes of its instance only, before they begin',
  async (ending) => {
    const { directory, store } = await aStore()
    await store.put(anotherInstance(1))
    mkdirSync(join(directory, ID + ending))
    for (const work of [store.put(anInstance({ revision: 6 }), 'none'), store.remove(ID, 6)])
      await expect(work).rejects.toThrow(`${ID}${ending} is a directory, not a regular file: delete it`)
    expect(await store.put(anotherInstance(2))).toMatchObject({ kind: 'published' })
    rmSync(join(directory, ID + ending), { recursive: true })
    expect(await store.put(anInstance({ revision: 6 }), 'none')).toMatchObject({ kind: 'published' })
  },
)

test.each([
  [
    'a faulty record that was edited to be sealed',
    { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, region: 1, sealedAt: TIME })) },
  ],
  [
    'a record that was written by hand beside a sealed tombstone',
    { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5 })), [`${ID}.removed`]: `4 ${TIME}\n` },
  ],
  ['a broken record beside a sealed tombstone', { [`${ID}.json`]: '{', [`${ID}.removed`]: `4 ${TIME}\n` }],
])('%s keeps its seal', async (_what, files) => {
  const { store } = await aStore(files)
  expect(await store.put(anInstance({ revision: 6 }), 'none')).toMatchObject({
    kind: 'published',
    instance: { sealedAt: TIME },
  })
})

test.each([
  { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, sealedAt: 'yesterday' })) },
  { [`${ID}.removed`]: '5 yesterday\n' },
])('a seal that is no time, written by hand, seals nothing: %j', async (files) => {
  const { store } = await aStore(files)
  const put = await store.put(anInstance({ revision: 6 }), 'none')
  expect(put).toMatchObject({ kind: 'published' })
  expect(put).not.toHaveProperty('instance.sealedAt')
})

test.each([
  ['a broken record beside a tombstone', { [`${ID}.json`]: '{', [`${ID}.removed`]: '5\n' }],
  [
    'a valid record without its user-data',
    { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, userData: { size: 1, sha256: '0'.repeat(64) } })) },
  ],
  [
    'a record with a faulty option',
    { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, options: { httpTokens: 'maybe' } })) },
  ],
])('%s keeps its revision', async (_what, files) => {
  const { store } = await aStore(files)
  expect(await store.put(anInstance({ revision: 4 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
})

test('a broken record is replaced by a good one', async () => {
  const { store } = await aStore({ [`${ID}.yaml`]: '{' })
  expect(await store.put(anInstance({ revision: 1 }), 'none')).toMatchObject({ kind: 'published' })
})

describe('a record that is edited by hand', () => {
  const pad = (text: string, length: number) => text.padEnd(length)

  test('counts for other writers of the directory too, even if its length stays', async () => {
    const { directory, store } = await aStore()
    await store.put(anInstance({ revision: 5 }))
    const path = join(directory, `${ID}.json`)
    const length = readFileSync(path).length
    for (const [revision, address] of [
      [6, '10.0.0.9/30'],
      [7, '10.0.0.8/30'],
    ] as const) {
      writeFileSync(
        path,
        pad(JSON.stringify(anInstance({ revision, interfaces: anotherInstance(1, address)['interfaces'] })), length),
      )
      const another = await openStore({ url: `file:${directory}` })
      expect(await another.put(anotherInstance(revision, address))).toMatchObject({ kind: 'address-owned', owner: ID })
      expect(await store.put(anInstance({ revision: 5 }))).toEqual({ kind: 'stale', revision })
    }
  })

  test('counts for the addresses of other instances at once', async () => {
    const { directory, store } = await aStore()
    await store.put(anInstance({ revision: 5 }))
    writeFileSync(
      join(directory, 'srv-new.json'),
      JSON.stringify(anInstance({ id: 'srv-new', interfaces: anotherInstance(1, '10.0.0.20/30')['interfaces'] })),
    )
    expect(await store.put(anotherInstance(1, '10.0.0.20/30'))).toMatchObject({
      kind: 'address-owned',
      owner: 'srv-new',
    })
    rmSync(join(directory, 'srv-new.json'))
    expect(await store.put(anotherInstance(1, '10.0.0.20/30'))).toMatchObject({ kind: 'published' })
  })
})

describe('a tombstone', () => {
  const DAY_MS = 24 * 3600 * 1000
  const at = (directory: string, days: number) =>
    openFilePublisher(directory, 16_384, FILE_SYSTEM, () => Date.now() + days * DAY_MS)

  test('ends after 7 days, with its revision and its seal; the next write deletes the file', async () => {
    const { directory, store } = await aStore()
    await store.put(anInstance({ revision: 5, sealedAt: TIME }))
    await store.remove(ID)
    await at(directory, 6.99).put(anotherInstance(1))
    expect(readdirSync(directory)).toContain(`${ID}.removed`)
    expect(await at(directory, 6.99).put(anInstance({ revision: 1 }))).toEqual({ kind: 'stale', revision: 6 })
    expect(await at(directory, 7.01).put(anInstance({ revision: 1 }), 'none', { dryRun: true })).toMatchObject({
      kind: 'published',
    })
    expect(readdirSync(directory)).toContain(`${ID}.removed`)
    await at(directory, 7.01).put(anotherInstance(2))
    expect(readdirSync(directory)).not.toContain(`${ID}.removed`)
    const put = await at(directory, 7.01).put(anInstance({ revision: 1 }))
    expect(put).toMatchObject({ kind: 'published' })
    expect(put).not.toHaveProperty('instance.sealedAt')
  })

  test('beside a record that was written by hand stays, with its seal, until the record is published', async () => {
    const { directory, store } = await aStore({
      [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5 })),
      [`${ID}.removed`]: `4 ${TIME}\n`,
    })
    await store.put(anotherInstance(1))
    await at(directory, 8).put(anotherInstance(2))
    expect(readdirSync(directory)).toContain(`${ID}.removed`)
    expect(await at(directory, 8).put(anInstance({ revision: 6 }), 'none')).toMatchObject({
      kind: 'published',
      instance: { sealedAt: TIME },
    })
    expect(readdirSync(directory)).not.toContain(`${ID}.removed`)
  })

  test('of many instances ends for all of them in one write', async () => {
    const { directory, store } = await aStore(
      Object.fromEntries(Array.from({ length: 500 }, (_, i) => [`srv-${i}.removed`, '3\n'])),
    )
    await store.put(anotherInstance(1))
    await at(directory, 8).put(anotherInstance(2))
    expect(readdirSync(directory).filter((name) => name.endsWith('.removed'))).toEqual([])
  })
})

test('a dry run writes nothing: no directory and no lock, and deletes nothing', async () => {
  const directory = join(aDirectory(), 'none')
  const store = await openStore({ url: `file:${directory}` })
  expect(await store.put(anInstance(), 'none', { dryRun: true })).toMatchObject({ kind: 'published' })
  expect(() => readdirSync(directory)).toThrow('ENOENT')
  await store.put(anInstance({ revision: 5 }))
  await store.put(anotherInstance(1))
  writeFileSync(join(directory, '.publisher.tmp'), 'half')
  const before = readdirSync(directory).map((name) => [name, readFileSync(join(directory, name), 'utf8')])
  const dry = { dryRun: true }
  expect(await store.put(anInstance({ revision: 4 }), 'none', dry)).toEqual({ kind: 'stale', revision: 5 })
  expect(await store.put(anInstance({ revision: 6 }), 'none', dry)).toMatchObject({ kind: 'published' })
  expect(await store.put(anotherInstance(3, '10.0.0.2/30'), 'none', dry)).toMatchObject({
    kind: 'address-owned',
    owner: ID,
  })
  expect(readdirSync(directory).map((name) => [name, readFileSync(join(directory, name), 'utf8')])).toEqual(before)
})
