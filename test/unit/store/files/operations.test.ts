import {
  chownSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test, vi } from 'vitest'
import { FILE_SYSTEM } from '../../../../src/store/files/operations.ts'

const directory = mkdtempSync(join(tmpdir(), 'imds-files-'))
afterAll(() => {
  rmSync(directory, { recursive: true })
})

test('a new file is on disk before it has its name, is private, and never follows a link', async () => {
  const path = join(directory, 'new')
  const target = join(directory, 'target')
  writeFileSync(target, 'target')
  symlinkSync(target, path)
  await expect(FILE_SYSTEM.create(path, 'bytes')).rejects.toThrow('EEXIST')
  expect(readFileSync(target, 'utf8')).toBe('target')
  await FILE_SYSTEM.remove(path)
  const handle = await open(target)
  const prototype = Object.getPrototypeOf(handle) as FileHandle
  await handle.close()
  const sync = vi.spyOn(prototype, 'sync')
  try {
    const written: string[] = []
    sync.mockImplementation(() => {
      written.push(readFileSync(path, 'utf8'))
      return Promise.resolve()
    })
    await FILE_SYSTEM.create(path, 'bytes')
    expect(written).toEqual(['bytes'])
    sync.mockResolvedValue()
    await FILE_SYSTEM.sync(directory)
    expect(sync).toHaveBeenCalledTimes(2)
  } finally {
    sync.mockRestore()
  }
  expect(lstatSync(path).mode & 0o777).toBe(0o600)
  await FILE_SYSTEM.remove(path)
  await FILE_SYSTEM.remove(path)
})

test('an append adds to a file, and never follows a link or makes a file', async () => {
  const path = join(directory, 'log')
  await expect(FILE_SYSTEM.append(path, 'x', true)).rejects.toThrow('ENOENT')
  writeFileSync(path, 'one ')
  await FILE_SYSTEM.append(path, 'two ', false)
  await FILE_SYSTEM.append(path, 'three', true)
  expect(readFileSync(path, 'utf8')).toBe('one two three')
  symlinkSync(path, join(directory, 'to-log'))
  await expect(FILE_SYSTEM.append(join(directory, 'to-log'), 'x', true)).rejects.toThrow('ELOOP')
})

test.skipIf(process.getuid?.() !== 0)(
  'root appends nothing to a file of another user to which the owner of the directory made a hard link',
  async () => {
    const [own, theirs] = [join(directory, 'own'), join(directory, 'theirs')]
    writeFileSync(own, 'own')
    mkdirSync(theirs)
    linkSync(own, join(theirs, 'log'))
    chownSync(theirs, 65_534, 65_534)
    await expect(FILE_SYSTEM.append(join(theirs, 'log'), 'x', true)).rejects.toThrow(
      `${join(theirs, 'log')} is a link to a file of another user: delete it`,
    )
    expect(readFileSync(own, 'utf8')).toBe('own')
  },
)
