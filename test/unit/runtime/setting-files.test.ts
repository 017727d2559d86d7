import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { readSecretFile } from '../../../src/runtime/setting-files.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

test.each([
  ['pass word\n', 'pass word'],
  ['pass\r\nmore\n', 'pass'],
  [' pass', ' pass'],
])('of %j the secret is %j', (text, secret) => {
  const directory = temporaryDirectory()
  const path = join(directory, 'secret')
  writeFileSync(path, text)
  expect(readSecretFile(path)).toBe(secret)
  writeFileSync(path, Buffer.from([0x61, 0xff]))
  expect(() => readSecretFile(path)).toThrow(`${path} cannot be read: it is not UTF-8: the byte at offset 1 is wrong`)
  writeFileSync(path, '\n')
  expect(() => readSecretFile(path)).toThrow(`${path} has no password in its first line`)
  expect(() => readSecretFile(`${path}.x`)).toThrow(`${path}.x cannot be read: ENOENT`)
})
