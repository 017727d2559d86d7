/**
 * The reader of a snapshot's bytes. snapshot.test.ts has the whole file, with slices that end at every place.
 */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { RecordCipher } from '../../../../src/store/crypto/record-cipher.ts'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import { RejectedFile, SnapshotInput, torn, Undecryptable } from '../../../../src/imdsd/journal/snapshot-input.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'

const cipher = aCipher('gb1', 'k1')
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex')

let directory: string
const opened: SnapshotInput[] = []
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'imds-input-'))
})
afterEach(() => {
  for (const input of opened.splice(0)) input.close()
  rmSync(directory, { recursive: true })
})

function inputOf(bytes: string | Buffer, reading?: RecordCipher): SnapshotInput {
  const path = join(directory, 'file')
  writeFileSync(path, bytes)
  const input = new SnapshotInput(path, 'hv1', reading)
  opened.push(input)
  return input
}

describe.each<[string, (text: string) => SnapshotInput]>([
  ['plain', (text) => inputOf(text)],
  ['encrypted', (text) => inputOf(cipher.encrypt('snapshot', 'hv1', 0, Buffer.from(text)), cipher)],
])('a file that is %s', (kind, open) => {
  test('gives its lines and bytes in their order, and the digest of all before its last line', () => {
    const large = 'x\n{}'.repeat(SLICE_BYTES)
    const before = `{"a":1}\n${large}\n\n`
    const input = open(`${before}{"last":true}\n`)
    expect(input.isEncrypted).toBe(kind === 'encrypted')
    expect(input.object()).toEqual({ a: 1 })
    expect(input.bytes(large.length).toString() === large).toBe(true)
    expect(input.bytes(0)).toHaveLength(0)
    expect(input.object()).toEqual({ last: true })
    expect(input.digest()).toBe(sha256(before))
    expect(() => {
      input.authenticate()
    }).not.toThrow()
  })

  test('has no digest before its end', () => {
    const input = open('{}\n{}\n')
    input.object()
    expect(() => input.digest()).toThrow(torn())
  })

  test.each<[string, string, (input: SnapshotInput) => unknown]>([
    ['a line without an end', '{"a":1}', (input) => input.object()],
    ['a line that is no JSON', 'S3CRET\n', (input) => input.object()],
    ['a line that is no object', '7\n', (input) => input.object()],
    ['null', 'null\n', (input) => input.object()],
    ['nothing', '', (input) => input.object()],
    ['fewer bytes than wanted', 'abc\n', (input) => input.bytes(5)],
    ['bytes without an LF behind them', 'abcd', (input) => input.bytes(3)],
    ['bytes at its end without an LF', 'abc', (input) => input.bytes(3)],
    ['an impossible number of bytes', 'abc\n', (input) => input.bytes(2 ** 60)],
    ['a negative number of bytes', 'abc\n', (input) => input.bytes(-1)],
    ['half a byte', 'abc\n', (input) => input.bytes(0.5)],
    ['a number of bytes in words', 'abc\n', (input) => input.bytes('3')],
    ['no number of bytes', 'abc\n', (input) => input.bytes(undefined)],
  ])('is torn if it has %s, and the error quotes nothing', (_what, text, read) => {
    const input = open(text)
    expect(() => read(input)).toThrow(new RejectedFile('it is torn or was changed'))
  })
})

test('a plain file needs no authentication', () => {
  const input = inputOf('{}\n')
  expect(() => {
    input.authenticate()
  }).not.toThrow()
})

test('an encrypted file that was changed gives what it has, and fails its authentication', () => {
  const value = cipher.encrypt('snapshot', 'hv1', 0, Buffer.from(`{}\n${'x'.repeat(2 * SLICE_BYTES)}`))
  value[value.length - 20]! ^= 1
  const input = inputOf(value, cipher)
  expect(input.object()).toEqual({})
  expect(() => {
    input.authenticate()
  }).toThrow(Undecryptable)
})

test.each<[string, RecordCipher | undefined, string]>([
  ['without keys', undefined, 'it is encrypted, and there are no keys (IMDS_RECORD_KEYS_FILE)'],
  ['without its key', aCipher('gb1', 'k2'), 'it was encrypted with a key that is not configured here: k1'],
])('an encrypted file that is opened %s is undecryptable', (_what, reading, reason) => {
  expect(() => inputOf(cipher.encrypt('snapshot', 'hv1', 0, Buffer.from('{}\n')), reading)).toThrow(
    new Undecryptable(reason),
  )
})

test('a file that is missing is an error of the file system', () => {
  expect(() => new SnapshotInput(join(directory, 'none'), 'hv1', undefined)).toThrow(/^ENOENT/)
})

test('a FIFO in place of the file does not hold up its reader', () => {
  execFileSync('mkfifo', [join(directory, 'fifo')])
  expect(() => new SnapshotInput(join(directory, 'fifo'), 'hv1', undefined)).toThrow('it is a FIFO, not a regular file')
})
