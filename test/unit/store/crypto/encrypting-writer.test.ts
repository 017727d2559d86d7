/**
 * The writer on a store in memory that cannot read what it stores. test/redis/encrypted.test.ts runs it with a real Redis.
 */
import { expect, test } from 'vitest'
import type { RecordChange } from '../../../../src/store/backend.ts'
import {
  buildEncryptingWriter,
  type Converted,
  type EncryptedValues,
  type EncryptedWritten,
  type StoredBytes,
  type ValueStore,
  type WriteOptions,
} from '../../../../src/store/crypto/encrypting-writer.ts'
import { isEncrypted } from '../../../../src/store/crypto/record-cipher.ts'
import { readPublished } from '../../../../src/store/crypto/stored.ts'
import { sha256 } from '../../../../src/metadata/user-data.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'

const ID = 'srv-abcde'
const TIME = '2026-11-20T15:04:05Z'
const BYTES = Buffer.from('secret')
const NOW_MS = 1_790_000_000_000
const cipher = aCipher('gb1', 'k1')

/** A record with its description of user-data. */
const record = (revision: number, userData?: Buffer, change: Record<string, unknown> = {}) =>
  anInstance({
    revision,
    ...(userData !== undefined && { userData: { size: userData.length, sha256: sha256(userData) } }),
    ...change,
  })

/** What the store has of an instance, encrypted with the first of some keys. */
function values(revision: number, userData?: Buffer, change: Record<string, unknown> = {}, by = cipher): StoredBytes {
  const document = Buffer.from(JSON.stringify(record(revision, userData, change)))
  return {
    record: by.encrypt('record', ID, revision, document),
    userData: userData && by.encrypt('user-data', ID, revision, userData),
    digest: `d${revision}`,
  }
}

const plainValues: StoredBytes = {
  record: Buffer.from(JSON.stringify(record(7, BYTES))),
  userData: BYTES,
  digest: 'd7',
}

function change(
  revision: number,
  userData: RecordChange['userData'] = 'none',
  more: Record<string, unknown> = {},
  options: Partial<RecordChange> = {},
): RecordChange {
  const document = record(revision, userData instanceof Uint8Array ? Buffer.from(userData) : undefined, more)
  return { instance: parsed(document), document, userData, liftsSeal: false, dryRun: false, ...options }
}

/** A store with some values, which answers writes and conversions in turn with `answers`, then with success. */
function aStore(has: StoredBytes | undefined, answers: readonly (EncryptedWritten | Converted)[] = [], by = cipher) {
  const writes: { values: EncryptedValues; options?: WriteOptions }[] = []
  const plain: unknown[] = []
  const answer = <T>(otherwise: T) => Promise.resolve((answers[writes.length + plain.length - 1] ?? otherwise) as T)
  const store: ValueStore = {
    values: (id) => Promise.resolve(id === ID ? has : undefined),
    writeEncrypted: (encrypted, options) => {
      writes.push({ values: encrypted, options })
      return answer<EncryptedWritten>({ kind: 'published', order: encrypted.order, sealedAt: encrypted.sealedAt })
    },
    remove: (_id, revision = 1) => Promise.resolve({ kind: 'removed', revision, order: 1 }),
    convertToEncrypted: (encrypted) => {
      writes.push({ values: encrypted })
      return answer<Converted>({ kind: 'converted', order: encrypted.order })
    },
    convertToPlain: (...contents) => {
      plain.push(contents)
      return answer<Converted>({ kind: 'converted', order: 1 })
    },
    mark: () => Promise.resolve(),
  }
  return { writer: buildEncryptingWriter(by, store, () => NOW_MS), writes, plain }
}

/** The contents of encrypted values, as a daemon reads them, without their place, which is that of the facts. */
function contents({
  record: encrypted,
  userData,
  order,
}: Pick<EncryptedValues, 'record' | 'userData' | 'order'>): [unknown, string | undefined] {
  const [document, bytes] = [
    cipher.decrypt('record', ID, encrypted),
    userData && cipher.decrypt('user-data', ID, userData),
  ]
  if (document.kind === 'rejected' || bytes?.kind === 'rejected') throw new Error('rejected')
  const { order: place, ...rest } = JSON.parse(document.bytes.toString()) as { order: number }
  if (place !== order) throw new Error('the place of the record is not that of its facts')
  return [rest, bytes?.bytes.toString()]
}

test('invariant 9: what is written is readable with the keys only', async () => {
  const { writer, writes } = aStore(undefined)
  expect(await writer.write(change(1, BYTES))).toMatchObject({ kind: 'published' })
  const [{ values: written }] = writes as [(typeof writes)[0]]
  expect([isEncrypted(written.record), isEncrypted(written.userData!)]).toEqual([true, true])
  expect(Buffer.concat([written.record, written.userData!]).toString('latin1')).not.toMatch(/secret|example\.com/)
  expect(contents(written)).toEqual([record(1, BYTES), 'secret'])
})

test('user-data that stays is encrypted for the new revision, if the store still has it', async () => {
  const { writer, writes } = aStore(values(7, BYTES))
  const kept = { ...change(8, 'keep'), document: record(8, BYTES), instance: parsed(record(8, BYTES)) }
  expect(await writer.write(kept)).toMatchObject({ kind: 'published' })
  expect(writes).toMatchObject([{ options: { onlyIf: { digest: 'd7' } } }])
  expect(contents(writes[0]!.values)).toEqual([record(8, BYTES), 'secret'])
  expect(cipher.decrypt('user-data', ID, writes[0]!.values.userData!)).toMatchObject({ revision: 8 })
})

test('user-data to keep is not written if it changed in the store meanwhile', async () => {
  const other = aStore(values(7, Buffer.from('other')))
  const kept = { ...change(8, 'keep'), document: record(8, BYTES), instance: parsed(record(8, BYTES)) }
  expect([await other.writer.write(kept), other.writes]).toEqual([{ kind: 'user-data-changed' }, []])
  expect(await aStore(values(7, BYTES), [{ kind: 'changed' }]).writer.write(kept)).toEqual({
    kind: 'user-data-changed',
  })
  const none = aStore(undefined)
  await none.writer.write(change(8, 'keep'))
  expect(none.writes).toMatchObject([{ options: { onlyIf: { digest: undefined } } }])
})

test('the seal in the store stays in the record, and only an unseal lifts it', async () => {
  const sealed = aStore(values(7, undefined, { sealedAt: TIME }))
  await sealed.writer.write(change(8))
  await sealed.writer.write(change(9, 'none', {}, { liftsSeal: true }))
  expect(
    sealed.writes.map(({ values: written, options }) => [
      written.sealedAt,
      (contents(written)[0] as { sealedAt?: string }).sealedAt,
      options?.liftsSeal,
    ]),
  ).toEqual([
    [TIME, TIME, false],
    [undefined, undefined, true],
  ])
})

test('a seal that only the store knows is put into the record, and the write is repeated', async () => {
  const { writer, writes } = aStore(undefined, [{ kind: 'sealed', sealedAt: TIME }])
  expect(await writer.write(change(8))).toMatchObject({ kind: 'published', sealedAt: TIME })
  expect(writes.map(({ values: written }) => written.sealedAt)).toEqual([undefined, TIME])
  const racing = aStore(
    undefined,
    Array.from({ length: 5 }, () => ({ kind: 'sealed' as const, sealedAt: TIME })),
  )
  await expect(racing.writer.write(change(8))).rejects.toThrow('another writer keeps changing the seal')
})

test('the same contents again are unchanged, although their ciphertext differs; other contents are stale', async () => {
  const stale = { kind: 'stale' as const, revision: 7 }
  expect(await aStore(values(7, BYTES), [stale]).writer.write(change(7, BYTES))).toMatchObject({
    kind: 'unchanged',
  })
  for (const other of [
    values(7, Buffer.from('other')),
    values(7, BYTES, { fqdn: 'new.example.com' }),
    values(7),
    undefined,
  ]) {
    expect(await aStore(other, [stale]).writer.write(change(7, BYTES))).toEqual(stale)
  }
})

test('the same contents again get a later place, and are the same contents', async () => {
  const stale = { kind: 'stale' as const, revision: 7 }
  const { writer, writes } = aStore(values(7, BYTES), [stale])
  expect(await writer.write(change(7, BYTES))).toMatchObject({ kind: 'unchanged', order: NOW_MS * 1_000 + 1 })
  expect(contents(writes[1]!.values)).toEqual([record(7, BYTES), 'secret'])
  expect(writes[1]!.values.isFromStore).toBe(false)
})

test('a place is the time in microseconds, above the last one; each attempt leaps further', async () => {
  const last = NOW_MS * 1_000 + 5_000_000
  const refusals = [last, last + 3_000].map((of) => ({ kind: 'order' as const, last: of }))
  const { writer, writes } = aStore(undefined, refusals)
  expect(await writer.write(change(1))).toMatchObject({ kind: 'published', order: last + 3_000 + 2_000 })
  await writer.write(change(2))
  expect(writes.map(({ values: { order } }) => order - last)).toEqual([-5_000_000, 1_000, 5_000, 5_001])
})

test('a store that asks for a place far in the future gets none: it is not trusted', async () => {
  const { writer, writes } = aStore(undefined, [{ kind: 'order', last: (NOW_MS + 24 * 3_600_000) * 1_000 }])
  await expect(writer.write(change(1))).rejects.toThrow(/compare its clock with that of Redis/)
  expect(writes).toHaveLength(1)
  await writer.write(change(1))
  expect(writes[1]!.values.order).toBe(NOW_MS * 1_000 + 1)
})

test('the store is told what was read from it', async () => {
  const { writer, writes } = aStore(values(7, BYTES))
  await writer.write({ ...change(8, 'keep'), document: record(8, BYTES), instance: parsed(record(8, BYTES)) })
  await writer.write(change(9, BYTES))
  const converted = aStore(plainValues)
  await converted.writer.encrypt(ID, true)
  expect([...writes, ...converted.writes].map((one) => one.values.isFromStore)).toEqual([true, false, true])
})

test('a record that the cipher rejects is not given to a publisher, and a good one replaces it', async () => {
  const foreign = values(7, BYTES, {}, aCipher('gb1', 'k2'))
  await expect(readPublished(ID, foreign, cipher)).rejects.toThrow(
    `${ID} cannot be read: the record was encrypted with a key that is not configured here: k2`,
  )
  expect(await aStore(foreign).writer.write(change(8, BYTES))).toMatchObject({ kind: 'published' })
  expect(await readPublished(ID, values(7, BYTES), cipher)).toMatchObject({
    document: record(7, BYTES),
    userData: BYTES,
  })
})

test('an encryption replaces the keys at the same revision; plain values need a permission', async () => {
  const old = aStore(values(7, BYTES, {}, aCipher('gb1', 'k0')), [], aCipher('gb1', 'k1', 'k0'))
  expect(await old.writer.encrypt(ID, false)).toEqual({ kind: 'encrypted' })
  expect(contents(old.writes[0]!.values)).toEqual([record(7, BYTES), 'secret'])
  const plain = aStore(plainValues)
  expect([await plain.writer.encrypt(ID, false), plain.writes]).toEqual([{ kind: 'plain' }, []])
  expect(await plain.writer.encrypt(ID, true)).toEqual({ kind: 'encrypted' })
  expect([await aStore(values(7)).writer.encrypt(ID, false), await plain.writer.encrypt('srv-none', true)]).toEqual([
    { kind: 'unchanged' },
    { kind: 'absent' },
  ])
})

test('a faulty record is not encrypted, and neither is what the cipher rejects', async () => {
  const faulty = { ...plainValues, userData: Buffer.from('other') }
  await expect(aStore(faulty).writer.encrypt(ID, true)).rejects.toThrow(
    `the store's record of ${ID} is faulty: publish a valid one`,
  )
  await expect(aStore(values(7, undefined, {}, aCipher('gb1', 'k2'))).writer.encrypt(ID, false)).rejects.toThrow(
    /not configured here: k2/,
  )
})

test('a decryption gives the store the plain contents; plain values stay', async () => {
  const { writer, plain } = aStore(values(7, BYTES))
  expect([await writer.decrypt(ID), plain]).toEqual([{ kind: 'decrypted' }, [[record(7, BYTES), BYTES, 'd7']]])
  expect([await aStore(plainValues).writer.decrypt(ID), await writer.decrypt('srv-none')]).toEqual([
    { kind: 'unchanged' },
    { kind: 'absent' },
  ])
})

test('a conversion that the store refuses is tried five times, or once if the refusal is final', async () => {
  const refused = Array.from({ length: 5 }, (): Converted => ({ kind: 'refused', reason: 'changed' }))
  const racing = aStore(plainValues, refused)
  await expect(racing.writer.encrypt(ID, true)).rejects.toThrow(`the store refused to have ${ID} encrypted: changed`)
  const final = aStore(values(7), [{ kind: 'invalid', reason: 'invalid id' }])
  await expect(final.writer.decrypt(ID)).rejects.toThrow(`the store refused to have ${ID} decrypted: invalid id`)
  expect([racing.writes.length, final.plain.length]).toEqual([5, 1])
})
