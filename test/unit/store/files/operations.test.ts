import { lstatSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test, vi } from 'vitest'
import { FILE_SYSTEM } from '../../../../src/store/files/operations.ts'
import { directoryOfFile } from '../../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()

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
