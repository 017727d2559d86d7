/** The file of a journal. persistence.test.ts has what a start makes of it. */
import { execFileSync } from 'node:child_process'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import { beforeEach, describe, expect, test } from 'vitest'
import { SLICE_BYTES } from '../../../../src/limits/turn-budget.ts'
import type { ViewChange } from '../../../../src/imdsd/view/change.ts'
import { changesOf, encodeChange } from '../../../../src/imdsd/journal/encoding.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
import { lengthBytes, readJournal } from '../../../../src/imdsd/journal/journal.ts'
import { createJournal } from '../../../../src/imdsd/journal/journal-writer.ts'
import type { StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { mostBytesPerTurn } from '../../../support/fixtures/bytes-per-turn.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const cipher = aCipher('gb1', 'k1')
const KEYS: [string, StateKeys][] = [
  ['plain', { cipher: undefined, macKeys: [Buffer.alloc(32, 1)] }],
  ['encrypted', { cipher, macKeys: cipher.macKeys('hv1') }],
]
const put = (seed: number, userData?: Uint8Array): ViewChange => ({
  kind: 'replace',
  record: {
    instance: parsed(generateRecord(seed)),
    digest: `d${seed}`,
    order: 5,
    lost: [{ network: 'default', range: '10.0.0.2', order: 5 }],
    userData,
  },
})

const isWanted = () => true
/** A journal with all of its groups. */
const read = (path: string, hypervisor: string, keys: StateKeys) =>
  readJournal(path, hypervisor, keys, ({ header, start, groups, end }) =>
    Promise.resolve({ header, start, groups: [...groups], end: end() }),
  )

let directory: string
let path: string
beforeEach(() => {
  directory = temporaryDirectory()
  path = join(directory, 'view.journal.1')
})

describe.each(KEYS)('%s', (_how, keys) => {
  const write = async (groups: readonly (readonly ViewChange[])[], after?: string) => {
    const journal = await createJournal(DISK, path, { owner: OWNER, keys, generation: 1, after, isWanted })
    const ends = [statSync(path).size]
    for (const group of groups) {
      await journal.append(group.flatMap(encodeChange))
      ends.push(statSync(path).size)
    }
    expect(journal.bytes).toBe(ends.at(-1))
    await journal.close()
    return { ends, end: journal.end, start: journal.start }
  }
  const changes = (payloads: readonly Buffer[]) =>
    payloads.map((payload) =>
      [...changesOf(payload)].map((change) =>
        change.kind !== 'replace'
          ? change
          : {
              kind: 'replace',
              record: {
                instance: change.document,
                digest: change.digest,
                order: change.order,
                lost: change.lost,
                userData: change.userData,
              },
            },
      ),
    )

  test('groups of changes are read back complete, with their links and mode 0600', async () => {
    const groups = [
      [put(1), put(2, Buffer.alloc(0)), { kind: 'remove', id: 'srv-x', order: 7 } as const],
      [put(3, Buffer.from([0, 10, 255, 10, 123]))],
      [{ kind: 'unconfirmed', ranges: [{ network: 'default', range: '10.0.0.2' }] } as const],
      [put(4, Buffer.alloc(3 * SLICE_BYTES, 10))],
    ]
    const { start, end } = await write(groups, 'the journal before')
    const journal = await read(path, 'hv1', keys)
    expect(changes(journal.groups)).toEqual(groups)
    expect(journal).toMatchObject({
      start,
      end: { mac: end, bytes: statSync(path).size, lostBytes: 0 },
      header: { ...OWNER, generation: 1, after: 'the journal before' },
    })
    expect(statSync(path).mode & 0o777).toBe(0o600)
  })

  const removals = (...ids: string[]) => ids.map((id): ViewChange[] => [{ kind: 'remove', id, order: 1 }])
  const readBytes = async (bytes: Uint8Array) => {
    writeFileSync(path, bytes)
    return read(path, 'hv1', keys)
  }

  test('E3: with any bit flipped a journal is read as it was written, or not at all', async () => {
    const { ends, end } = await write(removals('a', 'b', 'c', 'd'))
    const whole = readFileSync(path)
    const flushed = new Set(ends.map((at) => at - 1))
    for (let bit = 0; bit < 8 * whole.length; bit += bit < 8 * ends[0]! ? 29 : 7) {
      const bytes = Buffer.from(whole)
      bytes[bit >> 3]! ^= 1 << (bit & 7)
      const mac = await readBytes(bytes).then(
        (journal) => journal.end.mac,
        (error: unknown) =>
          (error as Error).message.replace(/^its journal is (damaged at byte|torn, or was written) .*/, 'refused'),
      )
      expect([bit, mac]).toEqual([bit, flushed.has(bit >> 3) ? end : 'refused'])
    }
  })

  test('E3: with frames exchanged, left out, repeated or overwritten a journal is not read', async () => {
    const { ends } = await write([[put(1)], [put(2)], [put(3)]])
    const whole = readFileSync(path)
    const frame = (n: number) => whole.subarray(n === 0 ? 0 : ends[n - 1], ends[n])
    for (const [at, bytes] of [
      [0, [frame(0), frame(2), frame(1), frame(3)]],
      [1, [frame(0), frame(1), frame(3)]],
      [1, [frame(0), frame(1), frame(1)]],
      [1, [frame(0), frame(1), Buffer.alloc(frame(2).length), frame(3)]],
      [2, [frame(0), frame(1), frame(2), Buffer.alloc(frame(3).length, 7)]],
    ] as const)
      await expect(readBytes(Buffer.concat(bytes))).rejects.toThrow(
        `its journal is damaged at byte ${String(ends[at])}`,
      )
  })

  test('a write that a kill or a power failure ended loses only itself, wherever that was', async () => {
    const { ends } = await write(removals('a', 'b', 'c'))
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
      ]) {
        const { groups, end } = await readBytes(bytes)
        expect([cut, groups.length, end.bytes, end.lostBytes]).toEqual([cut, 2, last, bytes.length - last])
      }
    }
    // flushed, and killed before that was written down
    expect((await readBytes(whole.subarray(0, -1))).end.lostBytes).toBe(0)
    expect((await readBytes(Buffer.concat([whole, Buffer.alloc(4096)]))).groups).toHaveLength(3)
  })

  test('a journal that is cut anywhere else is read up to the last whole frame', async () => {
    const { ends } = await write(removals('a', 'b', 'c'))
    const whole = readFileSync(path)
    for (let cut = ends[0]!; cut < whole.length; cut++) {
      const { groups } = await readBytes(whole.subarray(0, cut))
      expect([cut, groups.length]).toEqual([cut, ends.filter((end) => end <= cut + 1).length - 1])
    }
  })

  test('long user-data is authenticated and encrypted in slices: no turn handles more than a few', async () => {
    const journal = await createJournal(DISK, path, {
      owner: OWNER,
      keys,
      generation: 1,
      after: undefined,
      isWanted,
    })
    const { hashed, ciphered } = await mostBytesPerTurn(() =>
      journal.append(encodeChange(put(1, Buffer.alloc(40 * SLICE_BYTES, 7)))),
    )
    await journal.close()
    expect(Math.max(hashed, ciphered)).toBeLessThanOrEqual(5 * SLICE_BYTES)
  })
})

test('a frame begins with its length and the CRC-32 of that, as the journals of earlier versions do', () => {
  for (const length of [0, 1, 255, 65_536, 2 ** 31, 2 ** 32 - 1]) {
    const expected = Buffer.alloc(8)
    expected.writeUInt32BE(length)
    expected.writeUInt32BE(crc32(expected.subarray(0, 4)), 4)
    expect(lengthBytes(length)).toEqual(expected)
  }
})

test('a journal under another key, of another hypervisor or encrypted with another key is not read', async () => {
  const [[, plain], [, encrypted]] = KEYS as [(typeof KEYS)[number], (typeof KEYS)[number]]
  await (
    await createJournal(DISK, path, { owner: OWNER, keys: plain, generation: 1, after: undefined, isWanted })
  ).close()
  await expect(read(path, 'hv1', { cipher: undefined, macKeys: [Buffer.alloc(32, 2)] })).rejects.toThrow(
    /another key of this hypervisor/,
  )
  await expect(read(path, 'hv1', encrypted)).rejects.toThrow(/another key of this hypervisor/)
  await (
    await createJournal(DISK, path, { owner: OWNER, keys: encrypted, generation: 1, after: undefined, isWanted })
  ).close()
  await expect(read(path, 'hv2', encrypted)).rejects.toThrow(/is not authentic/)
  await expect(read(path, 'hv1', { cipher: aCipher('gb1', 'k2'), macKeys: encrypted.macKeys })).rejects.toThrow(
    /not configured here: k1/,
  )
})

test('a group without a line feed, or with a length of user-data that cannot be, is rejected', () => {
  const line = (userDataBytes: unknown) => `${JSON.stringify({ instance: {}, digest: '', userDataBytes })}\n`
  for (const group of ['{"removed":"srv-a"}', line(-1), line(-40), line(1.5), line('3'), line(10), `${line(3)}abcd`]) {
    expect(() => [...changesOf(Buffer.from(group))]).toThrow('it is torn or was changed')
  }
  expect([...changesOf(Buffer.from(`${line(3)}abc\n${line(null)}\n`))]).toHaveLength(2)
})

test('a FIFO in place of a journal does not hold up its reader', async () => {
  execFileSync('mkfifo', [path])
  await expect(read(path, 'hv1', KEYS[0]![1])).rejects.toThrow('it is a FIFO, not a regular file')
})
