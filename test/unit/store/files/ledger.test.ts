/**
 * What the ledger protects: the revision, the seal and the addresses of a record that cannot be read.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { formatLedger, publishedAs, readLedger, removedAt, survey } from '../../../../src/store/files/ledger.ts'
import { openStore } from '../../../../src/store/open.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const TIME = '2026-11-20T15:04:05Z'
const ROOT = mkdtempSync(join(tmpdir(), 'imds-ledger-'))
afterAll(() => { rmSync(ROOT, { recursive: true }) })

const other = (revision: number, address = '10.0.0.6/30') => anInstance({
  revision, id: 'srv-other', interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: [address] }],
})

function aDirectory(files: Record<string, string> = {}): string {
  const directory = mkdtempSync(join(ROOT, 'store-'))
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  return directory
}

async function aStore(files: Record<string, string> = {}): Promise<{ directory: string, store: Publisher }> {
  const directory = aDirectory(files)
  return { directory, store: await openStore({ url: `file:${directory}` }) }
}

test('a ledger is read back as it was written, in the order of ids', async () => {
  const protections = new Map([['srv-b', removedAt(7, TIME)], ['srv-a', publishedAs(parsed(anInstance({ revision: 3 })), undefined)]])
  const directory = aDirectory({ ledger: formatLedger(protections) })
  expect([...await readLedger(join(directory, 'ledger'))]).toEqual([...protections].reverse())
  expect(formatLedger(protections)).toBe('{"version":1,"instances":{"srv-a":{"revision":3,"ranges":[{"network":"default","range":"10.0.0.2"}],"isRemoved":false},'
    + `"srv-b":{"revision":7,"sealedAt":"${TIME}","ranges":[],"isRemoved":true}}}\n`)
})

test('a ledger that cannot be opened is an error, not an empty one', async () => {
  await expect(readLedger(aDirectory())).rejects.toThrow('EISDIR')
})

test('a survey takes a valid record or tombstone as it is, whatever the ledger says', async () => {
  const directory = aDirectory({ [`${ID}.json`]: JSON.stringify(anInstance({ revision: 2 })), 'srv-gone.removed': '4\n' })
  const remembered = new Map([[ID, removedAt(9, TIME)], ['srv-gone', removedAt(9, undefined)], ['srv-forgotten', removedAt(9, undefined)]])
  expect([...await survey(directory, remembered)]).toEqual([[ID, publishedAs(parsed(anInstance({ revision: 2 })), undefined)], ['srv-gone', removedAt(4, undefined)]])
})

/** What happens to a published record by hand or by a fault. */
const SPOILED = {
  'a torn record': (path: string) => { writeFileSync(path, readFileSync(path).subarray(0, 100)) },
  'an empty record': (path: string) => { writeFileSync(path, '') },
  'a record that the schema refuses': (path: string) => { writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')) as object, region: 1, sealedAt: 'x', revision: 0 })) },
  'a record of another id': (path: string) => { writeFileSync(path, JSON.stringify(other(1))) },
  'two records': (path: string) => { writeFileSync(path.replace('json', 'yaml'), '{}') },
  'a record that was deleted': (path: string) => { rmSync(path) },
} as const

describe.each(Object.entries(SPOILED))('%s', (_what, spoil) => {
  test('keeps its revision, its seal and its addresses', async () => {
    const { directory, store } = await aStore()
    await store.put(anInstance({ revision: 5, sealedAt: TIME }), Buffer.from('five'))
    spoil(join(directory, `${ID}.json`))
    expect(await store.put(other(1, '10.0.0.2/30'))).toEqual({ kind: 'address-owned', network: 'default', address: '10.0.0.2', owner: ID })
    expect(await store.put(anInstance({ revision: 4 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
    expect(await store.put(anInstance({ revision: 5 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
    expect(await store.put(anInstance({ revision: 6 }), Buffer.from('six'))).toMatchObject({ kind: 'published', instance: { sealedAt: TIME } })
    expect((await store.get(ID))?.document).toMatchObject({ revision: 6, sealedAt: TIME })
  })

  test('is removed at the next revision, with its seal', async () => {
    const { directory, store } = await aStore()
    await store.put(anInstance({ revision: 5, sealedAt: TIME }))
    spoil(join(directory, `${ID}.json`))
    expect(await store.remove(ID, 4)).toEqual({ kind: 'stale', revision: 5 })
    expect(await store.remove(ID)).toEqual({ kind: 'removed', revision: 6 })
    expect(await store.put(other(1, '10.0.0.2/30'))).toMatchObject({ kind: 'published' })
    expect(await store.put(anInstance({ revision: 7, interfaces: other(1, '10.0.0.9/30')['interfaces'] }))).toMatchObject({ kind: 'published', instance: { sealedAt: TIME } })
  })
})

test('a hand-edited record counts as it is, and is remembered if it becomes unreadable', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5, sealedAt: TIME }))
  const edited = anInstance({ revision: 9, interfaces: other(1, '10.0.0.10/30')['interfaces'] })
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(edited))
  expect(await store.put(other(1, '10.0.0.2/30'))).toMatchObject({ kind: 'published' })
  writeFileSync(join(directory, `${ID}.json`), '{')
  expect(await store.put(other(2, '10.0.0.10/30'))).toMatchObject({ kind: 'address-owned', owner: ID })
  expect(await store.put(anInstance({ revision: 8 }), 'none')).toEqual({ kind: 'stale', revision: 9 })
  const put = await store.put({ ...edited, revision: 10 }, 'none')
  expect(put).toMatchObject({ kind: 'published' })
  expect(put).not.toHaveProperty('instance.sealedAt')
})

test('a record edited by hand to a lower revision counts as it is', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5 }))
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify(anInstance({ revision: 2 })))
  expect(await store.put(anInstance({ revision: 3 }))).toMatchObject({ kind: 'published' })
})

test('user-data that no longer fits its record makes the record faulty, not unprotected', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5 }), Buffer.from('five'))
  writeFileSync(join(directory, `${ID}.json`), JSON.stringify({ ...(await store.get(ID))?.document as object, revision: 1, interfaces: other(1)['interfaces'] }))
  writeFileSync(join(directory, `${ID}.user-data`), 'edited')
  expect(await store.put(other(1, '10.0.0.2/30'))).toMatchObject({ kind: 'address-owned', owner: ID })
  expect(await store.put(anInstance({ revision: 4 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
})

test('a tombstone that cannot be read keeps its revision and its seal', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5, sealedAt: TIME }))
  await store.remove(ID)
  writeFileSync(join(directory, `${ID}.removed`), '')
  expect(await store.put(anInstance({ revision: 6 }))).toEqual({ kind: 'stale', revision: 6 })
  expect(await store.put(anInstance({ revision: 7 }))).toMatchObject({ kind: 'published', instance: { sealedAt: TIME } })
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

test.each([
  ['missing', (path: string) => { rmSync(path) }],
  ['torn', (path: string) => { writeFileSync(path, readFileSync(path).subarray(0, -5)) }],
  ['empty', (path: string) => { writeFileSync(path, '') }],
  ['of another shape', (path: string) => { writeFileSync(path, '{"version":1,"instances":{"srv-abcde":{"revision":"5"}}}') }],
  ['of another version', (path: string) => { writeFileSync(path, '{"version":2}') }],
])('a ledger that is %s is rebuilt from the records', async (_what, spoil) => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5, sealedAt: TIME }))
  await store.put(other(3))
  await store.remove('srv-other')
  const ledger = join(directory, '.publisher.json')
  const before = readFileSync(ledger, 'utf8')
  spoil(ledger)
  expect(await store.put(anInstance({ revision: 4 }))).toEqual({ kind: 'stale', revision: 5 })
  expect(readFileSync(ledger, 'utf8')).toBe(before)
  writeFileSync(join(directory, `${ID}.json`), '{')
  expect(await store.put(anInstance({ revision: 4 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
})

test('a file that cannot be opened protects its instance; if the ledger lacks it, writes are refused', async () => {
  const { directory, store } = await aStore()
  await store.put(anInstance({ revision: 5 }))
  rmSync(join(directory, `${ID}.json`))
  mkdirSync(join(directory, `${ID}.json`))
  expect(await store.put(other(1, '10.0.0.2/30'))).toMatchObject({ kind: 'address-owned', owner: ID })
  expect(await store.put(other(1))).toMatchObject({ kind: 'published' })
  await expect(store.put(anInstance({ revision: 6 }), 'none')).rejects.toThrow('EISDIR')
  rmSync(join(directory, '.publisher.json'))
  await expect(store.put(other(2))).rejects.toThrow('EISDIR')
})

test.each([
  ['a faulty record that was edited to be sealed', { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, region: 1, sealedAt: TIME })) }],
  ['a record that was written by hand beside a sealed tombstone', { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5 })), [`${ID}.removed`]: `4 ${TIME}\n` }],
  ['a broken record beside a sealed tombstone', { [`${ID}.json`]: '{', [`${ID}.removed`]: `4 ${TIME}\n` }],
])('%s keeps its seal, also without a ledger', async (_what, files) => {
  const { store } = await aStore(files)
  expect(await store.put(anInstance({ revision: 6 }), 'none')).toMatchObject({ kind: 'published', instance: { sealedAt: TIME } })
})

test.each([
  ['a broken record beside a tombstone', { [`${ID}.json`]: '{', [`${ID}.removed`]: '5\n' }],
  ['a valid record without its user-data', { [`${ID}.json`]: JSON.stringify(anInstance({ revision: 5, userData: { size: 1, sha256: '0'.repeat(64) } })) }],
])('%s keeps its revision, also without a ledger', async (_what, files) => {
  const { store } = await aStore(files)
  expect(await store.put(anInstance({ revision: 4 }), 'none')).toEqual({ kind: 'stale', revision: 5 })
})

test('a broken record that no writer knows is replaced by a good one', async () => {
  const { store } = await aStore({ [`${ID}.yaml`]: '{' })
  expect(await store.put(anInstance({ revision: 1 }), 'none')).toMatchObject({ kind: 'published' })
})
