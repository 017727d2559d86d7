import { createCipheriv, createHash, hkdfSync } from 'node:crypto'
import { describe, expect, test } from 'vitest'
import { isEncrypted, parseRecordKeys } from '../../../../src/store/crypto/record-cipher.ts'
import { SLICE_BYTES, TurnBudget } from '../../../../src/limits/turn-budget.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { random } from '../../../support/fixtures/generated-records.ts'
import { aCipher, keyLines } from '../../../support/fixtures/record-keys.ts'

const ID = 'srv-abcde'
const cipher = aCipher('gb1', 'k1')
const bytes = Buffer.from([0, 10, 255, 10, 32])

test('an encrypted value decrypts to the same bytes, with its revision and the name of its key', () => {
  for (const plain of [bytes, Buffer.alloc(0), Buffer.alloc(100_000, 7)]) {
    const value = cipher.encrypt('user-data', ID, 7, plain)
    expect(isEncrypted(value)).toBe(true)
    expect(cipher.decrypt('user-data', ID, value)).toEqual({ kind: 'decrypted', bytes: plain, revision: 7, key: 'k1' })
  }
})

test('two values with the same content have nothing in common but their header', () => {
  const [a, b] = [cipher.encrypt('record', ID, 1, bytes), cipher.encrypt('record', ID, 1, bytes)]
  expect(a.subarray(0, 11).toString()).toBe('imds1 k1 1\n')
  expect(a.subarray(11).equals(b.subarray(11))).toBe(false)
  expect(a.includes(bytes)).toBe(false)
})

test('a value made in parts equals the whole value', () => {
  const { head, update, end } = cipher.encrypting('journal', 'hv1', 0)
  const value = Buffer.concat([head, update(Buffer.from('one ')), update(Buffer.from('two')), end()])
  expect(cipher.decrypt('journal', 'hv1', value)).toMatchObject({ bytes: Buffer.from('one two') })
})

test('a publisher in another language can make a value from the documented layout alone', () => {
  const key = createHash('sha256').update('a key for tests, k1').digest()
  const derived = Buffer.from(hkdfSync('sha256', key, '', 'imds1 record gb1', 32))
  const nonce = Buffer.from('000102030405060708090a0b', 'hex')
  const gcm = createCipheriv('aes-256-gcm', derived, nonce)
  gcm.setAAD(Buffer.from('imds1 k1 3 record gb1 srv-abcde'))
  const value = Buffer.concat([
    Buffer.from('imds1 k1 3\n'),
    nonce,
    gcm.update('{"a":1}'),
    gcm.final(),
    gcm.getAuthTag(),
  ])
  expect(cipher.decrypt('record', ID, value)).toEqual({
    kind: 'decrypted',
    bytes: Buffer.from('{"a":1}'),
    revision: 3,
    key: 'k1',
  })
})

describe('a value is rejected', () => {
  const good = cipher.encrypt('record', ID, 12, bytes)
  const put = (header: string) => Buffer.concat([Buffer.from(header), good.subarray(good.indexOf(10) + 1)])
  const journal = cipher.encrypt('journal', 'hv1', 0, bytes)
  const read = (value: Buffer, by = cipher) => by.decrypt('record', ID, value)
  test.each<[string, () => object, RegExp]>([
    ['that is plain', () => read(Buffer.from('{"id":"srv-abcde"}')), /is not encrypted/],
    ['that is empty', () => read(Buffer.alloc(0)), /is not encrypted/],
    ['of another instance', () => cipher.decrypt('record', 'srv-other', good), /is not authentic/],
    ['of another kind', () => cipher.decrypt('user-data', ID, good), /is not authentic/],
    ['of another hypervisor', () => cipher.decrypt('journal', 'hv2', journal), /is not authentic/],
    ['of another region', () => read(good, aCipher('gb2', 'k1')), /is not authentic/],
    ['whose key we do not have', () => read(good, aCipher('gb1', 'k2')), /with a key .* not configured here: k1$/],
    ['with another revision in its header', () => read(put('imds1 k1 13\n')), /is not authentic/],
    [
      'with another key in its header',
      () => read(put('imds1 k2 12\n'), aCipher('gb1', 'k1', 'k2')),
      /is not authentic/,
    ],
    ['with a revision that is spelled otherwise', () => read(put('imds1 k1 012\n')), /not in the format of imds/],
    ['of another version', () => read(put('imds2 k1 12\n')), /is not encrypted, or not in the format of imds/],
    ['cut within its nonce', () => read(good.subarray(0, 15)), /is truncated/],
    ['cut after its nonce', () => read(good.subarray(0, 24 + 10)), /is truncated/],
  ])('%s', (_what, decrypt, why) => {
    expect(decrypt()).toMatchObject({ kind: 'rejected', reason: expect.stringMatching(why) as unknown })
  })
})

test('20,000 values that were cut, extended, changed or spliced together are all rejected', () => {
  const next = random(20261120)
  const below = (n: number) => Math.floor(next() * n)
  const other = cipher.encrypt('record', 'srv-other', 12, Buffer.alloc(40, 9))
  const good = cipher.encrypt('record', ID, 12, Buffer.alloc(40, 7))
  for (let i = 0; i < 20_000; i++) {
    const copy = Buffer.from(good)
    const at = below(copy.length)
    const value = [
      () => copy.subarray(0, at),
      () => copy.subarray(1 + at),
      () => Buffer.concat([copy.subarray(0, at), Buffer.from([below(256)]), copy.subarray(at)]),
      () => Buffer.concat([copy.subarray(0, at), copy.subarray(at + 1 + below(8))]),
      () => Buffer.concat([copy.subarray(0, at), other.subarray(at)]),
      () => Buffer.concat([other.subarray(0, at), copy.subarray(at)]),
      () => {
        copy[at]! ^= 1 << below(8)
        return copy
      },
      () => Buffer.from(Array.from({ length: below(120) }, () => below(256))),
    ][below(8)]!()
    if (value.equals(good)) continue
    if (cipher.decrypt('record', ID, value).kind !== 'rejected') throw new Error(`accepted: ${value.toString('hex')}`)
  }
})

test('a journal has a derived key for each hypervisor, from the documented layout', () => {
  const derived = Buffer.from(
    hkdfSync('sha256', createHash('sha256').update('a key for tests, k1').digest(), '', 'imds1 journal gb1 hv1', 32),
  )
  const gcm = createCipheriv('aes-256-gcm', derived, Buffer.alloc(12))
  gcm.setAAD(Buffer.from('imds1 k1 0 journal gb1 hv1'))
  const value = Buffer.concat([
    Buffer.from('imds1 k1 0\n'),
    Buffer.alloc(12),
    gcm.update(bytes),
    gcm.final(),
    gcm.getAuthTag(),
  ])
  expect(cipher.decrypt('journal', 'hv1', value)).toMatchObject({ kind: 'decrypted', bytes })
})

test('a plain value does not look encrypted', () => {
  expect(isEncrypted(Buffer.from('{"id":"srv-abcde"}'))).toBe(false)
  expect(isEncrypted(Buffer.alloc(0))).toBe(false)
})

test('keys rotate with an overlap: the first encrypts, all decrypt', () => {
  const [both, young] = [aCipher('gb1', 'k2', 'k1'), aCipher('gb1', 'k2')]
  const before = cipher.encrypt('record', ID, 1, bytes)
  const after = both.encrypt('record', ID, 1, bytes)
  expect(both.current).toBe('k2')
  expect(both.names).toEqual(['k2', 'k1'])
  expect(
    [both.decrypt('record', ID, before), both.decrypt('record', ID, after), young.decrypt('record', ID, after)].map(
      (result) => result.kind === 'decrypted' && result.key,
    ),
  ).toEqual(['k1', 'k2', 'k2'])
})

describe('a key file', () => {
  const base64 = keyLines('k1').slice(3).trim()
  test('may have blank lines and any line endings', () => {
    expect(parseRecordKeys(`\r\n k1:${base64}\r\n\nk2:${base64}`)).toMatchObject({
      ok: true,
      value: [{ name: 'k1' }, { name: 'k2' }],
    })
  })
  test.each<[string, string, RegExp]>([
    ['that is empty', '\n\n', /has no key/],
    ['with a key of 31 bytes', `k1:${Buffer.alloc(31, 1).toString('base64')}`, /in line 1$/],
    ['with a key of 33 bytes', `k1:${Buffer.alloc(33, 1).toString('base64')}`, /in line 1$/],
    ['with a key that is not base64', `k1:${base64.replace(/./, '!')}`, /in line 1$/],
    ['with a key without a name', `${keyLines('k1')}${base64}`, /in line 2$/],
    ['with a name of two words', `k 1:${base64}`, /in line 1$/],
    ['with one name twice', `${keyLines('k1')}\nk1:${base64}`, /has the name of an earlier key in line 3/],
  ])('%s is refused, and no message contains a key', (_what, text, message) => {
    const parsed = parseRecordKeys(text)
    const faults = parsed.ok ? [] : parsed.faults
    expect(faults).toEqual([expect.stringMatching(message)])
    expect(faults.join()).not.toMatch(/[A-Za-z0-9+/]{20}/)
  })
  test('does not show its keys when it is printed', () => {
    const parsed = parseRecordKeys(keyLines('k1'))
    expect(JSON.stringify(parsed)).not.toContain(base64.slice(0, 10))
  })
})

describe('a value that is decrypted in slices', () => {
  const bytes = Buffer.alloc(5 * SLICE_BYTES + 7, 'abc')
  const value = cipher.encrypt('user-data', ID, 3, bytes)
  test.each([0, 1, SLICE_BYTES, bytes.length])('equals the value: %i bytes', async (length) => {
    const part = bytes.subarray(0, length)
    expect(
      await cipher.decryptInSlices('user-data', ID, cipher.encrypt('user-data', ID, 3, part), new TurnBudget()),
    ).toEqual({ kind: 'decrypted', bytes: part, revision: 3, key: 'k1' })
  })
  test('is rejected at once if it is not encrypted', async () => {
    expect(await cipher.decryptInSlices('user-data', ID, Buffer.from('plain'), new TurnBudget())).toEqual({
      kind: 'rejected',
      reason: 'is not encrypted, or not in the format of imds',
    })
  })
  test('is decrypted over several turns of the event loop', async () => {
    const { ciphered } = await mostBytesPerTurn(() => cipher.decryptInSlices('user-data', ID, value, new TurnBudget()))
    expect(ciphered).toBeGreaterThan(0)
    expect(ciphered).toBeLessThanOrEqual(4 * SLICE_BYTES)
  })
  test.each([100, SLICE_BYTES, 3 * SLICE_BYTES, value.length - 1])('is rejected if byte %i was changed', async (at) => {
    const changed = Buffer.from(value)
    changed[at]! ^= 1
    expect(await cipher.decryptInSlices('user-data', ID, changed, new TurnBudget())).toEqual({
      kind: 'rejected',
      reason: 'is not authentic: it was changed, or encrypted with another key or for another instance',
    })
  })
})
