/** The file of a journal. persistence.test.ts has what a start makes of it. */
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { SLICE_BYTES } from '../../../src/runtime/turn-budget.ts'
import { encodeChange, type Change } from '../../../src/view/change.ts'
import { DISK } from '../../../src/view/disk.ts'
import { changesOf, readJournal } from '../../../src/view/journal.ts'
import { JournalWriter } from '../../../src/view/journal-writer.ts'
import type { StateKeys } from '../../../src/view/state-files.ts'
import { mostBytesPerTurn } from '../../support/fixtures/bytes-per-turn.ts'
import { generateRecord } from '../../support/fixtures/generated-records.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { aCipher } from '../../support/fixtures/record-keys.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const cipher = aCipher('gb1', 'k1')
const KEYS: [string, StateKeys][] = [
  ['plain', { cipher: undefined, macKeys: [Buffer.alloc(32, 1)] }],
  ['encrypted', { cipher, macKeys: cipher.macKeys('hv1') }],
]
const put = (seed: number, userData?: Uint8Array): Change => ({
  kind: 'replace',
  record: { instance: parsed(generateRecord(seed)), digest: `d${String(seed)}`, userData },
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
  directory = mkdtempSync(join(tmpdir(), 'imds-journal-'))
  path = join(directory, 'view.journal.1')
})
afterEach(() => {
  rmSync(directory, { recursive: true })
})

describe.each(KEYS)('%s', (_how, keys) => {
  const write = async (groups: readonly (readonly Change[])[], after?: string) => {
    const journal = await JournalWriter.create(DISK, path, { owner: OWNER, keys, generation: 1, after, isWanted })
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
        change.kind === 'remove'
          ? change
          : {
              kind: 'replace',
              record: { instance: change.document, digest: change.digest, userData: change.userData },
            },
      ),
    )

  test('groups of changes are read back complete, with their links and mode 0600', async () => {
    const groups = [
      [put(1), put(2, Buffer.alloc(0)), { kind: 'remove', id: 'srv-x' } as const],
      [put(3, Buffer.from([0, 10, 255, 10, 123]))],
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

  test('frames that are cut, changed, exchanged, left out or repeated end it before them', async () => {
    const { ends } = await write([[put(1)], [put(2)], [put(3)]])
    const whole = readFileSync(path)
    const frame = (n: number) => whole.subarray(n === 0 ? 0 : ends[n - 1], ends[n])
    const flipped = Buffer.from(whole)
    flipped[ends[1]! + 50]! ^= 1
    for (const [bytes, groups] of [
      [whole.subarray(0, ends[2]! + 10), 2],
      [whole.subarray(0, -1), 2],
      [flipped, 1],
      [Buffer.concat([frame(0), frame(2), frame(1), frame(3)]), 0],
      [Buffer.concat([frame(0), frame(1), frame(3)]), 1],
      [Buffer.concat([frame(0), frame(1), frame(1)]), 1],
      [Buffer.concat([whole, Buffer.alloc(100)]), 3],
    ] as const) {
      writeFileSync(path, bytes)
      const journal = await read(path, 'hv1', keys)
      expect([journal.groups.length, journal.end.lostBytes > 0]).toEqual([groups, true])
    }
  })

  test('long user-data is authenticated and encrypted in slices: no turn handles more than a few', async () => {
    const journal = await JournalWriter.create(DISK, path, {
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

test('a journal under another key, of another hypervisor or encrypted with another key is not read', async () => {
  const [[, plain], [, encrypted]] = KEYS as [(typeof KEYS)[number], (typeof KEYS)[number]]
  await (
    await JournalWriter.create(DISK, path, { owner: OWNER, keys: plain, generation: 1, after: undefined, isWanted })
  ).close()
  await expect(read(path, 'hv1', { cipher: undefined, macKeys: [Buffer.alloc(32, 2)] })).rejects.toThrow(
    /another key of this hypervisor/,
  )
  await expect(read(path, 'hv1', encrypted)).rejects.toThrow(/another key of this hypervisor/)
  await (
    await JournalWriter.create(DISK, path, { owner: OWNER, keys: encrypted, generation: 1, after: undefined, isWanted })
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
