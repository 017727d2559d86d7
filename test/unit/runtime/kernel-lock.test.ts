/** The lock within one process. test/imdsd/files-writers.test.ts has writers in several processes, which are killed. */
import { chownSync, linkSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { beforeEach, expect, test } from 'vitest'
import { takeLock } from '../../../src/runtime/kernel-lock.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

let directory: string
beforeEach(() => {
  directory = temporaryDirectory()
})
const path = () => join(directory, '.lock')

test('one writer at a time has the lock, and the next one gets it when it is closed', async () => {
  const order: string[] = []
  const first = await takeLock(path())
  const second = takeLock(path()).then((lock) => {
    order.push('second')
    return lock
  })
  await new Promise((resolve) => setTimeout(resolve, 100)) // several attempts of the second
  order.push('first closes')
  first.close()
  ;(await second).close()
  expect(order).toEqual(['first closes', 'second'])
})

test('the lock is a private, empty file that stays', async () => {
  ;(await takeLock(path())).close()
  expect([statSync(path()).mode & 0o777, statSync(path()).size]).toEqual([0o600, 0])
  ;(await takeLock(path())).close()
})

test('a symbolic link is refused, and its target is not touched', async () => {
  const target = join(directory, 'target')
  writeFileSync(target, 'mine')
  symlinkSync(target, path())
  await expect(takeLock(path())).rejects.toThrow(`cannot lock ${path()}: it is not a regular file, delete it`)
  expect(readFileSync(target, 'utf8')).toBe('mine')
})

test.skipIf(process.getuid?.() !== 0)(
  'root refuses a hard link that the owner of the directory made to a file of another user',
  async () => {
    const target = join(directory, '../', `${basename(directory)}-target`)
    writeFileSync(target, '')
    linkSync(target, path())
    chownSync(directory, 65_534, 65_534)
    await expect(takeLock(path())).rejects.toThrow(
      `cannot lock ${path()}: it is a link to a file of another user, delete it`,
    )
    rmSync(target)
  },
)

test('a directory, and a file of another program, are refused with the remedy', async () => {
  mkdirSync(path())
  await expect(takeLock(path())).rejects.toThrow('it is not a regular file, delete it')
  rmSync(path(), { recursive: true })
  writeFileSync(path(), 'x'.repeat(1_000))
  await expect(takeLock(path())).rejects.toThrow('it is not a lock file of imds, delete it')
  expect(readFileSync(path(), 'utf8')).toBe('x'.repeat(1_000))
})

test('a directory that is missing is an error at once', async () => {
  await expect(takeLock(join(directory, 'none', '.lock'))).rejects.toThrow('ENOENT')
})
