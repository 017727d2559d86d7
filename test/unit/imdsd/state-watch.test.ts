import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { StateWatch } from '../../../src/imdsd/state-watch.ts'
import { journalPath } from '../../../src/imdsd/journal/state-files.ts'
import { directoryOfFile } from '../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()

test('it sees the directory, its journal and the free bytes as of its last look', async () => {
  const state = join(directory, 'state')
  const watch = new StateWatch(state, () => 0)
  expect(watch.file(state)).toEqual({ kind: 'unseen', code: 'it was not checked yet' })
  await watch.check()
  expect([watch.file(state), watch.freeBytes]).toEqual([{ kind: 'unseen', code: 'ENOENT' }, undefined])
  mkdirSync(state, { mode: 0o700 })
  writeFileSync(journalPath(state), 'text')
  await watch.check()
  expect(watch.file(state)).toMatchObject({ kind: 'directory', mode: 0o40_700 })
  expect(watch.file(journalPath(state))).toMatchObject({ kind: 'file', size: 4 })
  expect(watch.freeBytes).toBeGreaterThan(0)
})

test('a look that takes long finds a disk that does not answer, and no other look begins meanwhile', async () => {
  const clock = { ms: 0 }
  const watch = new StateWatch(directory, () => clock.ms)
  const looking = watch.check()
  clock.ms = 5_001
  await watch.check() // at once, while the first one is in flight
  expect(watch.file(directory)).toEqual({ kind: 'unseen', code: 'its disk does not answer' })
  await looking
  expect(watch.file(directory)).toMatchObject({ kind: 'directory' })
})
