import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { StateWatch } from '../../../src/imdsd/state-watch.ts'
import { journalPath } from '../../../src/imdsd/journal/state-files.ts'
import { directoryOfFile } from '../../support/fixtures/temporary-directory.ts'

const directory = directoryOfFile()

test('it sees the directory, its journal, the free bytes and open descriptors as of its last look', async () => {
  const state = join(directory, 'state')
  const watch = new StateWatch(state, () => 0)
  expect(watch.last).toBeUndefined()
  await watch.check()
  const missing = { directory: { kind: 'unseen', code: 'ENOENT' }, journalBytes: 0, freeBytes: undefined }
  expect(watch.last).toMatchObject(missing)
  mkdirSync(state, { mode: 0o700 })
  writeFileSync(journalPath(state), 'text')
  await watch.check()
  expect(watch.last).toMatchObject({ directory: { kind: 'directory', mode: 0o40_700 }, journalBytes: 4 })
  const { freeBytes, openDescriptors, maxDescriptors } = watch.last!
  expect([freeBytes! > 0, openDescriptors > 3, maxDescriptors > openDescriptors]).toEqual([true, true, true])
})

test('a look that takes long finds a disk that does not answer, and no other look begins meanwhile', async () => {
  const clock = { ms: 0 }
  const watch = new StateWatch(directory, () => clock.ms)
  await watch.check()
  const looking = watch.check()
  clock.ms = 5_001
  await watch.check() // at once, while the second one is in flight
  expect(watch.last).toMatchObject({ directory: { kind: 'unseen', code: 'its disk does not answer' } })
  await looking
  expect(watch.last).toMatchObject({ directory: { kind: 'directory' } })
})
