/**
 * The directory of a test. `t.testdir` of tap alone is forbidden (oxlint.config.ts): it removes the directory before
 * what the test has registered by `t.teardown` after it. A program that is not stopped yet may still write a file there;
 * then the removal fails, tap stops nothing, and the test file waits for that program until its time is up.
 */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'

/**
 * Makes a new directory for a test, with `content` or empty, and returns its path, which is `t.testdirName`. It is
 * removed after all teardowns of the test, when the programs that use it have ended.
 */
export function testDirectory(t: Test, content?: Parameters<Test['testdir']>[0]): string {
  t.teardown(() => {
    // tap runs all teardowns at the place of the first one: with this one, that is before it removes the directory
  })
  // eslint-disable-next-line eslint-js/no-restricted-syntax -- here is its only use
  return t.testdir(content)
}

/** Makes a new directory with a short path, as a unix socket needs. It is removed with the test. `mode`: of the directory. */
export function shortDirectory(t: Pick<Test, 'teardown'>, mode = 0o700): string {
  const directory = mkdtempSync(join(tmpdir(), 'imds-'))
  chmodSync(directory, mode)
  t.teardown(() => rmSync(directory, { recursive: true, force: true }))
  return directory
}
