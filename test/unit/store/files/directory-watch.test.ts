/**
 * A watch on its own. publisher.test.ts and test/imdsd/files.test.ts have directories that take each other's place.
 */
import {
  chownSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, onTestFinished, test, vi } from 'vitest'
import { DirectoryWatch } from '../../../../src/store/files/directory-watch.ts'

const ROOT = mkdtempSync(join(tmpdir(), 'imds-watch-'))
afterAll(() => {
  rmSync(ROOT, { recursive: true })
})

/** Watches a directory until the end of the test. `seen` is what the watch reports. */
function watch(directory: string) {
  const seen: string[] = []
  const watching = new DirectoryWatch(directory, {
    changed: (id) => {
      seen.push(id)
    },
    watching: () => {
      seen.push('watching')
    },
    lost: (reason) => {
      seen.push(`lost: ${reason}`)
    },
  })
  onTestFinished(() => {
    watching.close()
  })
  watching.start()
  return { seen, watching }
}
const watched = (directory: string) => watch(directory).seen

const reports = (seen: readonly string[], ...expected: string[]) =>
  vi.waitFor(
    () => {
      expect(seen).toEqual(expected)
    },
    { timeout: 10_000 },
  )

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

/** How many directories this process watches. */
function watches(): number {
  return readdirSync('/proc/self/fdinfo')
    .map((fd) => (existsSync(`/proc/self/fdinfo/${fd}`) ? readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1') : ''))
    .reduce((sum, text) => sum + text.split('\n').filter((line) => line.startsWith('inotify ')).length, 0)
}

test.each([
  {
    way: 'Kubernetes',
    files: { 'k/..1': undefined, 'k/..2': undefined, 'k/..data': '..1', 'k/srv-abcde.json': '..data/srv-abcde.json' },
    store: 'k',
    link: 'k/..data',
    next: '..2',
  },
  {
    way: 'git-sync',
    files: { 'g/trees/1/records': undefined, 'g/trees/2/records': undefined, 'g/current': 'trees/1' },
    store: 'g/current/records',
    link: 'g/current',
    next: 'trees/2',
  },
  {
    way: 'Nix',
    files: {
      'n/1/imds': undefined,
      'n/2/imds': undefined,
      'n/etc/imds': undefined,
      'n/etc/static': '../1',
      'n/1/imds/srv-abcde.json': '/dev/null',
      'n/etc/imds/srv-abcde.json': '../static/imds/srv-abcde.json',
    },
    store: 'n/etc/imds',
    link: 'n/etc/static',
    next: '../2',
  },
])('a swapped link on the way to the files is reported at once: $way', async ({ files, store, link, next }) => {
  make(files)
  const seen = watched(join(ROOT, store))
  await reports(seen, 'watching')
  swap(link, next)
  await reports(seen, 'watching', 'watching')
  swap(link, next)
  await reports(seen, 'watching', 'watching', 'watching')
})

test('a link that comes later is followed too', async () => {
  make({ 'later/store': undefined, 'later/1': undefined, 'later/2': undefined, 'later/current': '1' })
  const seen = watched(join(ROOT, 'later/store'))
  await reports(seen, 'watching')
  make({ 'later/store/srv-abcde.json': '../current/srv-abcde.json' })
  await reports(seen, 'watching', 'srv-abcde')
  swap('later/current', '2')
  await reports(seen, 'watching', 'srv-abcde', 'watching')
})

test('a link that is deleted and made again is followed', async () => {
  make({ 'again/store': undefined, 'again/1': undefined, 'again/current': '1' })
  make({ 'again/store/srv-abcde.json': '../current/srv-abcde.json' })
  const seen = watched(join(ROOT, 'again/store'))
  await reports(seen, 'watching')
  rmSync(join(ROOT, 'again/current'))
  await reports(seen, 'watching', 'watching')
  make({ 'again/current': '1' })
  await reports(seen, 'watching', 'watching', 'watching')
})

test('the number of watches is bounded, and none is left after the close', async () => {
  const before = watches()
  make({ 'many/store': undefined })
  for (let i = 0; i < 100; i++)
    make({
      [`many/${String(i)}/real`]: undefined,
      [`many/${String(i)}/current`]: 'real',
      [`many/store/srv-${String(i)}.json`]: `../${String(i)}/current/srv.json`,
    })
  make({ 'many/store/srv-loop.json': 'srv-loop.json' })
  const seen: string[] = []
  const watching = new DirectoryWatch(join(ROOT, 'many/store'), {
    changed: () => undefined,
    watching: () => {
      seen.push('watching')
    },
    lost: () => undefined,
  })
  watching.start()
  await reports(seen, 'watching')
  expect(watches() - before).toBeGreaterThan(10)
  expect(watches() - before).toBeLessThanOrEqual(17)
  watching.close()
  expect(watches()).toBe(before)
})

test.runIf(process.getuid?.() === 0)('root watches no directory for links that another user can change', async () => {
  make({ 'others/store': undefined, 'others/theirs/1': undefined, 'others/theirs/current': '1' })
  make({ 'others/store/srv-abcde.json': '../theirs/current/srv-abcde.json' })
  chownSync(join(ROOT, 'others/theirs'), 65534, 65534)
  const before = watches()
  await reports(watched(join(ROOT, 'others/store')), 'watching')
  expect(watches() - before).toBe(1)
})

test('a directory that appears and disappears is reported, and nothing after the close', async () => {
  const directory = join(ROOT, 'store')
  const { seen, watching } = watch(directory)
  expect(seen[0]).toMatch(/^lost: .*ENOENT/)
  mkdirSync(directory)
  await vi.waitFor(
    () => {
      expect(seen.at(-1)).toBe('watching')
    },
    { timeout: 10_000 },
  )
  writeFileSync(join(directory, 'srv-abcde.json'), '{}')
  writeFileSync(join(directory, 'notes.txt'), '')
  await vi.waitFor(
    () => {
      expect(seen.at(-1)).toBe('srv-abcde')
    },
    { timeout: 10_000 },
  )
  rmSync(directory, { recursive: true })
  await vi.waitFor(
    () => {
      expect(seen.at(-1)).toBe(`lost: ${directory} no longer exists`)
    },
    { timeout: 10_000 },
  )
  watching.close()
  const before = seen.length
  mkdirSync(directory)
  writeFileSync(join(directory, 'srv-abcde.json'), '{}')
  await new Promise((resolve) => {
    setTimeout(resolve, 1_200)
  }) // a retry would have come
  expect(seen.length).toBe(before)
})
