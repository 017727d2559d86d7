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
  test('of one revision they are valid, and user-data may be absent', async () => {
    expect(await readStored(ID, record(3), userData(3), cipher, new TurnBudget())).toMatchObject({
      kind: 'record',
      document: { revision: 3 },
      userData: Buffer.from('mine'),
      keys: ['k1', 'k1'],
    })
    expect(await readStored(ID, record(3), undefined, cipher, new TurnBudget())).toMatchObject({
      kind: 'record',
      userData: undefined,
      keys: ['k1'],
    })
  })
  test.each<[string, () => Promise<object>, string, RegExp]>([
    [
      'user-data of another revision',
      () => readStored(ID, record(3), userData(2), cipher, new TurnBudget()),
      'rejected',
      /^the user-data is of revision 2, the record of 3$/,
    ],
    [
      'plain user-data',
      () => readStored(ID, record(3), Buffer.from('mine'), cipher, new TurnBudget()),
      'rejected',
      /^the user-data is not encrypted/,
    ],
    [
      'a plain record',
      () => readStored(ID, Buffer.from(JSON.stringify(anInstance())), undefined, cipher, new TurnBudget()),
      'rejected',
      /^the record is not encrypted/,
    ],
    [
      'a record in the place of user-data',
      () => readStored(ID, record(3), record(3), cipher, new TurnBudget()),
      'rejected',
      /^the user-data is not authentic/,
    ],
    [
      'a record with another revision than the one that it was encrypted for',
      () =>
        readStored(
          ID,
          cipher.encrypt('record', ID, 4, Buffer.from(JSON.stringify(anInstance({ revision: 3 })))),
          undefined,
          cipher,
          new TurnBudget(),
        ),
      'rejected',
      /has another revision/,
    ],
    [
      'a record that is no JSON',
      () => readStored(ID, cipher.encrypt('record', ID, 4, Buffer.from('{')), undefined, cipher, new TurnBudget()),
      'unreadable',
      /is not JSON/,
    ],
    [
      'without keys, an encrypted record',
      () => readStored(ID, record(3), undefined, undefined, new TurnBudget()),
      'unreadable',
      /is encrypted, and no keys/,
    ],
  ])('%s is a fault', async (_what, read, kind, reason) => {
    expect(await read()).toMatchObject({ kind })
    expect(((await read()) as { reason: string }).reason).toMatch(reason)
  })
  test('without keys records are plain', async () => {
    expect(
      await readStored(ID, Buffer.from(JSON.stringify(anInstance())), Buffer.from('mine'), undefined, new TurnBudget()),
    ).toEqual({ kind: 'record', document: anInstance(), userData: Buffer.from('mine'), keys: [] })
  })
})
