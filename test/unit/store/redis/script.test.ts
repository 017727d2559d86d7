import { describe, expect, test } from 'vitest'
import type { RecordChange } from '../../../../src/store/backend.ts'
import {
  parseConverted,
  parseEncrypted,
  parsePut,
  parsePutEncrypted,
  parseRemoved,
  putArguments,
  putEncryptedArguments,
  valueArguments,
  type ScriptAnswer,
} from '../../../../src/store/redis/script.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const INSTANCE = parsed(anInstance({ revision: 7 }))
const CHANGE: RecordChange = {
  instance: INSTANCE,
  document: { id: 'srv-abcde' },
  userData: 'keep',
  liftsSeal: false,
  dryRun: false,
}
const VALUES = {
  instance: INSTANCE,
  order: 99,
  isFromStore: false,
  sealedAt: '2026-11-20T15:04:05Z',
  record: Buffer.from([1, 255]),
  userData: Buffer.from([0, 254]),
}

describe('the arguments of a publish', () => {
  test('have the document as JSON, and what happens to the user-data', () => {
    expect(putArguments(CHANGE)).toEqual(['put', '{"id":"srv-abcde"}', 'keep'])
    expect(putArguments({ ...CHANGE, userData: 'none' })).toEqual(['put', '{"id":"srv-abcde"}', 'none'])
    expect(putArguments({ ...CHANGE, userData: new Uint8Array([0, 255]) })).toEqual([
      'put',
      '{"id":"srv-abcde"}',
      'set',
      Buffer.from([0, 255]),
    ])
  })
  test('begin with dry-run if that is requested, and lift a seal only if that is requested', () => {
    expect(putArguments({ ...CHANGE, dryRun: true }).slice(0, 2)).toEqual(['dry-run', 'put'])
    expect(putArguments({ ...CHANGE, liftsSeal: true })[0]).toBe('unseal')
    expect(putEncryptedArguments(VALUES, { liftsSeal: true, onlyIf: undefined, dryRun: true }).slice(0, 2)).toEqual([
      'dry-run',
      'unseal-encrypted',
    ])
  })
  test('of encrypted values end in the digest that the instance must have; empty: any', () => {
    expect(putEncryptedArguments(VALUES, { liftsSeal: false, onlyIf: { digest: 'd1' }, dryRun: false })).toEqual([
      'put-encrypted',
      ...valueArguments(VALUES),
      'd1',
    ])
    expect(putEncryptedArguments(VALUES, { liftsSeal: false, onlyIf: undefined, dryRun: false }).at(-1)).toBe('')
    expect(
      putEncryptedArguments(VALUES, { liftsSeal: false, onlyIf: { digest: undefined }, dryRun: false }).at(-1),
    ).toBe('none')
  })
})

test('of encrypted values the script gets the facts that it compares, and nothing secret in plain text', () => {
  const [facts, ...values] = valueArguments(VALUES)
  expect(JSON.parse(facts as string)).toEqual({
    schema: 1,
    id: 'srv-abcde',
    revision: 7,
    order: 99,
    region: 'gb1',
    hypervisors: ['hv1'],
    sealedAt: VALUES.sealedAt,
    interfaces: [{ network: 'default', ipv4Addresses: ['10.0.0.2/30'], ipv6Addresses: [], ipv6Prefixes: [] }],
  })
  expect(JSON.parse(valueArguments({ ...VALUES, isFromStore: true })[0] as string)).toMatchObject({ fromStore: true })
  expect(values).toEqual([VALUES.record, VALUES.userData])
  expect(valueArguments({ ...VALUES, userData: undefined }).at(-1)).toEqual(Buffer.alloc(0))
})

const REFUSALS: [ScriptAnswer, object][] = [
  [['refused', 'stale', '9'], { kind: 'stale', revision: 9 }],
  [
    ['refused', 'address-owned', 'red', '10.0.0.2', 'srv-b'],
    { kind: 'address-owned', network: 'red', address: '10.0.0.2', owner: 'srv-b' },
  ],
  [
    ['refused', 'invalid', 'id'],
    { kind: 'invalid', faults: [{ path: '', message: "the store's script refused it: id" }] },
  ],
]

describe('the answer to a publish', () => {
  test.each<[ScriptAnswer, object]>([
    [['published', '7', '99'], { kind: 'published', order: 99 }],
    [['published', '7', '99', '2026-11-20T15:04:05Z'], { kind: 'published', sealedAt: '2026-11-20T15:04:05Z' }],
    [['unchanged', '7', '99'], { kind: 'unchanged', order: 99 }],
    ...REFUSALS,
  ])('%j means the same for plain and for encrypted values', (answer, result) => {
    expect(parsePut(answer)).toMatchObject(result)
    expect(parsePutEncrypted(answer)).toMatchObject(result)
  })
  test('may ask to try again with what the store has now', () => {
    expect(parsePut(['refused', 'user-data'])).toEqual({ kind: 'user-data-changed' })
    expect(parsePutEncrypted(['refused', 'changed'])).toEqual({ kind: 'changed' })
    expect(parsePutEncrypted(['refused', 'sealed', '2026-11-20T15:04:05Z'])).toEqual({
      kind: 'sealed',
      sealedAt: '2026-11-20T15:04:05Z',
    })
  })
})

test.each<[ScriptAnswer, object]>([
  [['removed', '8', '99'], { kind: 'removed', revision: 8, order: 99 }],
  [['unchanged', '8', '99'], { kind: 'unchanged', revision: 8, order: 99 }],
  [['absent'], { kind: 'absent' }],
  [['refused', 'stale', '9'], { kind: 'stale', revision: 9 }],
])('the answer %j to a removal is %j', (answer, result) => expect(parseRemoved(answer)).toEqual(result))

test('a conversion that the script calls invalid is final; after another refusal it may be tried again', () => {
  expect(parseConverted(['published', '8', '99'])).toEqual({ kind: 'converted', order: 99 })
  expect(parseEncrypted(['refused', 'order', '99'])).toEqual({ kind: 'order', last: 99 })
  expect(parseConverted(['refused', 'invalid', 'id'])).toEqual({ kind: 'invalid', reason: 'invalid id' })
  expect(parseConverted(['refused', 'changed'])).toEqual({ kind: 'refused', reason: 'changed' })
})

test('a change that reads the store before it writes gets an error while the region has lost changes', () => {
  for (const parse of [parsePut, parsePutEncrypted, parseConverted]) {
    expect(() => parse(['refused', 'behind', '99', 'hv1'])).toThrow(
      'the store has lost changes (hv1 has seen later ones)',
    )
    expect(() => parse(['refused', 'behind', '99', ''])).toThrow(/^the store has lost changes, and this would publish/)
  }
})

test('a publisher without the keys of an encrypted region, or with any unknown refusal, gets an error', () => {
  for (const parse of [parsePut, parsePutEncrypted, parseRemoved]) {
    expect(() => parse(['refused', 'encrypted'])).toThrow(
      'the region is encrypted: give its record keys (--record-keys, IMDS_RECORD_KEYS_FILE)',
    )
    expect(() => parse(['refused', 'usage', 'x'])).toThrow('the store refused: usage x')
  }
})
