import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { sha256, type Assembled } from '../../../src/store/assemble.ts'
import { readSnapshot, snapshotPath, SnapshotWriter } from '../../../src/store/snapshot.ts'
import type { Trust } from '../../../src/store/trust.ts'
import { generateRecord } from '../../support/generate.ts'
import { parsed } from '../../support/guest.ts'
import { aTrust } from '../../support/record-keys.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const DAY_MS = 86_400_000

let directory: string
let path: string
let log: { msg: string, reason?: string }[]
const logger = pino({}, { write: (line: string) => { log.push(JSON.parse(line) as { msg: string }) } })
const writes = { written: 0, failed: 0 }
const KEY = Buffer.alloc(32, 1)
const read = (owner = OWNER, nowMs = Date.now(), trust: Trust | null = null, key = KEY) => readSnapshot(path, owner, { trust, key }, DAY_MS, nowMs, logger)
const INSTANCES: Assembled[] = Array.from({ length: 200 }, (_, i) => ({
  instance: parsed(generateRecord(i + 1)), digest: `digest ${String(i)}`, userData: [null, Buffer.alloc(0), Buffer.from([0, 10, 255, 10])][i % 3]!,
}))

function aWriter(instances: () => Iterable<Assembled> = () => INSTANCES, trust: Trust | null = null) {
  return new SnapshotWriter({ path, owner: OWNER, keys: { trust, key: KEY }, asOfMs: Date.now(), instances, writes: { inc: ({ result }) => { writes[result] += 1 } }, log: logger })
}

/** A busy disk takes a second for two fsyncs. */
const eventually = (check: () => void) => vi.waitFor(check, { timeout: 20_000 })

async function written(trust: Trust | null = null): Promise<void> {
  const writer = aWriter(undefined, trust)
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

test('what was written is read back whole: records, digests and user-data byte for byte', async () => {
  await written()
  const snapshot = await read()
  expect(snapshot?.instances).toEqual(INSTANCES)
  expect(Object.isFrozen(snapshot?.instances[0]?.instance.interfaces)).toBe(true)
  expect(statSync(path).mode & 0o777).toBe(0o600)
  expect(readdirSync(directory)).toEqual(['view.snapshot'])
})

test('no file is no snapshot, without a word', async () => {
  expect(await read()).toBeUndefined()
  expect(log).toEqual([])
})

describe('a file that cannot be trusted is set aside with one line and never served', () => {
  const cut = (share: number) => { writeFileSync(path, readFileSync(path).subarray(0, readFileSync(path).length * share)) }
  const flip = (at: number) => {
    const bytes = readFileSync(path)
    bytes[Math.floor(bytes.length * at)]! ^= 1
    writeFileSync(path, bytes)
  }
  test.each<[string, () => void, RegExp]>([
    ['cut in the middle', () => { cut(0.5) }, /torn/],
    ['cut before its last byte', () => { writeFileSync(path, readFileSync(path).subarray(0, -1)) }, /torn/],
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
    expect(log).toHaveLength(1)
    expect(log[0]!.reason).toMatch(reason)
    expect(existsSync(path)).toBe(false)
    expect(existsSync(`${path}.rejected`)).toBe(true)
    expect(await read()).toBeUndefined()
    expect(log).toHaveLength(1)
  })

  /** The first two records of a good file with their lines changed, and a last line whose digest fits. */
  const forge = (change: (line: string, n: number) => string) => {
    const [header = '', one = '', , two = ''] = readFileSync(path, 'latin1').split('\n')
    const body = `${header}\n${[one, two].map((line, n) => `${change(line, n)}\n\n`).join('')}`
    writeFileSync(path, `${body}${JSON.stringify({ instances: 2, sha256: sha256(Buffer.from(body)) })}\n`)
  }
  const saysLength = (length: (line: string) => string) => () => { forge((line) => line.replace(/"userDataBytes":.*/, `"userDataBytes":${length(line)}}`)) }

  test.each<[string, () => void]>([
    ['a line that is no object', () => { forge(() => 'null') }],
    ['a last line that is no object', () => { writeFileSync(path, 'x\nnull\n') }],
    ['user-data whose length leads back', saysLength((line) => String(-line.replace(/"userDataBytes":.*/, '').length - '"userDataBytes":-0000}'.length - 2))],
    ['user-data whose length leads out of the file', saysLength(() => '1e300')],
    ['user-data whose length is no whole number', saysLength(() => '0.5')],
    ['user-data whose length is no number', saysLength(() => '"0"')],
    ['user-data whose length leads into the next record', saysLength(() => '7')],
  ])('forged, its digest right, with %s', async (_what, spoil) => {
    await written()
    spoil()
    expect(await read()).toBeUndefined()
    expect(log.map(({ reason }) => reason)).toEqual(['it is torn or was changed'])
  })

  test.each<[string, typeof OWNER]>([
    ['region', { ...OWNER, region: 'gb2' }], ['hypervisor', { ...OWNER, hypervisor: 'hv2' }], ['store', { ...OWNER, store: 'file:/x' }],
  ])('of another %s', async (key, owner) => {
    await written()
    expect(await read(owner)).toBeUndefined()
    expect(log[0]!.reason).toContain(key)
  })
})

describe('records that are not valid, in a file with nothing else wrong', () => {
  const invalid = INSTANCES.slice(0, 2).map((assembled) => ({ ...assembled, instance: { ...assembled.instance, fqdn: 'no name' } }))
  const write = async () => {
    const writer = aWriter(() => invalid)
    writer.changed()
    await writer.stop()
  }
  test('are found when another wrote it, or we with another key', async () => {
    await write()
    expect(await read(OWNER, Date.now(), null, Buffer.alloc(32, 2))).toBeUndefined()
    expect(log.map(({ reason }) => reason)).toEqual(['it holds a record that is not valid'])
  })
  test('are not looked for in what we wrote ourselves, which was found good before', async () => {
    await write()
    expect((await read())?.instances).toEqual(invalid)
  })
  test('and what we wrote is whole with another key too', async () => {
    await written()
    expect((await read(OWNER, Date.now(), null, Buffer.alloc(32, 2)))?.instances).toEqual(INSTANCES)
  })
})

describe('with keys', () => {
  const keys = aTrust('gb1', 'k1')
  test('the file is one encrypted value, which is read back whole', async () => {
    await written(keys)
    expect(readFileSync(path).subarray(0, 11).toString()).toBe('imds1 k1 0\n')
    expect(readFileSync(path, 'latin1')).not.toMatch(/srv-|snapshot|sha256/)
    expect((await read(OWNER, Date.now(), keys))?.instances).toEqual(INSTANCES)
    expect((await read(OWNER, Date.now(), aTrust('gb1', 'k2', 'k1')))?.instances).toEqual(INSTANCES)
    expect(log).toEqual([])
  })
  test.each<[string, Trust | null, Trust | null, RegExp, object?]>([
    ['without keys', keys, null, /^it is encrypted, and there are no keys/],
    ['with another key', keys, aTrust('gb1', 'k2'), /^it was encrypted with a key that is not among ours: k1$/],
    ['of another hypervisor', keys, keys, /^it is not authentic/, { ...OWNER, hypervisor: 'hv2' }],
    ['of another region', keys, aTrust('gb2', 'k1'), /^it is not authentic/],
    ['that is plain', null, keys, /^it is not encrypted/],
  ])('a file %s is set aside with one line and never served', async (_what, writing, reading, reason, owner = OWNER) => {
    await written(writing)
    expect(await read(owner as typeof OWNER, Date.now(), reading)).toBeUndefined()
    expect(log.map((line) => line.reason)).toEqual([expect.stringMatching(reason)])
    expect([existsSync(path), existsSync(`${path}.rejected`)]).toEqual([false, true])
  })
  test('a file that is torn or was changed is set aside', async () => {
    await written(keys)
    writeFileSync(path, readFileSync(path).subarray(0, -1))
    expect(await read(OWNER, Date.now(), keys)).toBeUndefined()
    expect(log[0]!.reason).toMatch(/not authentic/)
  })
})

test('its age is that of the last time the view was in step with the store; a clock that was set back makes it negative, not useless', async () => {
  await written()
  const twoHoursAgo = new Date(Date.now() - 7_200_000)
  utimesSync(path, twoHoursAgo, twoHoursAgo)
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
  expect((await read(OWNER, Date.now() - DAY_MS))?.ageMs).toBeCloseTo(7_200_000 - DAY_MS, -4)
})

test('a confirmation that nothing changed renews the time without writing the file anew', async () => {
  await written()
  const { ino } = statSync(path)
  utimesSync(path, new Date(0), new Date(0))
  const writer = aWriter()
  writer.confirmed()
  await eventually(() => { expect(Date.now() - statSync(path).mtimeMs).toBeLessThan(60_000) })
  expect(statSync(path).ino).toBe(ino)
  await writer.stop()
})

test('a file that was taken away is written again', async () => {
  const writer = aWriter()
  writer.confirmed()
  await eventually(() => { expect(existsSync(path)).toBe(true) })
  await writer.stop()
})

test('many changes at once are one write, and a change during a write is not forgotten', async () => {
  let instances = INSTANCES.slice(0, 1)
  const writer = aWriter(() => instances)
  for (let i = 0; i < 1000; i++) writer.changed()
  await eventually(() => { expect(writes.written).toBe(1) })
  instances = INSTANCES.slice(0, 2)
  writer.changed()
  await writer.stop()
  expect((await read())?.instances).toHaveLength(2)
  expect(writes.written).toBe(2)
})

test('a write that fails is told once, counted, and leaves the last good file in place', async () => {
  await written()
  const before = readFileSync(path)
  rmSync(`${path}.tmp`, { force: true })
  const writer = new SnapshotWriter({
    path, owner: OWNER, keys: { trust: null, key: KEY }, asOfMs: Date.now(), writes: { inc: ({ result }) => { writes[result] += 1 } }, log: logger,
    instances: () => { throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' }) },
  })
  writer.changed()
  await eventually(() => { expect(writes.failed).toBe(1) })
  await writer.stop()
  expect(writes.failed).toBe(2)
  expect(log.filter(({ msg }) => msg.startsWith('snapshot not written'))).toHaveLength(1)
  expect(readFileSync(path).equals(before)).toBe(true)
  chmodSync(directory, 0o700)
})

test('a write keeps the time at which the view was last in step with the store', async () => {
  const asOfMs = Date.now() - 7_200_000
  const writer = new SnapshotWriter({ path, owner: OWNER, keys: { trust: null, key: KEY }, asOfMs, instances: () => INSTANCES, writes: { inc: () => { /* not counted */ } }, log: logger })
  writer.changed()
  await writer.stop()
  expect((await read())?.ageMs).toBeCloseTo(7_200_000, -4)
})
