import { readFileSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { missingFile } from '../../../src/runtime/installation.ts'

/** The directory of the installation, here src/. */
const OURS = fileURLToPath(new URL('../../../src/', import.meta.url))
const GONE = `${OURS}chunk-gone.js`

/** The error of an operation that fails. */
function errorOf(fail: () => unknown): unknown {
  try {
    return fail()
  } catch (error) {
    return error
  }
}

test('a file of our installation that an upgrade has removed is named, however its loss shows', () => {
  expect(missingFile(errorOf(() => readFileSync(GONE)))).toBe(GONE)
  const importing = Object.assign(new Error(`Cannot find module '${GONE}' imported from ${OURS}main.js`), {
    code: 'ERR_MODULE_NOT_FOUND',
  })
  expect(missingFile(importing)).toBe(GONE)
  expect(
    missingFile(
      Object.assign(new Error('Cannot find it'), { code: 'ERR_MODULE_NOT_FOUND', url: pathToFileURL(GONE).href }),
    ),
  ).toBe(GONE)
})

test.each<[string, () => unknown]>([
  ['a file of another program', () => errorOf(() => readFileSync('/nowhere/view.journal'))],
  ['a file beside our installation', () => errorOf(() => readFileSync(`${OURS.replace(/\/$/, '')}-old/chunk-gone.js`))],
  [
    'a file of the installation that cannot be read',
    () => Object.assign(new Error(`EACCES: permission denied, open '${GONE}'`), { code: 'EACCES', path: GONE }),
  ],
  [
    'a package that is not installed',
    () => Object.assign(new Error("Cannot find package 'yaml' imported from x"), { code: 'ERR_MODULE_NOT_FOUND' }),
  ],
  ['a module error without a name', () => Object.assign(new Error('not found'), { code: 'ERR_MODULE_NOT_FOUND' })],
  ['a bug', () => new TypeError(`${GONE} is not a function`)],
])('%s is not missing from our installation', (_what, error) => expect(missingFile(error()) === undefined).toBe(true))
