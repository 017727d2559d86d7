/** The directory of a test (test/support/test-directory.ts). */
import { existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { testDirectory } from '../support/test-directory.ts'

let directory: string
const found: boolean[] = []

t.test('a directory is made, and a program that uses it is stopped at the end', (t) => {
  directory = testDirectory(t)
  t.teardown(async () => {
    await sleep(10) // the program takes time to stop
    found.push(existsSync(directory))
  })
  t.ok(existsSync(directory))
  t.end()
})

t.test('the directory of a test is there until its teardowns have ended, and not longer', (t) => {
  t.strictSame(found, [true])
  t.notOk(existsSync(directory))
  t.end()
})
