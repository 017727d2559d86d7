/**
 * A watch on its own. publisher.test.ts and test/daemon/files.test.ts have directories that take each other's place.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test, vi } from 'vitest'
import { DirectoryWatch } from '../../../../src/store/files/directory-watch.ts'

const ROOT = mkdtempSync(join(tmpdir(), 'imds-watch-'))
afterAll(() => {
  rmSync(ROOT, { recursive: true })
})

test('a directory that appears and disappears is reported, and nothing after the close', async () => {
  const directory = join(ROOT, 'store')
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
  watching.start()
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
