import { expect, test } from 'vitest'
import { changeSealOf, formatTombstone, parseTombstone, sealAfter, withSeal } from '../../../src/store/seal.ts'

const [STORE, RECORD] = ['2026-11-20T15:04:05Z', '2026-11-21T00:00:00Z']

test.each([
  [undefined, undefined, false, undefined],
  [undefined, RECORD, false, RECORD],
  [STORE, undefined, false, STORE],
  [STORE, RECORD, false, STORE],
  [STORE, undefined, true, undefined],
  [STORE, RECORD, true, RECORD],
])(
  'with the seal %s in the store and %s in the record, lifted: %s, the record gets %s',
  (inStore, ofRecord, lifts, seal) => expect(sealAfter(inStore, ofRecord, lifts)).toBe(seal),
)

test('a document gets a seal, the next revision changes it, and the document given stays as it is', () => {
  const document = Object.freeze({ id: 'srv-abcde', revision: 1, tags: {} })
  expect(withSeal(document, undefined)).toBe(document)
  const sealed = changeSealOf(document, 2, STORE)
  expect(JSON.stringify(sealed)).toBe(`{"id":"srv-abcde","revision":2,"tags":{},"sealedAt":"${STORE}"}`)
  expect(JSON.stringify(changeSealOf(sealed, 3, undefined))).toBe('{"id":"srv-abcde","revision":3,"tags":{}}')
})

test.each([{ revision: 7 }, { revision: 12 }, { revision: 7, sealedAt: STORE }])(
  'a tombstone is read back as it was written: %j',
  (tombstone) => expect(parseTombstone(`${formatTombstone(tombstone)}\n`)).toStrictEqual(tombstone),
)

test.each([
  ['', undefined],
  ['seven', undefined],
  ['-7', undefined],
  ['7x', undefined],
  ['7 yesterday', { revision: 7 }],
  ['7 99', { revision: 7 }],
  [`7 99 ${STORE}`, { revision: 7, sealedAt: STORE }],
])('the text %j is the tombstone %j', (text, tombstone) => expect(parseTombstone(text)).toEqual(tombstone))

test('a tombstone is the revision, and the time of the seal if there is one', () => {
  expect([formatTombstone({ revision: 7 }), formatTombstone({ revision: 7, sealedAt: STORE })]).toEqual([
    '7',
    `7 ${STORE}`,
  ])
})
