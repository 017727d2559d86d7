/** A journal as a file: what was written is read back, or not at all. restore.test.ts has what a start makes of it. */
import { execFileSync } from 'node:child_process'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, test } from 'vitest'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
import { changesOf, encodeChange, type JournalChange } from '../../../../src/imdsd/journal/encoding.ts'
import { createJournal } from '../../../../src/imdsd/journal/journal-writer.ts'
import { readChanges } from '../../../../src/imdsd/journal/restore.ts'
import type { StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const cipher = aCipher('gb1', 'k1')
const PLAIN: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 1)] }
const KEYS: [string, StateKeys][] = [
  ['plain', PLAIN],
  ['encrypted', { cipher, macKeys: cipher.macKeys('hv1') }],
]
const put = (seed: number, userData?: Uint8Array): JournalChange => ({
  kind: 'replace',
  record: {
    instance: parsed(generateRecord(seed)),
    digest: `d${seed}`,
    order: 5,
    lost: [{ network: 'default', range: '10.0.0.2', order: 5 }],
    userData,
  },
})
const remove = (id: string): JournalChange => ({ kind: 'remove', id, order: 7 })
const compared: JournalChange = { kind: 'compared', atMs: 1_764_000_000_000, isComplete: true, floor: 3 }

let path: string
beforeEach(() => {
  path = join(temporaryDirectory(), 'view.journal')
})

const read = (keys: StateKeys, owner = OWNER) => readChanges(path, owner, keys)

describe.each(KEYS)('%s', (_how, keys) => {
  /** Writes a journal. Returns its length after the first changes, and after each further group. */
  const write = async (first: readonly JournalChange[], ...groups: (readonly JournalChange[])[]) => {
    const journal = await createJournal(DISK, path, { owner: OWNER, keys, changes: first, progress: () => undefined })
    const ends = [statSync(path).size]
    for (const group of groups) {
      await journal.append(group.flatMap(encodeChange))
      ends.push(statSync(path).size)
    }
    expect(journal.bytes).toBe(ends.at(-1))
    await journal.close()
    return ends
  }
  const ids = (changes: readonly JournalChange[]) =>
    changes.flatMap((change) => (change.kind === 'remove' ? [change.id] : []))
  /** What is read of other bytes; the reason if nothing is. */
  const readBytes = (bytes: Uint8Array) => {
    writeFileSync(path, bytes)
    return read(keys).then(
      ({ changes, lostBytes }) => ({ ids: ids(changes), lostBytes, reason: undefined }),
      (error: unknown) => ({ ids: [], lostBytes: 0, reason: (error as Error).message }),
    )
  }

  test('all changes are read back, byte for byte, from a file with mode 0600', async () => {
    const first = [
      remove('srv-x'),
      put(1),
      put(2, Buffer.alloc(0)),
      put(3, Buffer.alloc(3 * SLICE_BYTES, 10)),
      compared,
    ]
    const groups: JournalChange[][] = [
      [put(4, Buffer.from([0, 10, 255, 10, 123])), remove('srv-y')],
      [{ kind: 'unconfirmed', ranges: [{ network: 'default', range: '10.0.0.2' }] }],
    ]
    await write(first, ...groups)
    expect(await read(keys)).toEqual({ changes: [...first, ...groups.flat()], compared, lostBytes: 0 })
    expect(statSync(path).mode & 0o777).toBe(0o600)
  })

  const removals = [[remove('a')], [remove('b')], [remove('c')]]

  test('E3: with any bit flipped a journal is read as it was written, or not at all', async () => {
    const ends = await write([compared], ...removals)
    const whole = readFileSync(path)
    const flushed = new Set([40 + whole.readUInt32BE(), ...ends.map((at) => at - 1)]) // the first is the header's
    for (let bit = 0; bit < 8 * whole.length; bit += 7) {
      const bytes = Buffer.from(whole)
      bytes[bit >> 3]! ^= 1 << (bit & 7)
      const { ids: found, reason } = await readBytes(bytes)
      expect([bit, found, reason === undefined]).toEqual(
        flushed.has(bit >> 3) ? [bit, ['a', 'b', 'c'], true] : [bit, [], false],
      )
    }
  })

  test('E3: with frames exchanged, left out, repeated or overwritten a journal is not read', async () => {
    const ends = await write([compared], ...removals)
    const whole = readFileSync(path)
    const frame = (n: number) => whole.subarray(n === 0 ? 0 : ends[n - 1], ends[n])
    for (const [at, bytes] of [
      [0, [frame(0), frame(2), frame(1), frame(3)]],
      [1, [frame(0), frame(1), frame(3)]],
      [1, [frame(0), frame(1), frame(1)]],
      [1, [frame(0), frame(1), Buffer.alloc(frame(2).length), frame(3)]],
      [2, [frame(0), frame(1), frame(2), Buffer.alloc(frame(3).length, 7)]],
    ] as const)
      expect((await readBytes(Buffer.concat(bytes))).reason).toBe(`it is damaged at byte ${String(ends[at])}`)
  })

  test('a write that a kill or a power failure ended loses only itself, wherever that was', async () => {
    const ends = await write([compared], ...removals)
    const whole = readFileSync(path)
    const last = ends[2]!
    for (let cut = last; cut < whole.length - 1; cut++) {
      const torn = Buffer.from(whole)
      torn.fill(0, cut)
      const garbage = Buffer.concat([whole.subarray(0, cut), Buffer.alloc(whole.length - 1 - cut, 7)])
      for (const bytes of [
        whole.subarray(0, cut),
        torn.subarray(0, -1),
        torn.subarray(0, Math.min(cut + 50, whole.length - 1)),
        ...(cut < last + 8 ? [] : [garbage]),
      ])
        expect([cut, await readBytes(bytes)]).toEqual([
          cut,
          { ids: ['a', 'b'], lostBytes: bytes.length - last, reason: undefined },
        ])
    }
    // flushed, and killed before that was written down
    expect(await readBytes(whole.subarray(0, -1))).toMatchObject({ ids: ['a', 'b', 'c'], lostBytes: 0 })
    expect((await readBytes(Buffer.concat([whole, Buffer.alloc(4096)]))).ids).toEqual(['a', 'b', 'c'])
  })

  test('E3: a journal that is cut within the first view is not read', async () => {
    const [end = 0] = await write([put(1), put(2), compared])
    const whole = readFileSync(path)
    for (let cut = 0; cut < end - 1; cut += 13) expect((await readBytes(whole.subarray(0, cut))).reason).toBeDefined()
  })

  test('long user-data is authenticated and encrypted in slices: no turn handles more than a few', async () => {
    const long = Array.from({ length: 3 }, (_, n) => put(n + 1, Buffer.alloc(20 * SLICE_BYTES, 7)))
    const { hashed, ciphered } = await mostBytesPerTurn(() => write([...long, compared], long))
    expect(Math.max(hashed, ciphered)).toBeLessThanOrEqual(5 * SLICE_BYTES)
  })
})

test.each<[string, StateKeys, StateKeys, typeof OWNER, RegExp]>([
  ['another token key', PLAIN, { ...PLAIN, macKeys: [Buffer.alloc(32, 2)] }, OWNER, /or was written with another key/],
  ['record keys, and is plain', PLAIN, KEYS[1]![1], OWNER, /^it is not encrypted, and there are record keys/],
  ['no record keys, and is encrypted', KEYS[1]![1], PLAIN, OWNER, /^it is encrypted, and there are no keys/],
  ['another hypervisor, encrypted', KEYS[1]![1], KEYS[1]![1], { ...OWNER, hypervisor: 'hv2' }, /^it is not authentic/],
  ['another region', PLAIN, PLAIN, { ...OWNER, region: 'gb2' }, /^its region is "gb1", not "gb2"$/],
  ['another hypervisor', PLAIN, PLAIN, { ...OWNER, hypervisor: 'hv2' }, /^its hypervisor is "hv1", not "hv2"$/],
  ['another store', PLAIN, PLAIN, { ...OWNER, store: 'file:/x' }, /^its store is "redis", not "file:\/x"$/],
])('a journal is not read with %s', async (_what, writing, reading, owner, reason) => {
  const content = { owner: OWNER, keys: writing, changes: [compared], progress: () => undefined }
  await (await createJournal(DISK, path, content)).close()
  await expect(read(reading, owner)).rejects.toThrow(reason)
})

test('a journal names the record key that is missing', async () => {
  const [, keys] = KEYS[1]!
  const content = { owner: OWNER, keys, changes: [compared], progress: () => undefined }
  await (await createJournal(DISK, path, content)).close()
  const other = aCipher('gb1', 'k2')
  await expect(read({ cipher: other, macKeys: other.macKeys('hv1') })).rejects.toThrow(/not configured here: k1$/)
})

test('a frame without a line feed, or with a length of user-data that cannot be, is rejected', () => {
  const line = (userDataBytes: unknown) => `${JSON.stringify({ instance: {}, digest: '', userDataBytes })}\n`
  const read = (frame: string) => [...changesOf(Buffer.from(frame), (record) => record)]
  for (const frame of [
    '{"removed":"srv-a"}',
    'null\n',
    '{}\n',
    ...[-1, -40, 1.5, '3', 10, 1e300].map(line),
    `${line(3)}abcd`,
  ])
    expect(() => read(frame)).toThrow('it was changed, or written by another version')
  expect(read(`${line(3)}abc\n${line(null)}\n`)).toHaveLength(2)
})

test('a FIFO in place of a journal does not hold up its reader', async () => {
  execFileSync('mkfifo', [path])
  await expect(read(PLAIN)).rejects.toThrow('it is a FIFO, not a regular file')
})
