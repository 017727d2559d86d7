/** A watch on its own. publisher.test.ts and test/imdsd/files.test.ts have directories that take each other's place. */
import { chmodSync, mkdirSync, renameSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, onTestFinished, test, vi } from 'vitest'
import { buildDirectoryWatch } from '../../../../src/store/files/directory-watch.ts'
import { directoryOfFile } from '../../../support/fixtures/temporary-directory.ts'

const ROOT = directoryOfFile()

/** Watches a directory until the end of the test. `seen` is what the watch reports. */
function watch(directory: string) {
  const seen: string[] = []
  const watching = buildDirectoryWatch(directory, {
    onChange: (id) => seen.push(id),
    onWatching: () => seen.push('watching'),
    onLost: (reason) => seen.push(`lost: ${reason}`),
  })
  onTestFinished(() => watching.close())
  watching.start()
  return { seen, watching }
}
const watched = (directory: string) => watch(directory).seen

const reports = (seen: readonly string[], ...expected: string[]) =>
  vi.waitFor(() => expect(seen).toEqual(expected), { timeout: 10_000 })

/** Makes directories and links: a path -> the target of the link; undefined: a directory. */
function make(files: Readonly<Record<string, string | undefined>>): void {
  for (const [path, target] of Object.entries(files))
    if (target === undefined) mkdirSync(join(ROOT, path), { recursive: true })
    else symlinkSync(target, join(ROOT, path))
}

/** Replaces a link in one step. */
function swap(link: string, target: string): void {
  symlinkSync(target, join(ROOT, `${link}_tmp`))
  renameSync(join(ROOT, `${link}_tmp`), join(ROOT, link))
}

test('the link of a Kubernetes volume that is replaced is reported at once', async () => {
  make({ 'k/..1': undefined, 'k/..2': undefined, 'k/..data': '..1', 'k/srv-abcde.json': '..data/srv-abcde.json' })
  const seen = watched(join(ROOT, 'k'))
  await reports(seen, 'watching')
  swap('k/..data', '..2')
  await reports(seen, 'watching', 'watching')
})

test('a link on the way to the directory that is replaced, as by git-sync, is found', async () => {
  make({ 'g/trees/1/records': undefined, 'g/trees/2/records': undefined, 'g/current': 'trees/1' })
  const directory = join(ROOT, 'g/current/records')
  const seen = watched(directory)
  await reports(seen, 'watching')
  swap('g/current', 'trees/2')
  await reports(seen, 'watching', `lost: ${directory} was replaced by another directory`, 'watching')
  writeFileSync(join(ROOT, 'g/trees/2/records/srv-abcde.json'), '{}')
  await vi.waitFor(() => expect(seen.at(-1)).toBe('srv-abcde'))
})

test("a change of the directory's times or permissions is no other directory", async () => {
  make({ touched: undefined })
  const directory = join(ROOT, 'touched')
  const { seen } = watch(directory)
  await reports(seen, 'watching')
  utimesSync(directory, 1, 1)
  chmodSync(directory, 0o711)
  writeFileSync(join(directory, 'srv-abcde.json'), '{}')
  await vi.waitFor(() => expect(seen).toContain('srv-abcde'), { timeout: 10_000 })
  expect(seen.filter((report) => report !== 'srv-abcde')).toEqual(['watching'])
})

test('a directory that appears and disappears is reported, and nothing after the close', async () => {
  const directory = join(ROOT, 'store')
  const { seen, watching } = watch(directory)
  expect(seen[0]).toMatch(/^lost: .*ENOENT/)
  mkdirSync(directory)
  await vi.waitFor(() => expect(seen.at(-1)).toBe('watching'), { timeout: 10_000 })
  writeFileSync(join(directory, 'srv-abcde.json'), '{}')
  writeFileSync(join(directory, 'notes.txt'), '')
  await vi.waitFor(() => expect(seen.at(-1)).toBe('srv-abcde'), { timeout: 10_000 })
  rmSync(directory, { recursive: true })
  await vi.waitFor(() => expect(seen.at(-1)).toBe(`lost: ${directory} no longer exists`), { timeout: 10_000 })
  watching.close()
  const before = seen.length
  mkdirSync(directory)
  writeFileSync(join(directory, 'srv-abcde.json'), '{}')
  await new Promise((resolve) => setTimeout(resolve, 1_200)) // a retry would have come
  expect(seen.length).toBe(before)
})
