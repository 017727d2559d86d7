import { describe, expect, test } from 'vitest'
import { TurnBudget } from '../../../../src/limits/turn-budget.ts'
import { readStored } from '../../../../src/store/crypto/stored.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'

const ID = 'srv-abcde'
const cipher = aCipher('gb1', 'k1')

describe('record and user-data are read together', () => {
  const record = (revision: number) =>
    cipher.encrypt('record', ID, revision, Buffer.from(JSON.stringify(anInstance({ revision }))))
  const userData = (revision: number) => cipher.encrypt('user-data', ID, revision, Buffer.from('mine'))
  const read = (record: Buffer, userData?: Buffer) => readStored(ID, record, userData, cipher, new TurnBudget())
  const readPlain = (record: Buffer, userData?: Buffer) => readStored(ID, record, userData, undefined, new TurnBudget())
  test('of one revision they are valid, and user-data may be absent', async () => {
    expect(await read(record(3), userData(3))).toMatchObject({
      kind: 'record',
      document: { revision: 3 },
      userData: Buffer.from('mine'),
      keys: ['k1', 'k1'],
    })
    expect(await read(record(3))).toMatchObject({
      kind: 'record',
      userData: undefined,
      keys: ['k1'],
    })
  })
  const plain = Buffer.from(JSON.stringify(anInstance()))
  const other = cipher.encrypt('record', ID, 4, Buffer.from(JSON.stringify(anInstance({ revision: 3 }))))
  test.each<[string, () => Promise<object>, string, RegExp]>([
    [
      'user-data of another revision',
      () => read(record(3), userData(2)),
      'rejected',
      /of revision 2, the record of 3$/,
    ],
    ['plain user-data', () => read(record(3), Buffer.from('mine')), 'rejected', /^the user-data is not encrypted/],
    ['a plain record', () => read(plain), 'rejected', /^the record is not encrypted/],
    ['a record as user-data', () => read(record(3), record(3)), 'rejected', /^the user-data is not authentic/],
    ['a record encrypted for another revision', () => read(other), 'rejected', /has another revision/],
    ['no JSON', () => read(cipher.encrypt('record', ID, 4, Buffer.from('{'))), 'unreadable', /is not JSON/],
    ['without keys, an encrypted record', () => readPlain(record(3)), 'unreadable', /is encrypted, and no keys/],
  ])('%s is a fault', async (_what, read, kind, reason) => {
    expect(await read()).toMatchObject({ kind })
    expect(((await read()) as { reason: string }).reason).toMatch(reason)
  })
  test('without keys records are plain', async () => {
    expect(await readPlain(plain, Buffer.from('mine'))).toEqual({
      kind: 'record',
      document: anInstance(),
      order: 0,
      userData: Buffer.from('mine'),
      keys: [],
    })
    const placed = Buffer.from(JSON.stringify({ ...anInstance(), order: 99 }))
    expect(await readPlain(placed)).toMatchObject({ document: anInstance(), order: 99 })
  })
})
