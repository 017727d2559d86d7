import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { readSecretFile } from '../../../src/runtime/secret-file.ts'

test.each([
  ['pass word\n', 'pass word'],
  ['pass\r\nmore\n', 'pass'],
  [' pass', ' pass'],
  ['', ''],
])('of %j the secret is %j', (text, secret) => {
  const directory = mkdtempSync(join(tmpdir(), 'imds-secret-'))
  onTestFinished(() => {
    rmSync(directory, { recursive: true })
  })
  const path = join(directory, 'secret')
  writeFileSync(path, text)
  expect(readSecretFile(path)).toBe(secret)
  writeFileSync(path, Buffer.from([0x61, 0xff]))
  expect(() => readSecretFile(path)).toThrow(`${path} cannot be read: it is not UTF-8: the byte at offset 1 is wrong`)
  expect(() => readSecretFile(`${path}.x`)).toThrow(`${path}.x cannot be read: ENOENT`)
})
