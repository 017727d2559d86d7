import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import { expect, test } from 'vitest'
import { StartFailure } from '../../../../src/runtime/listen.ts'
import { lockState } from '../../../../src/imdsd/journal/state-lock.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

function aDirectory() {
  const directory = temporaryDirectory()
  const warnings: string[] = []
  const log = pino(
    {},
    {
      write: (line: string) => warnings.push((JSON.parse(line) as { msg: string }).msg),
    },
  )
  return { directory, log, warnings }
}

test('a second daemon is refused, and nothing but the lock is left in the directory', async () => {
  const { directory, log, warnings } = aDirectory()
  const first = await lockState(directory, 0, log)
  await expect(lockState(directory, 0, log)).rejects.toThrow(StartFailure)
  await expect(lockState(directory, 0, log)).rejects.toThrow(
    `another imdsd uses ${directory}, or its file system has no locks: stop the other one`,
  )
  expect([readdirSync(directory), warnings]).toEqual([['view.lock'], []])
  first.close()
  const second = await lockState(directory, 0, log)
  second.close()
})

test('a directory that cannot be written at the start is not written later either, and the log says so', async () => {
  const { directory, log, warnings } = aDirectory()
  const state = join(directory, 'state')
  writeFileSync(state, 'in the place of the directory')
  const lock = await lockState(join(state, 'imds'), 0, log)
  expect(warnings).toEqual([
    'the state directory cannot be locked or written: nothing is kept on disk. Correct that, and restart imds',
  ])
  rmSync(state)
  mkdirSync(join(state, 'imds'), { recursive: true })
  const path = join(state, 'imds', 'view.journal')
  await expect(lock.disk.makeDirectory(path)).rejects.toThrow('another daemon may use it now: restart imds')
  await expect(lock.disk.create(path)).rejects.toThrow('restart imds')
  expect([readdirSync(join(state, 'imds')), await lock.disk.sizeOf(path)]).toEqual([[], undefined])
  lock.close()
})

test('with a file in the place of the lock nothing is written', async () => {
  const { directory, log, warnings } = aDirectory()
  mkdirSync(join(directory, 'view.lock'))
  const lock = await lockState(directory, 0, log)
  expect(warnings).toEqual([expect.stringMatching(/^the state directory cannot be locked or written/)])
  await expect(lock.disk.create(join(directory, 'view.journal'))).rejects.toThrow('restart imds')
  expect(readdirSync(directory)).toEqual(['view.lock'])
})
