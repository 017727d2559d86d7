/**
 * What every store shares of a publish, on a store in memory. The real stores have their own tests:
 * test/redis/publish.test.ts, files/writer.test.ts.
 */
import { describe, expect, test } from 'vitest'
import type { Backend, RecordChange, RecordWriter, Written } from '../../../src/store/backend.ts'
import { publisherOn } from '../../../src/store/publish.ts'
import type { Published } from '../../../src/store/publisher.ts'
import { anInstance } from '../../support/fixtures/instance.ts'
import type { Fleet } from '../../../src/store/fleet.ts'

const NO_FLEET = {} as Fleet

const ID = 'srv-abcde'
const TIME = '2026-11-20T15:04:05Z'

/** Texts and values that are no ids, from a caller without types too. */
const NO_IDS = [
  '',
  '..',
  '../victim',
  'a/b',
  '/etc/passwd',
  '.publisher',
  'a b',
  'a\n',
  'a\0',
  'a:b',
  'ä',
  'a'.repeat(65),
  undefined,
  null,
  7,
  ['srv-abcde'],
  { toString: () => '../victim' },
] as string[]

/** A publisher on a store that has one record, and answers each write in turn with `answers`, then with `published`. */
function aPublisher({
  has,
  answers = [],
  region,
}: { has?: Published; answers?: readonly Written[]; region?: string } = {}) {
  const writes: RecordChange[] = []
  let open = 0
  let writesOutside = 0
  const backend: Backend & RecordWriter = {
    region,
    conversion: undefined,
    noKeysReason: 'no keys here',
    fleet: NO_FLEET,
    transaction: async (task) => {
      open += 1
      return task(backend).finally(() => {
        open -= 1
      })
    },
    get: (id) => Promise.resolve(id === ID ? has : undefined),
    write: (tx) => {
      if (open === 0) writesOutside += 1
      writes.push(tx)
      return Promise.resolve(answers[writes.length - 1] ?? { kind: 'published', order: 5, sealedAt: undefined })
    },
    remove: (_id, revision = 8) => Promise.resolve({ kind: 'removed', revision, order: 5 }),
    unannounced: (names) => Promise.resolve(names.filter((name) => name !== 'hv1')),
    reports: () => Promise.resolve(undefined),
    initialise: () => Promise.resolve(true),
    hypervisors: () => Promise.resolve([]),
    list: () => Promise.resolve([]),
    tombstones: () => Promise.resolve([]),
    close: () => Promise.resolve(),
  }
  return { store: publisherOn(backend, 16_384), writes, writesOutside: () => writesOutside }
}

const stored = (change: Record<string, unknown> = {}, userData?: Uint8Array): Published => ({
  document: anInstance({ revision: 7, ...change }),
  order: 1,
  userData,
})

describe('a put', () => {
  test('writes the whole document with the description of its user-data, within a transaction', async () => {
    const { store, writes, writesOutside } = aPublisher()
    expect(await store.put(anInstance({ later: 1 }), Buffer.from('x'))).toMatchObject({
      kind: 'published',
      instance: { id: ID, userData: { size: 1 } },
    })
    expect(writes).toMatchObject([{ document: { later: 1, userData: { size: 1 } }, liftsSeal: false, dryRun: false }])
    expect(writesOutside()).toBe(0)
  })

  test('of an invalid record, or one of another region, reports every fault and writes nothing', async () => {
    const { store, writes } = aPublisher({ region: 'gb1' })
    expect(await store.put(anInstance({ region: 'gb2', revision: 0, fqdn: '' }))).toMatchObject({
      kind: 'invalid',
      faults: [{}, {}],
    })
    expect(await store.put(anInstance({ region: 'gb2' }))).toMatchObject({
      kind: 'invalid',
      faults: [{ path: '/region' }],
    })
    expect(writes).toEqual([])
  })

  test('keeps the user-data in the store unless it brings other user-data or none', async () => {
    const { store, writes } = aPublisher({ has: stored({}, Buffer.from('four')) })
    await store.put(anInstance({ revision: 8 }))
    await store.put(anInstance({ revision: 8 }), 'none')
    expect(writes).toMatchObject([{ userData: 'keep', document: { userData: { size: 4 } } }, { userData: 'none' }])
    expect(writes[1]!.document).not.toHaveProperty('userData')
  })

  test('returns the seal of the store even if the document has none', async () => {
    const { store } = aPublisher({ answers: [{ kind: 'published', order: 5, sealedAt: TIME }] })
    expect(await store.put(anInstance())).toMatchObject({ kind: 'published', instance: { sealedAt: TIME } })
  })

  test('names the hypervisors of the record that no daemon has announced', async () => {
    expect(await aPublisher().store.put(anInstance({ hypervisors: ['hv1', 'hv-typo'] }))).toMatchObject({
      unannounced: ['hv-typo'],
    })
  })

  test.each<Written>([
    { kind: 'stale', revision: 9 },
    { kind: 'address-owned', network: 'default', address: '10.0.0.2', owner: 'srv-b' },
  ])('returns the refusal of the store: $kind', async (refusal) => {
    expect(await aPublisher({ answers: [refusal] }).store.put(anInstance())).toEqual(refusal)
  })

  test('whose user-data to keep changes meanwhile is checked and written again, at most ten times', async () => {
    const changed: Written = { kind: 'user-data-changed' }
    const lucky = aPublisher({ answers: Array.from({ length: 9 }, () => changed) })
    expect(await lucky.store.put(anInstance())).toMatchObject({ kind: 'published' })
    const unlucky = aPublisher({ answers: Array.from({ length: 10 }, () => changed) })
    await expect(unlucky.store.put(anInstance())).rejects.toThrow('another writer keeps changing the user-data')
    expect([lucky.writes.length, unlucky.writes.length]).toEqual([10, 10])
  })

  test('with dryRun tells the backend to write nothing', async () => {
    const { store, writes } = aPublisher()
    await store.put(anInstance(), 'keep', { dryRun: true })
    expect(writes).toMatchObject([{ dryRun: true }])
  })
})

describe('a seal', () => {
  test('is a new revision with the time, and an unseal one without; both keep the rest and the user-data', async () => {
    const sealing = aPublisher({ has: stored({ later: 1 }, Buffer.from('x')) })
    const sealed = await sealing.store.seal(ID)
    expect(sealed).toMatchObject({
      kind: 'sealed',
      revision: 8,
      sealedAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/) as string,
    })
    expect(sealing.writes).toMatchObject([
      {
        document: { revision: 8, later: 1, sealedAt: sealed.kind === 'sealed' ? sealed.sealedAt : '' },
        userData: 'keep',
        liftsSeal: false,
      },
    ])
    const unsealing = aPublisher({ has: stored({ sealedAt: TIME }) })
    expect(await unsealing.store.unseal(ID)).toEqual({ kind: 'unsealed', revision: 8, order: 5 })
    expect(unsealing.writes).toMatchObject([{ liftsSeal: true, userData: 'keep' }])
    expect(unsealing.writes[0]!.document).not.toHaveProperty('sealedAt')
  })

  test('that is there keeps its time; without one there is nothing to lift, and nothing is written', async () => {
    const sealed = aPublisher({ has: stored({ sealedAt: TIME }) })
    expect(await sealed.store.seal(ID)).toEqual({ kind: 'unchanged', revision: 7, sealedAt: TIME })
    const open = aPublisher({ has: stored() })
    expect(await open.store.unseal(ID)).toMatchObject({ kind: 'unchanged', revision: 7 })
    expect([sealed.writes, open.writes]).toEqual([[], []])
  })

  test('of an unknown instance is refused, and one of a faulty record is an error', async () => {
    expect(await aPublisher().store.seal('srv-none')).toEqual({ kind: 'absent' })
    await expect(aPublisher({ has: stored({ fqdn: '' }) }).store.seal(ID)).rejects.toThrow(
      `the store's record of ${ID} is faulty: publish a valid one first`,
    )
    await expect(aPublisher({ has: stored({ revision: Number.MAX_SAFE_INTEGER }) }).store.seal(ID)).rejects.toThrow(
      'has the highest possible revision',
    )
  })

  test('that loses a race is tried again, at most ten times', async () => {
    const stale: Written = { kind: 'stale', revision: 9 }
    const lucky = aPublisher({ has: stored(), answers: [stale, stale] })
    expect(await lucky.store.seal(ID)).toMatchObject({ kind: 'sealed' })
    const unlucky = aPublisher({ has: stored(), answers: Array.from({ length: 10 }, () => stale) })
    await expect(unlucky.store.seal(ID)).rejects.toThrow('another writer keeps changing this instance: try again')
    expect([lucky.writes.length, unlucky.writes.length]).toEqual([3, 10])
  })
})

test('a store without keys encrypts and decrypts nothing, and says why', async () => {
  const { store } = aPublisher({ has: stored() })
  for (const convert of [
    () => store.encrypt(ID, true),
    () => store.decrypt(ID),
    () => store.markPlain(),
    () => store.markEncrypted(),
  ])
    await expect(convert()).rejects.toThrow('no keys here')
})

describe('an argument', () => {
  /** A store that rejects everything: the id has to be refused before. */
  const asked = () => Promise.reject(new Error('the store was asked'))
  const backend: Backend & RecordWriter = {
    region: undefined,
    conversion: { key: 'k1', encrypt: asked, decrypt: asked, mark: asked },
    noKeysReason: '',
    fleet: NO_FLEET,
    transaction: (task) => task(backend),
    get: asked,
    write: asked,
    remove: asked,
    unannounced: asked,
    reports: () => Promise.resolve(undefined),
    initialise: asked,
    hypervisors: asked,
    tombstones: asked,
    close: asked,
    list: () => Promise.resolve([...NO_IDS, ID].map((id) => ({ id, revision: 1, hypervisors: [], addresses: [] }))),
  }
  const store = publisherOn(backend, 16_384)

  test.each(['get', 'remove', 'seal', 'unseal', 'encrypt', 'decrypt'] as const)(
    'that is no id is refused with the rule by %s, before the store is asked',
    async (method) => {
      for (const id of NO_IDS) {
        await expect(store[method](id, true as never)).rejects.toThrow(
          new TypeError(
            'the id of an instance must be an id: 1 to 64 letters, digits, ".", "_" or "-", beginning with a letter or digit',
          ),
        )
      }
      await expect(store[method](ID, undefined as never)).rejects.toThrow('the store was asked')
    },
  )

  test.each([Number.NaN, -1, 0, 1.5, 2 ** 60, '7', null] as number[])(
    'that is no revision is refused: %j',
    async (no) => {
      await expect(store.remove(ID, no)).rejects.toThrow(TypeError)
      await expect(store.remove(ID, no, { dryRun: true })).rejects.toThrow(TypeError)
      await expect(store.remove(ID, 2 ** 53 - 1)).rejects.toThrow('the store was asked')
    },
  )

  test.each([
    ['a text', 'text'],
    ['an array of larger numbers', new Uint16Array([500])],
    ['a view of bytes', new DataView(new ArrayBuffer(1))],
    ['null', null],
  ])('that is no user-data is refused: %s', async (_what, userData) => {
    await expect(store.put(anInstance(), userData as never)).rejects.toThrow(TypeError)
    await expect(store.put(anInstance(), userData as never, { dryRun: true })).rejects.toThrow(TypeError)
    await expect(store.put(anInstance(), Buffer.from('text'))).rejects.toThrow('the store was asked')
  })

  test('that is no id makes a record invalid, before the store is asked for its user-data', async () => {
    for (const id of NO_IDS)
      expect(await store.put(anInstance({ id }))).toMatchObject({ kind: 'invalid', faults: [{ path: '/id' }] })
    await expect(store.put(anInstance())).rejects.toThrow('the store was asked')
  })

  test('that is no id is not listed, though another program may have written it', async () => {
    expect((await store.list()).map(({ id }) => id)).toEqual([ID])
  })
})
