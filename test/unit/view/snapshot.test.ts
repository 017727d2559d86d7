import { createSecretKey } from 'node:crypto'
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { open, type FileHandle } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { sha256 } from '../../../src/metadata/user-data.ts'
import type { Assembled } from '../../../src/view/validate.ts'
import { readSnapshot, snapshotPath, SnapshotWriter, type SnapshotParts } from '../../../src/view/snapshot.ts'
import { RecordCipher } from '../../../src/store/crypto/record-cipher.ts'
import { SLICE_BYTES } from '../../../src/runtime/turn-budget.ts'
import { mostBytesPerTurn } from '../../support/fixtures/bytes-per-turn.ts'
import { generateRecord } from '../../support/fixtures/generated-records.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aCipher } from '../../support/fixtures/record-keys.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const DAY_MS = 86_400_000

let directory: string
let path: string
let log: { msg: string, reason?: string }[]
const logger = pino({}, { write: (line: string) => { log.push(JSON.parse(line) as { msg: string }) } })
const writes = { written: 0, failed: 0 }
const KEY = Buffer.alloc(32, 1)
const read = (owner = OWNER, nowMs = Date.now(), cipher?: RecordCipher, key = KEY) => readSnapshot(path, owner, { cipher, key }, DAY_MS, nowMs, logger)
const INSTANCES: Assembled[] = Array.from({ length: 200 }, (_, i) => ({
  instance: parsed(generateRecord(i + 1)), digest: `digest ${String(i)}`, userData: [undefined, Buffer.alloc(0), Buffer.from([0, 10, 255, 10])][i % 3],
}))

function aWriter(parts: Partial<SnapshotParts> = {}) {
  return new SnapshotWriter({
    path, owner: OWNER, keys: { cipher: undefined, key: KEY }, asOfMs: Date.now(), wasRead: false, instances: () => INSTANCES,
    writes: { inc: ({ result }) => { writes[result] += 1 } }, log: logger, ...parts,
  })
}

/** A busy disk takes a second for two fsyncs. */
const eventually = (check: () => void) => vi.waitFor(check, { timeout: 20_000 })

async function written(cipher?: RecordCipher): Promise<void> {
  const writer = aWriter({ keys: { cipher, key: KEY } })
  writer.changed()
  await writer.stop()
}

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'imds-snapshot-'))
  path = snapshotPath(directory)
  log = []
  Object.assign(writes, { written: 0, failed: 0 })
})
afterEach(() => { rmSync(directory, { recursive: true }) })

test('a snapshot is read back complete: records, digests and user-data byte for byte', async () => {
  await written()
  const snapshot = await read()
  expect(snapshot?.instances).toEqual(INSTANCES)
  expect(Object.isFrozen(snapshot?.instances[0]?.instance.interfaces)).toBe(true)
  expect(statSync(path).mode & 0o777).toBe(0o600)
  expect(readdirSync(directory)).toEqual(['view.snapshot'])
})

test('a missing file is no snapshot and is not logged', async () => {
  expect(await read()).toBeUndefined()
  expect(log).toEqual([])
})

/** Everything that is left of a rejected snapshot is its line in the log. */
function expectDeleted(): void {
  expect(log).toHaveLength(1)
  expect(log[0]!.msg).toBe('the snapshot was rejected and deleted; guests get 503 until the store answers')
  expect(readdirSync(directory)).toEqual([])
}

describe('a rejected snapshot is not served and is deleted, since it may hold user-data', () => {
  const cut = (share: number) => { writeFileSync(path, readFileSync(path).subarray(0, readFileSync(path).length * share)) }
  const flip = (at: number) => {
    const bytes = readFileSync(path)
    bytes[Math.floor(bytes.length * at)]! ^= 1
    writeFileSync(path, bytes)
  }
  test.each<[string, () => void, RegExp]>([
    ['cut in the middle', () => { cut(0.5) }, /torn/],
    ['cut before its last byte', () => { writeFileSync(path, readFileSync(path).subarray(0, -1)) }, /torn/],
    ['longer than it was', () => { appendFileSync(path, '{}\n') }, /torn/],
    ['empty', () => { writeFileSync(path, '') }, /torn/],
    ['one bit changed in a record', () => { flip(0.4) }, /changed/],
    ['one bit changed in the header', () => { flip(0.00005) }, /changed/],
    ['random bytes', () => { writeFileSync(path, Buffer.from(Array.from({ length: 5000 }, (_, i) => (i * 7919) & 255))) }, /./],
    ['something else', () => { writeFileSync(path, 'hello\nS3CRET\n') }, /^it is torn or was changed$/],
    ['too old', () => { utimesSync(path, new Date(), new Date(Date.now() - DAY_MS - 1000)) }, /IMDS_SNAPSHOT_MAX_AGE_SECONDS/],
  ])('%s', async (_what, spoil, reason) => {
    await written()
    spoil()
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
  const forge = (change: (line: string, n: number) => string) => {
    const [header = '', one = '', , two = ''] = readFileSync(path, 'latin1').split('\n')
    const body = `${header}\n${[one, two].map((line, n) => `${change(line, n)}\n\n`).join('')}`
    writeFileSync(path, `${body}${JSON.stringify({ instances: 2, sha256: sha256(Buffer.from(body)) })}\n`)
  }
  const withLength = (length: (line: string) => string) => () => { forge((line) => line.replace(/"userDataBytes":.*/, `"userDataBytes":${length(line)}}`)) }

  test.each<[string, () => void]>([
    ['another number of instances', () => { writeFileSync(path, readFileSync(path, 'latin1').replace(/"instances":\d+/, '"instances":7'), 'latin1') }],
    ['a line that is no object', () => { forge(() => 'null') }],
    ['a last line that is no object', () => { writeFileSync(path, 'x\nnull\n') }],
    ['user-data of a negative length', withLength((line) => String(-line.replace(/"userDataBytes":.*/, '').length - '"userDataBytes":-0000}'.length - 2))],
    ['user-data that is longer than the file', withLength(() => '1e300')],
    ['user-data of half a byte', withLength(() => '0.5')],
    ['user-data whose length is text', withLength(() => '"0"')],
    ['user-data that reaches into the next record', withLength(() => '7')],
  ])('forged, its digest right, with %s', async (_what, spoil) => {
    await written()
    spoil()
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
    writeFileSync(path, `${body}${JSON.stringify({ instances: INSTANCES.length, sha256: sha256(Buffer.from(body, 'latin1')) })}\n`, 'latin1')
    expect(await read()).toBeUndefined()
    expect(log[0]!.reason).toBe('it has another format')
    expectDeleted()
  })

  test.each<[string, typeof OWNER]>([
    ['region', { ...OWNER, region: 'gb2' }], ['hypervisor', { ...OWNER, hypervisor: 'hv2' }], ['store', { ...OWNER, store: 'file:/x' }],
  ])('of another %s', async (key, owner) => {
    await written()
    expect(await read(owner)).toBeUndefined()
    expect(log[0]!.reason).toContain(key)
    expectDeleted()
  })
})

test('leftovers of an older version or a crash beside the snapshot are deleted at the start', async () => {
  await written()
  for (const left of ['rejected', 'tmp']) writeFileSync(`${path}.${left}`, 'S3CRET')
  expect((await read())?.instances).toHaveLength(INSTANCES.length)
  expect(readdirSync(directory)).toEqual(['view.snapshot'])
  rmSync(path)
  writeFileSync(`${path}.rejected`, 'S3CRET')
  expect(await read()).toBeUndefined()
  expect(readdirSync(directory)).toEqual([])
  expect(log).toEqual([])
})

test('a file that cannot be read stays until the writer replaces it', async () => {
  mkdirSync(path)
  expect(await read()).toBeUndefined()
  expect(log).toMatchObject([{ msg: 'the snapshot cannot be read; guests get 503 until the store answers' }])
  expect(existsSync(path)).toBe(true)
})

describe('invalid records in an otherwise good file', () => {
  const invalid = INSTANCES.slice(0, 2).map((assembled) => ({ ...assembled, instance: { ...assembled.instance, fqdn: 'no name' } }))
  const write = async () => {
    const writer = aWriter({ instances: () => invalid })
    writer.changed()
    await writer.stop()
  }
  test('are found if another daemon wrote it, or this one with another key', async () => {
    await write()
    expect(await read(OWNER, Date.now(), undefined, Buffer.alloc(32, 2))).toBeUndefined()
    expect(log.map(({ reason }) => reason)).toEqual(['it has an invalid record'])
  })
  test('are not checked for in a file that this daemon wrote', async () => {
    await write()
    expect((await read())?.instances).toEqual(invalid)
  })
  test('a file written with another key is accepted without digests: the first resync reads all again', async () => {
    await written()
    expect((await read(OWNER, Date.now(), undefined, Buffer.alloc(32, 2)))?.instances).toEqual(INSTANCES.map((assembled) => ({ ...assembled, digest: undefined })))
  })
})

/** Records and user-data, shorter and longer than the slices in which a file is read and written. */
function largeAndSmall(): Assembled[] {
  const sizes = [SLICE_BYTES - 3_000, SLICE_BYTES, 0, 3 * SLICE_BYTES + 17]
  const large = sizes.map((size, i): Assembled => ({ instance: INSTANCES[i]!.instance, digest: `large ${String(i)}`, userData: Buffer.alloc(size, `x${String(i)}\n{}\n`) }))
  return [...INSTANCES, ...large, ...INSTANCES, ...INSTANCES, ...INSTANCES]
}

describe.each([['plain', undefined], ['encrypted', aCipher('gb1', 'k1')]])('a large snapshot, %s', (_how, cipher) => {
  const write = async (instances: readonly Assembled[]) => {
    const writer = aWriter({ keys: { cipher, key: KEY }, instances: () => instances })
    writer.changed()
    await writer.stop()
  }
  test('is read back complete', async () => {
    await write(largeAndSmall())
    expect(isDeepStrictEqual((await read(OWNER, Date.now(), cipher))?.instances, largeAndSmall())).toBe(true)
  })
  test('is read back complete, wherever a slice ends: in user-data, at its LF or in a line', async () => {
    const of = (...bytes: readonly number[]): Assembled[] => bytes.map((length) => ({ ...INSTANCES[0]!, userData: Buffer.alloc(length, 'x') }))
    const beforeUserData = JSON.stringify({ imds: 'snapshot', format: 1, ...OWNER }).length + Buffer.byteLength(JSON.stringify({ instance: INSTANCES[0]!.instance, digest: INSTANCES[0]!.digest, userDataBytes: SLICE_BYTES })) + 2
    const first = [-1, 0, 1, 2, 3, 50, 5_000].map((more) => SLICE_BYTES - beforeUserData - more)
    for (const instances of [...first.map((bytes) => of(bytes)), ...first.map((bytes) => of(bytes, 2 * SLICE_BYTES, 1))]) {
      await write(instances)
      expect(isDeepStrictEqual((await read(OWNER, Date.now(), cipher))?.instances, instances)).toBe(true)
    }
    expect(log).toEqual([])
  })
  test('is written in slices: no turn of the event loop hashes or encrypts more than two', async () => {
    const { hashed, ciphered } = await mostBytesPerTurn(() => write([...largeAndSmall(), { ...INSTANCES[0]!, userData: Buffer.alloc(40 * SLICE_BYTES, 7) }]))
    expect(hashed).toBeGreaterThan(0)
    expect(Math.max(hashed, ciphered)).toBeLessThanOrEqual(2 * SLICE_BYTES)
  })
})

test('a write contains the view at that moment: no former state is kept in memory for it', async () => {
  const view = new Map(INSTANCES.map((assembled) => [assembled.instance.id, assembled]))
  const last = INSTANCES.at(-1)!
  const writer = aWriter({ instances: function* () {
    setImmediate(() => { view.set(last.instance.id, { ...last, digest: 'changed meanwhile' }) })
    yield { ...INSTANCES[0]!, userData: Buffer.alloc(4 * SLICE_BYTES) }
    yield* view.values()
  } })
  writer.changed()
  await writer.stop()
  expect((await read())?.instances.at(-1)?.digest).toBe('changed meanwhile')
})

describe('with keys', () => {
  const keys = aCipher('gb1', 'k1')
  test('the file is one encrypted value, which is read back complete', async () => {
    await written(keys)
    expect(readFileSync(path).subarray(0, 11).toString()).toBe('imds1 k1 0\n')
    expect(readFileSync(path, 'latin1')).not.toMatch(/srv-|snapshot|sha256/)
    expect(await read(OWNER, Date.now(), keys)).toMatchObject({ instances: INSTANCES, isCurrent: true })
    expect((await read(OWNER, Date.now(), aCipher('gb1', 'k2', 'k1')))?.instances).toEqual(INSTANCES)
    expect(log).toEqual([])
  })
  test('a plain file of this hypervisor is served without digests: every record is read again', async () => {
    await written()
    expect(await read(OWNER, Date.now(), keys)).toMatchObject({ instances: INSTANCES.map((one) => ({ ...one, digest: undefined })), isCurrent: false })
    expect(log).toEqual([])
    expect(await read()).toMatchObject({ isCurrent: true })
  })
  test('a plain file of another hypervisor is rejected and deleted', async () => {
    await written()
    expect(await read(OWNER, Date.now(), keys, Buffer.alloc(32, 2))).toBeUndefined()
    expect(log[0]!.reason).toBe('it is not encrypted, and this hypervisor did not write it')
    expectDeleted()
  })
  test('an encrypted file that is authentic but not a snapshot is rejected and deleted', async () => {
    writeFileSync(path, keys.encrypt('snapshot', 'hv1', 0, Buffer.from(`hello\n${'x'.repeat(3 * SLICE_BYTES)}`)))
    expect(await read(OWNER, Date.now(), keys)).toBeUndefined()
    expect(log[0]!.reason).toMatch(/torn/)
    expectDeleted()
  })
  test('an encrypted file that is too old is rejected and deleted', async () => {
    await written(keys)
    utimesSync(path, new Date(), new Date(Date.now() - DAY_MS - 1000))
    expect(await read(OWNER, Date.now())).toBeUndefined()
    expectDeleted()
  })

  const other = new RecordCipher([{ name: 'k1', key: createSecretKey(Buffer.alloc(32, 99)) }], 'gb1')
  test.each<[string, RecordCipher | undefined, RegExp, object?]>([
    ['without keys', undefined, /^it is encrypted, and there are no keys/],
    ['with another key', aCipher('gb1', 'k2'), /^it was encrypted with a key that is not configured here: k1$/],
    ['with another key of the same name', other, /^it is not authentic/],
    ['by another hypervisor', keys, /^it is not authentic/, { ...OWNER, hypervisor: 'hv2' }],
    ['in another region', aCipher('gb2', 'k1'), /^it is not authentic/],
  ])('an encrypted file that is read %s is not served and stays, so that the right key can read it', async (_what, reading, reason, owner = OWNER) => {
    await written(keys)
    for (const start of [1, 2]) {
      expect(await read(owner as typeof OWNER, Date.now(), reading)).toBeUndefined()
      expect(log).toHaveLength(start)
      expect(log.at(-1)!.reason).toMatch(reason)
      expect(log.at(-1)!.msg).toBe('the snapshot cannot be decrypted; it stays where it is, and guests get 503 until the store answers')
    }
    expect((await read(OWNER, Date.now(), keys))?.instances).toEqual(INSTANCES)
  })
  test('an encrypted file that is torn is not served', async () => {
    await written(keys)
    writeFileSync(path, readFileSync(path).subarray(0, -1))
    expect(await read(OWNER, Date.now(), keys)).toBeUndefined()
    expect(log[0]!.reason).toMatch(/not authentic/)
  })
})

test('its age counts from the last sync with the store; a clock that was set back makes it negative', async () => {
  await written()
  const twoHoursAgo = new Date(Date.now() - 7_200_000)
  utimesSync(path, twoHoursAgo, twoHoursAgo)
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
  expect((await read(OWNER, Date.now() - DAY_MS))?.ageMs).toBeCloseTo(7_200_000 - DAY_MS, -4)
})

test.each(['read', 'written'])('a confirmation without changes renews the time of a file that was %s, without rewriting it', async (how) => {
  await written()
  const writer = aWriter({ wasRead: how === 'read' })
  if (how === 'written') {
    writer.changed()
    await eventually(() => { expect(writes.written).toBe(2) })
  }
  const { ino } = statSync(path)
  utimesSync(path, new Date(0), new Date(0))
  writer.confirmed()
  await eventually(() => { expect(Date.now() - statSync(path).mtimeMs).toBeLessThan(60_000) })
  const { written: writesBefore } = writes
  await writer.stop()
  expect(statSync(path).ino).toBe(ino)
  expect(writes.written).toBe(writesBefore)
})

test('a file that was deleted is written again', async () => {
  const writer = aWriter({ wasRead: true })
  writer.confirmed()
  await eventually(() => { expect(existsSync(path)).toBe(true) })
  await writer.stop()
})

test('a file that could not be read is replaced by a view with instances, not by an empty one', async () => {
  writeFileSync(path, 'of another key')
  let instances: Assembled[] = []
  const writer = aWriter({ instances: () => instances })
  writer.confirmed()
  await writer.stop()
  expect(readFileSync(path, 'utf8')).toBe('of another key')
  instances = INSTANCES
  writer.confirmed()
  await writer.stop()
  expect((await read())?.instances).toEqual(INSTANCES)
})

test('many changes at once are one write, and a change during a write is not lost', async () => {
  let instances = INSTANCES.slice(0, 1)
  const writer = aWriter({ instances: () => instances })
  for (let i = 0; i < 1000; i++) writer.changed()
  await eventually(() => { expect(writes.written).toBe(1) })
  instances = INSTANCES.slice(0, 2)
  writer.changed()
  await writer.stop()
  expect((await read())?.instances).toHaveLength(2)
  expect(writes.written).toBe(2)
})

test('a change during a write is written by a second write', async () => {
  let calls = 0
  const writer = aWriter({
    instances: () => {
      calls += 1
      if (calls === 1) writer.changed()
      return INSTANCES.slice(0, calls)
    },
  })
  writer.changed()
  await eventually(() => { expect(writes.written).toBe(2) })
  expect((await read())?.instances).toHaveLength(2)
  await writer.stop()
  expect(writes.written).toBe(2)
})

test('a write that succeeds after a failure is logged once', async () => {
  let isFull = true
  const writer = aWriter({
    instances: () => {
      if (isFull) throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' })
      return INSTANCES
    },
  })
  writer.changed()
  await eventually(() => { expect(writes.failed).toBe(1) })
  isFull = false
  await writer.stop()
  writer.changed()
  await writer.stop()
  expect(writes).toEqual({ written: 2, failed: 1 })
  expect(log.filter(({ msg }) => msg === 'the snapshot can be written again')).toHaveLength(1)
  expect((await read())?.instances).toHaveLength(INSTANCES.length)
})

test('a failed write is logged once, counted, and leaves the last good file in place', async () => {
  await written()
  const before = readFileSync(path)
  const writer = aWriter({ instances: () => { throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' }) } })
  writer.changed()
  await eventually(() => { expect(writes.failed).toBe(1) })
  await writer.stop()
  expect(writes.failed).toBe(2)
  expect(log.filter(({ msg }) => msg.startsWith('the snapshot cannot be written'))).toHaveLength(1)
  expect(readFileSync(path).equals(before)).toBe(true)
  expect(readdirSync(directory)).toEqual(['view.snapshot'])
})

test('a file that lacks changes after a failed write does not get the time of a sync', async () => {
  await written()
  utimesSync(path, new Date(0), new Date(0))
  const writer = aWriter({ wasRead: true, instances: () => { throw new Error('no space left on device') } })
  writer.changed()
  await eventually(() => { expect(writes.failed).toBe(1) })
  writer.confirmed()
  await writer.stop()
  expect(statSync(path).mtimeMs).toBe(0)
})

test('a write keeps the time of the last sync with the store', async () => {
  const writer = aWriter({ asOfMs: Date.now() - 7_200_000 })
  writer.changed()
  await writer.stop()
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
})

test('a confirmation during a write does not date the file, which may lack later changes', async () => {
  const writer = aWriter({ asOfMs: Date.now() - 7_200_000, instances: () => {
    writer.confirmed()
    return INSTANCES
  } })
  writer.changed()
  await writer.stop()
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
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
  expect(parts.length).toBeLessThanOrEqual(2 + Math.ceil(statSync(path).size / SLICE_BYTES) + 1)
})

test.each([['plain', undefined], ['encrypted', aCipher('gb1', 'k1')]])('the %s file and its time are flushed to disk before it takes its place, then the directory', async (_what, cipher) => {
  const flushed: { files: string[], bytes: number, mtimeMs: number }[] = []
  const sync = vi.spyOn(await fileHandles(), 'sync').mockImplementation(async function (this: FileHandle) {
    const { size, mtimeMs } = await this.stat()
    await this.datasync()
    flushed.push({ files: readdirSync(directory), bytes: size, mtimeMs })
  })
  const asOfMs = Date.now() - 7_200_000
  const writer = aWriter({ asOfMs, keys: { cipher, key: KEY } })
  writer.changed()
  await writer.stop().finally(() => { sync.mockRestore() })
  expect(flushed).toMatchObject([{ files: ['view.snapshot.tmp'], bytes: statSync(path).size, mtimeMs: asOfMs }, { files: ['view.snapshot'], bytes: statSync(directory).size }])
})
