import { expect, test } from 'vitest'
import { formatPending, parsePending, type PendingChange } from '../../../../src/store/files/pending.ts'

test.each<[string, PendingChange]>([
  [
    'user-data with line ends and any bytes',
    { kind: 'put', document: { a: 'x\ny' }, userData: Buffer.from([0, 10, 255, 10]) },
  ],
  ['empty user-data', { kind: 'put', document: {}, userData: Buffer.alloc(0) }],
  ['user-data that is kept', { kind: 'put', document: { userData: 'none' }, userData: 'keep' }],
  ['no user-data', { kind: 'put', document: { tombstone: '1' }, userData: 'none' }],
  ['a removal', { kind: 'remove', tombstone: '3 2026-11-20T15:04:05Z' }],
])('a pending change is read back as it was written: %s', (_what, tx) => {
  expect(parsePending(Buffer.from(formatPending(tx)))).toEqual(tx)
})
