/** The file of a snapshot, as a start reads it. persistence.test.ts has its journals, and when it is written. */
import { execFileSync } from 'node:child_process'
import { createSecretKey } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { beforeEach, describe, expect, test, vi } from 'vitest'
import { sha256 } from '../../../../src/metadata/user-data.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
import { createJournal } from '../../../../src/imdsd/journal/journal-writer.ts'
import { restoreView } from '../../../../src/imdsd/journal/restore.ts'
import { writeSnapshot, type SnapshotContent } from '../../../../src/imdsd/journal/snapshot.ts'
import { StaleMark } from '../../../../src/imdsd/journal/stale-mark.ts'
import { journalPath, snapshotPath, type StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import type { Removals } from '../../../../src/imdsd/view/view.ts'
import { RecordCipher } from '../../../../src/store/crypto/record-cipher.ts'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'
import { signedSnapshot } from '../../../support/fixtures/signed-snapshot.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const DAY_MS = 86_400_000

let directory: string
let path: string
let log: { msg: string; reason?: string }[]
const logger = collectLog(() => log)
const KEY = Buffer.alloc(32, 1)
const keysOf = (cipher: RecordCipher | undefined, key: Buffer = KEY): StateKeys => ({
  cipher,
  macKeys: cipher === undefined ? [key] : cipher.macKeys('hv1'),
})
/** What a start serves; undefined: nothing. */
const read = async (owner = OWNER, nowMs = Date.now(), cipher?: RecordCipher, key = KEY) => {
  const restored = await restoreView({
    path,
    stale: new StaleMark(join(directory, 'operator.sock')),
    owner,
    keys: keysOf(cipher, key),
    waitsForRules: false,
    maxAgeMs: DAY_MS,
    nowMs,
    log: logger,
  })
  return restored.files === 'served' ? restored : undefined
}
const INSTANCES: ValidRecord[] = Array.from({ length: 200 }, (_, i) => ({
  instance: parsed(generateRecord(i + 1)),
  digest: `digest ${i}`,
  order: 1,
  lost: [],
  userData: [undefined, Buffer.alloc(0), Buffer.from([0, 10, 255, 10])][i % 3],
}))

/** Writes a snapshot, and its journal without changes. */
async function written(cipher?: RecordCipher, content: Partial<SnapshotContent> = {}): Promise<void> {
  const keys = keysOf(cipher)
  const journal = await createJournal(DISK, journalPath(path, 1), {
    owner: OWNER,
    keys,
    generation: 1,
    after: undefined,
    isWanted: () => true,
  })
  await journal.close()
  await writeSnapshot(
    DISK,
    path,
    {
      owner: OWNER,
      keys,
      instances: INSTANCES,
      removals: { floor: 0, removed: new Map() },
      asOf: new Date(),
      isComplete: true,
      journal: journal.start,
      ...content,
    },
    () => undefined,
  )
}

beforeEach(() => {
  directory = temporaryDirectory()
  path = snapshotPath(directory)
  log = []
})

test('H9: reports of another form are left out, and the instance is served', async () => {
  const reports = { revision: 1, boot: { phase: 'Not one', revision: 1, receivedAt: 'now' }, attributes: new Map() }
  await written(undefined, { instances: INSTANCES.map((one) => ({ ...one, reports })) })
  expect((await read())?.instances).toEqual(INSTANCES)
})

test('a snapshot of before there was an order is served: all of it has the order 0', async () => {
  const before = INSTANCES.map(({ order: _order, ...one }) => one) as unknown as ValidRecord[]
  await written(undefined, { instances: before, removals: { removed: new Map() } as unknown as Removals })
  expect(await read()).toMatchObject({
    instances: INSTANCES.map((one) => ({ ...one, order: 0 })),
    removals: { floor: 0, removed: new Map() },
  })
})

/** Everything that is left of a rejected snapshot is its line in the log. */
function expectDeleted(): void {
  expect(log).toHaveLength(1)
  expect(log[0]!.msg).toBe('the snapshot was rejected and deleted; guests get 503 until the store answers')
  expect(readdirSync(directory)).toEqual([])
}

/** Everything stays as it was, and there is one line in the log. */
function expectKept(): void {
  expect(log.map(({ msg }) => msg)).toEqual([
    'the snapshot is not served, and stays where it is until the store has records of this hypervisor; guests get 503 until then',
  ])
  expect(readdirSync(directory)).toEqual(['view.journal.1', 'view.snapshot'])
}

describe('a rejected snapshot is not served and is deleted, since it may hold user-data', () => {
  test.each<[string, (bytes: Buffer) => Uint8Array | string, RegExp]>([
    ['cut before its last byte', (bytes) => bytes.subarray(0, -1), /torn/],
    ['longer than it was', (bytes) => Buffer.concat([bytes, Buffer.from('{}\n')]), /torn/],
    ['empty', () => '', /torn/],
    ['one bit changed in a record', (bytes) => bytes.fill(bytes[5_000]! ^ 1, 5_000, 5_001), /changed/],
    ['random bytes', () => Uint8Array.from({ length: 5000 }, (_, i) => i * 7919), /./],
    ['something else', () => 'hello\nS3CRET\n', /^it is torn or was changed$/],
  ])('%s', async (_what, spoil, reason) => {
    await written()
    writeFileSync(path, spoil(readFileSync(path)))
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toMatch(reason)
    expectDeleted()
  })

  test('the log gives its size and age', async () => {
    await written()
    const { size } = statSync(path)
    const twoDaysAgo = new Date(Date.now() - 2 * DAY_MS)
    utimesSync(path, twoDaysAgo, twoDaysAgo)
    await read()
    expect(log).toMatchObject([{ path, bytes: size, ageSeconds: 172_800 }])
  })

  /** The first two records of a good file with their lines changed, and a last line whose digest fits. */
  const forge = (change: (line: string, n: number) => string) => () => {
    const [header = '', one = '', , two = ''] = readFileSync(path, 'latin1').split('\n')
    const body = `${header}\n${[one, two].map((line, n) => `${change(line, n)}\n\n`).join('')}`
    return `${body}${JSON.stringify({ instances: 2, sha256: sha256(Buffer.from(body)) })}\n`
  }
  const withLength = (length: (line: string) => string) =>
    forge((line) => line.replace(/"userDataBytes":.*/, `"userDataBytes":${length(line)}}`))

  test.each<[string, () => string]>([
    ['another number of instances', () => readFileSync(path, 'latin1').replace(/"instances":\d+/, '"instances":7')],
    ['a line that is no object', forge(() => 'null')],
    ['a last line that is no object', () => 'x\nnull\n'],
    [
      'user-data of a negative length',
      withLength((line) =>
        String(-line.replace(/"userDataBytes":.*/, '').length - '"userDataBytes":-0000}'.length - 2),
      ),
    ],
    ['user-data that is longer than the file', withLength(() => '1e300')],
    ['user-data of half a byte', withLength(() => '0.5')],
    ['user-data whose length is text', withLength(() => '"0"')],
    ['user-data that reaches into the next record', withLength(() => '7')],
  ])('forged, its digest right, with %s', async (_what, spoil) => {
    await written()
    writeFileSync(path, spoil(), 'latin1')
    expect(await read()).toBeUndefined()
    expect(log.map(({ reason }) => reason)).toEqual(['it is torn or was changed'])
    expectDeleted()
  })

  test.each<[string, string, string]>([
    ['of another format', '"format":', '"format":9'],
    ['that is no snapshot', '"imds":"snapshot"', '"imds":"other"'],
  ])('%s, its digest right', async (_what, from, to) => {
    await written()
    const lines = readFileSync(path, 'latin1').split('\n')
    expect(lines[0]).toContain(from)
    const body = [lines[0]!.replace(from, to), ...lines.slice(1, -2)].map((line) => `${line}\n`).join('')
    writeFileSync(
      path,
      `${body}${JSON.stringify({ instances: INSTANCES.length, sha256: sha256(Buffer.from(body, 'latin1')) })}\n`,
      'latin1',
    )
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toBe('it has another format')
    expectDeleted()
  })
})

describe('a snapshot of another owner, time or key is not served, and stays', () => {
  test.each<[string, typeof OWNER]>([
    ['region', { ...OWNER, region: 'gb2' }],
    ['hypervisor', { ...OWNER, hypervisor: 'hv2' }],
    ['store', { ...OWNER, store: 'file:/x' }],
  ])('of another %s, though its journal is of this one', async (key, owner) => {
    await written(undefined, { owner })
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toMatch(new RegExp(`^its ${key} is `))
    expectKept()
    await written()
    expect(await read(owner)).toBeUndefined()
    expect(log[1]!.reason).toContain(key)
    expect((await read())?.instances).toEqual(INSTANCES)
  })

  test('too old', async () => {
    await written()
    utimesSync(path, new Date(), new Date(Date.now() - DAY_MS - 1000))
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toMatch(/IMDS_SNAPSHOT_MAX_AGE_SECONDS/)
    expectKept()
  })

  test('from the future by more than the greatest age, so that its age is unknown', async () => {
    await written()
    utimesSync(path, new Date(), new Date(Date.now() + DAY_MS + 60_000))
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toMatch(/the clock of this hypervisor is behind$/)
    expectKept()
    expect((await read(OWNER, Date.now() + 120_000))?.instances, 'the clock is nearly right again').toEqual(INSTANCES)
  })

  test('with a MAC of another key', async () => {
    await written()
    expect(await read(OWNER, Date.now(), undefined, Buffer.alloc(32, 2))).toBeUndefined()
    expect(log[0]!.reason).toMatch(/^it was written with another key of this hypervisor/)
    expectKept()
  })
})

test('leftovers of a crash beside the snapshot are deleted at the start', async () => {
  await written()
  writeFileSync(`${path}.tmp`, 'S3CRET')
  writeFileSync(`${journalPath(path, 2)}.tmp`, 'S3CRET')
  expect((await read())?.instances).toHaveLength(INSTANCES.length)
  expect(readdirSync(directory)).toEqual(['view.journal.1', 'view.snapshot'])
  rmSync(path)
  writeFileSync(`${path}.tmp`, 'S3CRET')
  expect(await read()).toBeUndefined()
  expect(readdirSync(directory)).toEqual([])
  expect(log).toEqual([])
})

test('a FIFO in place of the file does not hold up the start, and stays', async () => {
  execFileSync('mkfifo', [path])
  expect(await read()).toBeUndefined()
  expect(log).toMatchObject([{ err: { message: 'it is a FIFO, not a regular file' } }])
  expect(existsSync(path)).toBe(true)
})

test('a file that cannot be read stays', async () => {
  mkdirSync(path)
  expect(await read()).toBeUndefined()
  expect(log).toMatchObject([
    {
      msg: 'the snapshot cannot be read, or the state directory cannot be written; guests get 503 until the store answers',
    },
  ])
  expect(existsSync(path)).toBe(true)
})

/** Rewrites a plain snapshot as a version with another schema of records writes it. */
function asOfOtherVersion(): void {
  const lines = readFileSync(path, 'latin1').split('\n').slice(0, -2)
  writeFileSync(path, signedSnapshot(`${lines.join('\n')}\n`, INSTANCES.length, KEY))
}

describe('a snapshot of a version with another schema of records', () => {
  test('is served, and without digests, so that the first resync reads all records again', async () => {
    await written()
    asOfOtherVersion()
    expect(await read()).toMatchObject({
      instances: INSTANCES.map((record) => ({ ...record, digest: undefined })),
      isComplete: true,
      isCurrent: false,
    })
    expect(log).toEqual([])
    expect(readdirSync(directory)).toEqual(['view.journal.1', 'view.snapshot'])
  })
  test('is not served if one of its records is valid in another version only', async () => {
    const invalid = INSTANCES.map((record) => ({ ...record, instance: { ...record.instance, fqdn: 'no name' } }))
    await written(undefined, { instances: invalid })
    expect((await read())?.instances).toEqual(invalid) // this version checked them before it wrote them
    asOfOtherVersion()
    expect(await read()).toBeUndefined()
    expect(log.map(({ reason }) => reason)).toEqual(['it has a record that is not valid in this version'])
  })
})

/** Records and user-data, shorter and longer than the slices in which a file is read and written. */
function largeAndSmall(): ValidRecord[] {
  const sizes = [SLICE_BYTES - 3_000, SLICE_BYTES, 0, 3 * SLICE_BYTES + 17]
  const large = sizes.map((size, i): ValidRecord => ({
    instance: INSTANCES[i]!.instance,
    digest: `large ${i}`,
    order: 1,
    lost: [],
    userData: Buffer.alloc(size, `x${i}\n{}\n`),
  }))
  return distinct([...INSTANCES, ...large, ...INSTANCES, ...INSTANCES, ...INSTANCES])
}

/** The same with an id for each, except for the first. */
function distinct(all: readonly ValidRecord[]): ValidRecord[] {
  return all.map((one, i) => (i === 0 ? one : { ...one, instance: { ...one.instance, id: `srv-${i}` } }))
}

describe.each([
  ['plain', undefined],
  ['encrypted', aCipher('gb1', 'k1')],
])('a large snapshot, %s', (_how, cipher) => {
  const write = (instances: readonly ValidRecord[]) => written(cipher, { instances })
  test('is read back complete: records, digests and user-data byte for byte', async () => {
    await write(largeAndSmall())
    expect(isDeepStrictEqual((await read(OWNER, Date.now(), cipher))?.instances, largeAndSmall())).toBe(true)
  })
  test('is written in slices: no turn of the event loop hashes or encrypts more than two', async () => {
    const { hashed, ciphered } = await mostBytesPerTurn(() =>
      write([...largeAndSmall(), { ...INSTANCES[0]!, userData: Buffer.alloc(40 * SLICE_BYTES, 7) }]),
    )
    expect(hashed).toBeGreaterThan(0)
    expect(Math.max(hashed, ciphered)).toBeLessThanOrEqual(2 * SLICE_BYTES)
  })
})

test('a write contains the view at that moment: no former state is kept in memory for it', async () => {
  const view = new Map(INSTANCES.map((record) => [record.instance.id, record]))
  const last = INSTANCES.at(-1)!
  const instances = function* () {
    setImmediate(() => view.set(last.instance.id, { ...last, digest: 'changed meanwhile' }))
    yield { ...INSTANCES[0]!, userData: Buffer.alloc(4 * SLICE_BYTES) }
    yield* view.values()
  }
  await written(undefined, { instances: instances() })
  expect((await read())?.instances.at(-1)?.digest).toBe('changed meanwhile')
})

describe('with keys', () => {
  const keys = aCipher('gb1', 'k1')
  test('the file is one encrypted value, which is read back complete', async () => {
    await written(keys)
    expect(readFileSync(path).subarray(0, 11).toString()).toBe('imds1 k1 0\n')
    expect(readFileSync(path, 'latin1')).not.toMatch(/srv-|snapshot|sha256/)
    expect(await read(OWNER, Date.now(), keys)).toMatchObject({ instances: INSTANCES, isCurrent: true })
    expect(await read(OWNER, Date.now(), aCipher('gb1', 'k2', 'k1'))).toMatchObject({
      instances: INSTANCES,
      isCurrent: false,
    })
    expect(log).toEqual([])
  })
  test('an encrypted file that is authentic but not a snapshot is rejected and deleted', async () => {
    writeFileSync(path, keys.encrypt('snapshot', 'hv1', 0, Buffer.from(`hello\n${'x'.repeat(3 * SLICE_BYTES)}`)))
    expect(await read(OWNER, Date.now(), keys)).toBeUndefined()
    expect(log[0]!.reason).toMatch(/torn/)
    expectDeleted()
  })
  const other = new RecordCipher([{ name: 'k1', key: createSecretKey(Buffer.alloc(32, 99)) }], 'gb1')
  test.each<[string, RecordCipher | undefined, RegExp, object?]>([
    ['without keys', undefined, /^it is encrypted, and there are no keys/],
    ['with another key', aCipher('gb1', 'k2'), /^it was encrypted with a key that is not configured here: k1$/],
    ['with another key of the same name', other, /^it is not authentic/],
    ['by another hypervisor', keys, /^it is not authentic/, { ...OWNER, hypervisor: 'hv2' }],
    ['in another region', aCipher('gb2', 'k1'), /^it is not authentic/],
  ])(
    'an encrypted file that is read %s is not served and stays, so that the right key can read it',
    async (_what, reading, reason, owner = OWNER) => {
      await written(keys)
      for (const start of [1, 2]) {
        expect(await read(owner as typeof OWNER, Date.now(), reading)).toBeUndefined()
        expect(log).toHaveLength(start)
        expect(log.at(-1)!.reason).toMatch(reason)
        expect(log.at(-1)!.msg).toBe(
          'the snapshot cannot be decrypted; it stays where it is, and guests get 503 until the store answers',
        )
      }
      expect((await read(OWNER, Date.now(), keys))?.instances).toEqual(INSTANCES)
    },
  )
})

test.each([
  ['plain', undefined],
  ['encrypted', aCipher('gb1', 'k1')],
])('with any byte changed, or cut anywhere, a file is not served: %s', async (_how, cipher) => {
  await written(cipher, { instances: INSTANCES.slice(0, 2) })
  const [good, journal] = [readFileSync(path), readFileSync(journalPath(path, 1))]
  for (let at = 0; at < good.length; at += 31) {
    const flipped = Buffer.from(good)
    flipped[at]! ^= 1 << (at % 8)
    for (const bytes of [flipped, good.subarray(0, at)]) {
      writeFileSync(path, bytes)
      writeFileSync(journalPath(path, 1), journal)
      expect(await read(OWNER, Date.now(), cipher), `byte ${at}`).toBeUndefined()
    }
  }
})

test('its age counts from the last sync with the store; a clock that was set back makes it negative', async () => {
  await written()
  const twoHoursAgo = new Date(Date.now() - 7_200_000)
  utimesSync(path, twoHoursAgo, twoHoursAgo)
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
  expect((await read(OWNER, Date.now() - DAY_MS))?.ageMs).toBeCloseTo(7_200_000 - DAY_MS, -4)
})

/** The prototype of what `open` gives, to see what is called on every file. */
async function fileHandles(): Promise<FileHandle> {
  const handle = await open(directory)
  await handle.close()
  return Object.getPrototypeOf(handle) as FileHandle
}

test('small values are combined, so that a file of 200 instances is written in few parts', async () => {
  const write = vi.spyOn(await fileHandles(), 'writeFile')
  await written()
  const parts = write.mock.calls.map(([part]) => (part as Buffer).length)
  write.mockRestore()
  // two are the header of its journal
  expect(parts.length).toBeLessThanOrEqual(2 + 2 + Math.ceil(statSync(path).size / SLICE_BYTES) + 1)
})

test.each([
  ['plain', undefined],
  ['encrypted', aCipher('gb1', 'k1')],
])('the %s file is complete and has its time when it is flushed to disk', async (_what, cipher) => {
  const flushed: { bytes: number; mtimeMs: number }[] = []
  const sync = vi.spyOn(await fileHandles(), 'sync').mockImplementation(async function (this: FileHandle) {
    const { size, mtimeMs } = await this.stat()
    flushed.push({ bytes: size, mtimeMs })
  })
  const asOf = new Date(Date.now() - 7_200_000)
  await written(cipher, { asOf }).finally(() => sync.mockRestore())
  expect(flushed.at(-1)).toEqual({ bytes: statSync(path).size, mtimeMs: asOf.getTime() })
})
