/**
 * The write side in files, in one process: what protects an unreadable record, and what an interrupted write leaves.
 */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { afterAll, describe, expect, test, vi } from 'vitest'
import { assemble } from '../../../../src/view/validate.ts'
import { loadFiles } from '../../../../src/store/files/source.ts'
import type { FileOperations } from '../../../../src/store/files/operations.ts'
import { openStore } from '../../../../src/store/open.ts'
import { openFilePublisher } from '../../../../src/store/files/publisher.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'
import type { UserDataChange } from '../../../../src/store/user-data.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const TIME = '2026-11-20T15:04:05Z'
const ROOT = mkdtempSync(join(tmpdir(), 'imds-publish-files-'))
afterAll(() => { rmSync(ROOT, { recursive: true }) })

const other = (revision: number, address = '10.0.0.6/30') => anInstance({
  revision, id: 'srv-other', interfaces: [{ id: 'int-b', macAddress: '02:24:19:00:00:ef', ipv4Addresses: [address] }],
})

function aDirectory(files: Record<string, string | Uint8Array> = {}): string {
  const directory = mkdtempSync(join(ROOT, 'store-'))
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  return directory
}

async function aStore(files: Record<string, string> = {}): Promise<{ directory: string, store: Publisher }> {
  const directory = aDirectory(files)
  return { directory, store: await openStore({ url: `file:${directory}` }) }
}

const NOT_ONES = {
  'a torn record': (path: string) => { writeFileSync(path, readFileSync(path).subarray(0, 100)) },
  'an empty record': (path: string) => { writeFileSync(path, '') },
  'a record that the schema refuses': (path: string) => { writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, 'utf8')) as object, region: 1, sealedAt: 'x', revision: 0 })) },
  'a record of another id': (path: string) => { writeFileSync(path, JSON.stringify(other(1))) },
  'two records': (path: string) => { writeFileSync(path.replace('json', 'yaml'), '{}') },
  'a record that was deleted': (path: string) => { rmSync(path) },
} as const

describe.each(Object.entries(NOT_ONES))('%s', (_what, spoil) => {
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

test('a file that cannot be opened protects its instance; without a memory of it, writes are refused', async () => {
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

test('a watch ends with the last state: a removal right after a put is reported', async () => {
  const { store } = await aStore()
  await store.put(anInstance({ revision: 1 }))
  const seen: unknown[] = []
  const stop = await store.watch((id) => { void store.get(id).then((published) => seen.push((published?.document as { revision: number } | undefined)?.revision)) })
  for (let revision = 2; revision < 20; revision += 2) {
    await store.put(anInstance({ revision }))
    await store.remove(ID)
    await vi.waitFor(() => { expect(seen.at(-1)).toBe(undefined) }, { timeout: 10_000 })
    await store.put(anInstance({ revision: revision + 2 }))
    await vi.waitFor(() => { expect(seen.at(-1)).toBe(revision + 2) }, { timeout: 10_000 })
  }
  await stop()
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

/** What a test does to a directory, and what that directory holds before. */
interface Scenario { readonly before: (store: Publisher, directory: string) => Promise<unknown>, readonly change: (store: Publisher) => Promise<unknown> }

const put = (revision: number, userData: UserDataChange) => (store: Publisher) => store.put(anInstance({ revision, fqdn: `r${String(revision)}.example.com` }), userData)
const one = Buffer.from('one\nsecret')
const byHand = (ending: string) => (_store: Publisher, directory: string) => {
  writeFileSync(join(directory, ID + ending), JSON.stringify(anInstance({ revision: 1 })))
  return writeFile(join(directory, `${ID}.user-data`), 'by hand')
}
const SCENARIOS: Readonly<Record<string, Scenario>> = {
  'a first put': { before: (store) => store.put(other(1)), change: put(1, one) },
  'a put that replaces user-data': { before: put(1, one), change: put(2, Buffer.from('two')) },
  'a put that drops user-data': { before: put(1, one), change: put(2, 'none') },
  'a put that brings user-data': { before: put(1, 'none'), change: put(2, one) },
  'a put that keeps user-data': { before: put(1, one), change: put(2, 'keep') },
  'a put over a record in YAML': { before: byHand('.yaml'), change: put(2, Buffer.from('two')) },
  'a put that drops user-data which no record names': { before: byHand('.json'), change: put(2, 'none') },
  'a put after a removal': { before: (store) => put(1, one)(store).then(() => store.remove(ID)), change: put(3, 'none') },
  'a seal': { before: put(1, one), change: (store) => store.seal(ID) },
  'a removal': { before: put(1, one), change: (store) => store.remove(ID) },
}

type Step =
  | { readonly kind: 'replace', readonly name: string, readonly content: string | Uint8Array }
  | { readonly kind: 'remove', readonly name: string }
  | { readonly kind: 'sync' }

/** The file system, without the wait for the disk; calls back before each operation. */
function observed(before: (name: keyof FileOperations, path: string, content: string | Uint8Array, to: string) => void): FileOperations {
  return {
    create: async (path, content) => {
      before('create', path, content, '')
      await writeFile(path, content, { flag: 'wx' })
    },
    rename: async (from, to) => {
      before('rename', from, '', to)
      await rename(from, to)
    },
    remove: async (path) => {
      before('remove', path, '', '')
      await rm(path, { force: true })
    },
    sync: (directory) => {
      before('sync', directory, '', '')
      return Promise.resolve()
    },
  }
}

const QUICK = observed(() => { /* nothing to see */ })

/** What a daemon takes from a directory: everything of one state, or what is wrong. */
async function stateOf(directory: string): Promise<unknown> {
  const loaded = await loadFiles(directory, ID)
  if (loaded.kind === 'removed' || loaded.kind === 'absent') return loaded.kind
  const assembled = assemble(loaded, Infinity)
  return 'reason' in assembled ? assembled : { ...assembled.instance, text: Buffer.from(assembled.userData ?? []).toString() }
}

const filesOf = (directory: string) => Object.fromEntries(readdirSync(directory).filter((name) => name !== '.publisher.lock').map((name) => [name, readFileSync(join(directory, name))]))
const idsOf = (directory: string) => readdirSync(directory).filter((name) => !name.startsWith('.')).sort()

/** Subsets of a list, in its order. */
function subsets<T>(list: readonly T[]): T[][] {
  const [first, ...rest] = list
  if (first === undefined) return [[]]
  return subsets(rest).flatMap((some) => [some, [first, ...some]])
}

test.each(Object.entries(SCENARIOS))('%s leaves the old or the new state after a power cut, and the next writer completes it', async (_what, { before, change }) => {
  const directory = aDirectory()
  await before(openFilePublisher(directory, 16384, QUICK), directory)
  await openFilePublisher(directory, 16384, QUICK).remove('srv-none') // the ledger of what was written by hand
  const [old, initial] = [await stateOf(directory), filesOf(directory)]
  const steps: Step[] = []
  let content: string | Uint8Array = ''
  await change(openFilePublisher(directory, 16384, observed((name, path, bytes, to) => {
    if (name === 'create') content = bytes
    else if (name === 'rename') steps.push({ kind: 'replace', name: basename(to), content })
    else if (name === 'sync') steps.push({ kind: 'sync' })
    else if (readdirSync(directory).includes(basename(path))) steps.push({ kind: 'remove', name: basename(path) })
  })))
  const [next, final] = [await stateOf(directory), filesOf(directory)]
  expect(next).not.toEqual(old)
  const outcomes = new Set<unknown>()
  // What is behind the last sync may be on the disk or not, each name for itself.
  for (let from = 0; from <= steps.length; from++) {
    if (from > 0 && steps[from - 1]!.kind !== 'sync') continue
    const end = steps.findIndex(({ kind }, i) => i >= from && kind === 'sync')
    for (const some of subsets(steps.slice(from, end === -1 ? steps.length : end))) {
      const files = new Map<string, string | Uint8Array>(Object.entries(initial))
      for (const step of [...steps.slice(0, from), ...some]) {
        if (step.kind === 'replace') files.set(step.name, step.content)
        else if (step.kind === 'remove') files.delete(step.name)
      }
      const cut = aDirectory({ ...Object.fromEntries(files), '.publisher.tmp': 'secr' })
      const state = await stateOf(cut)
      const isOld = JSON.stringify(state) === JSON.stringify(old)
      outcomes.add(isOld)
      expect(state).toEqual(isOld ? old : next)
      await openFilePublisher(cut, 16384, QUICK).remove('srv-none')
      expect(await stateOf(cut)).toEqual(isOld ? old : next)
      expect(filesOf(cut)).toEqual(isOld ? initial : final)
      rmSync(cut, { recursive: true })
    }
  }
  expect(outcomes).toEqual(new Set([true, false]))
})

test.each([
  'a put that replaces user-data', 'a put that drops user-data', 'a put over a record in YAML', 'a removal',
])('%s leaves the old or the new state if any operation fails, and the next write works', async (what) => {
  const { before, change } = SCENARIOS[what]!
  for (let failing = 1; ; failing++) {
    const directory = aDirectory()
    await before(openFilePublisher(directory, 16384, QUICK), directory)
    const old = await stateOf(directory)
    let count = 0
    const store = openFilePublisher(directory, 16384, observed((name, path, content) => {
      if (++count !== failing) return
      if (name === 'create') writeFileSync(path, content.slice(0, content.length / 2))
      throw new Error('ENOSPC')
    }))
    const outcome = await change(store).then(() => 'done', String)
    const state = await stateOf(directory)
    const names = idsOf(directory)
    expect(await openFilePublisher(directory, 16384, QUICK).put(other(7))).toMatchObject({ kind: 'published' })
    expect(await stateOf(directory)).toEqual(state)
    expect(readdirSync(directory).filter((name) => name.endsWith('.pending') || name.endsWith('.tmp'))).toEqual([])
    rmSync(directory, { recursive: true })
    if (outcome === 'done') {
      expect(failing).toBeGreaterThan(10)
      expect(names.filter((name) => name.endsWith('.pending'))).toEqual([])
      return
    }
    expect(outcome).toBe('Error: ENOSPC')
    if (JSON.stringify(state) !== JSON.stringify(old)) expect(names).toContain(`${ID}.pending`)
  }
})
