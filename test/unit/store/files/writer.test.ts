/** What an interrupted write leaves, in one process. test/imdsd/files-writers.test.ts kills real writers. */
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { rename, rm, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { expect, test } from 'vitest'
import { validate } from '../../../../src/imdsd/view/validate.ts'
import { loadFiles } from '../../../../src/store/files/load.ts'
import type { FileOperations } from '../../../../src/store/files/operations.ts'
import { openFilePublisher } from '../../../../src/store/files/publisher.ts'
import type { Publisher } from '../../../../src/store/publisher.ts'
import type { UserDataChange } from '../../../../src/store/user-data.ts'
import { anInstance, anotherInstance } from '../../../support/fixtures/instance.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const ID = 'srv-abcde'

function aDirectory(files: Record<string, string | Uint8Array> = {}): string {
  const directory = temporaryDirectory()
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content)
  return directory
}

/** What a test does to a directory, and what that directory holds before. */
interface Scenario {
  readonly before: (store: Publisher, directory: string) => Promise<unknown>
  readonly change: (store: Publisher) => Promise<unknown>
}

const put = (revision: number, userData: UserDataChange) => (store: Publisher) =>
  store.put(anInstance({ revision, fqdn: `r${revision}.example.com` }), userData)
const one = Buffer.from('one\nsecret')
const byHand = (ending: string) => (_store: Publisher, directory: string) => {
  writeFileSync(join(directory, ID + ending), JSON.stringify(anInstance({ revision: 1 })))
  return writeFile(join(directory, `${ID}.user-data`), 'by hand')
}
const SCENARIOS: Readonly<Record<string, Scenario>> = {
  'a first put': { before: (store) => store.put(anotherInstance(1)), change: put(1, one) },
  'a put that replaces user-data': { before: put(1, one), change: put(2, Buffer.from('two')) },
  'a put that drops user-data': { before: put(1, one), change: put(2, 'none') },
  'a put that brings user-data': { before: put(1, 'none'), change: put(2, one) },
  'a put that keeps user-data': { before: put(1, one), change: put(2, 'keep') },
  'a put over a record in YAML': { before: byHand('.yaml'), change: put(2, Buffer.from('two')) },
  'a put that drops user-data which no record names': { before: byHand('.json'), change: put(2, 'none') },
  'a put after a removal': {
    before: (store) => put(1, one)(store).then(() => store.remove(ID)),
    change: put(3, 'none'),
  },
  'a seal': { before: put(1, one), change: (store) => store.seal(ID) },
  'a removal': { before: put(1, one), change: (store) => store.remove(ID) },
  'a removal of a record in YAML': { before: byHand('.yaml'), change: (store) => store.remove(ID) },
}

type Step =
  | { readonly kind: 'replace'; readonly name: string; readonly content: string | Uint8Array }
  | { readonly kind: 'remove'; readonly name: string }
  | { readonly kind: 'sync' }

/** The file system, without the wait for the disk; calls back before each operation. */
function observed(
  before: (name: keyof FileOperations, path: string, content: string, to: string) => void,
): FileOperations {
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

const QUICK = observed(() => undefined)

/** What a daemon takes from a directory: everything of one state, or what is wrong. */
async function stateOf(directory: string): Promise<unknown> {
  const loaded = await loadFiles(directory, ID)
  if (loaded.kind === 'removed' || loaded.kind === 'absent') return loaded.kind
  const assembled = validate(loaded, Infinity)
  return !assembled.ok
    ? assembled
    : { ...assembled.value.instance, text: Buffer.from(assembled.value.userData ?? []).toString() }
}

const filesOf = (directory: string) =>
  Object.fromEntries(
    readdirSync(directory)
      .filter((name) => name !== '.publisher.lock')
      .map((name) => [name, readFileSync(join(directory, name))]),
  )
const idsOf = (directory: string) =>
  readdirSync(directory)
    .filter((name) => !name.startsWith('.'))
    .sort()

/** Subsets of a list, in its order. */
function subsets<T>(list: readonly T[]): T[][] {
  const [first, ...rest] = list
  if (first === undefined) return [[]]
  return subsets(rest).flatMap((some) => [some, [first, ...some]])
}

test.each(Object.entries(SCENARIOS))(
  '%s leaves the old or the new state after a power cut, and the next write leaves one file',
  async (_what, { before, change }) => {
    const directory = aDirectory()
    await before(openFilePublisher(directory, 16384, QUICK, Date.now), directory)
    const [old, initial] = [await stateOf(directory), filesOf(directory)]
    const steps: Step[] = []
    let content: string | Uint8Array = ''
    await change(
      openFilePublisher(
        directory,
        16384,
        observed((name, path, bytes, to) => {
          if (name === 'create') content = bytes
          else if (name === 'rename') steps.push({ kind: 'replace', name: basename(to), content })
          else if (name === 'sync') steps.push({ kind: 'sync' })
          else if (readdirSync(directory).includes(basename(path))) steps.push({ kind: 'remove', name: basename(path) })
        }),
        Date.now,
      ),
    )
    const next = await stateOf(directory)
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
        const store = openFilePublisher(cut, 16384, QUICK, Date.now)
        expect(await store.put(anInstance({ revision: 9 }), 'none')).toMatchObject({ kind: 'published' })
        expect(idsOf(cut).filter((name) => name.startsWith(ID))).toEqual([`${ID}.json`])
        rmSync(cut, { recursive: true })
      }
    }
    expect(outcomes).toEqual(new Set([true, false]))
  },
)

test.each(['a put that replaces user-data', 'a put that drops user-data', 'a put over a record in YAML', 'a removal'])(
  '%s leaves the old or the new state if any operation fails, and the next write works',
  async (what) => {
    const { before, change } = SCENARIOS[what]!
    const outcomes = new Set<string>()
    for (let failing = 1; ; failing++) {
      const directory = aDirectory()
      await before(openFilePublisher(directory, 16384, QUICK, Date.now), directory)
      let count = 0
      const store = openFilePublisher(
        directory,
        16384,
        observed((name, path, content) => {
          if (++count !== failing) return
          if (name === 'create') writeFileSync(path, content.slice(0, content.length / 2))
          throw new Error('ENOSPC')
        }),
        Date.now,
      )
      const outcome = await change(store).then(() => 'done', String)
      const state = await stateOf(directory)
      outcomes.add(JSON.stringify(state))
      expect(await openFilePublisher(directory, 16384, QUICK, Date.now).put(anotherInstance(7))).toMatchObject({
        kind: 'published',
      })
      expect(await stateOf(directory)).toEqual(state)
      expect(readdirSync(directory).filter((name) => name.endsWith('.tmp'))).toEqual([])
      rmSync(directory, { recursive: true })
      if (outcome === 'done') {
        expect(failing).toBeGreaterThan(4)
        expect(outcomes.size).toBe(2)
        return
      }
      expect(outcome).toBe('Error: ENOSPC')
    }
  },
)
