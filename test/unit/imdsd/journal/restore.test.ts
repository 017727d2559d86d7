/** Which journals a start serves, and what it does with the others. */
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { beforeEach, expect, test, vi } from 'vitest'
import { RECORD_FORM, rangesOf } from '../../../../src/metadata/instance.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
import type { JournalChange } from '../../../../src/imdsd/journal/encoding.ts'
import { createJournal } from '../../../../src/imdsd/journal/journal-writer.ts'
import { replay, restoreView } from '../../../../src/imdsd/journal/restore.ts'
import { snapshotOf } from '../../../../src/imdsd/journal/rewrite.ts'
import { StaleMark } from '../../../../src/imdsd/journal/stale-mark.ts'
import { lockState } from '../../../../src/imdsd/journal/state-lock.ts'
import { journalPath, type StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { resealed } from '../../../support/fixtures/resealed-journal.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const DAY_MS = 86_400_000
const KEYS: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 1)] }
const record: ValidRecord = {
  instance: parsed(generateRecord(1)),
  digest: 'd1',
  order: 5,
  lost: [],
  userData: Buffer.from('S3CRET'),
}

let directory: string
let path: string
let log: { msg: string; reason?: string }[]
beforeEach(() => {
  directory = temporaryDirectory()
  path = journalPath(directory)
  log = []
})

const read = (nowMs = Date.now(), disk = DISK) =>
  restoreView({
    disk,
    path,
    stale: new StaleMark(join(directory, 'operator.sock')),
    owner: OWNER,
    keys: KEYS,
    maxAgeMs: DAY_MS,
    nowMs,
    log: collectLog(() => log),
  })

/** Writes a journal. Returns its changes. */
async function write(instance = record.instance): Promise<readonly JournalChange[]> {
  return await writeChanges([
    { kind: 'replace', record: { ...record, instance } },
    { kind: 'compared', atMs: Date.now(), isComplete: true, floor: 0 },
  ])
}

async function writeChanges(changes: readonly JournalChange[]): Promise<readonly JournalChange[]> {
  await (await createJournal(DISK, path, { owner: OWNER, keys: KEYS, changes, progress: () => undefined })).close()
  return changes
}

test('E3: a range that its last owner left before a rewrite is not given to a record of before its claim', async () => {
  const view = new View({}, () => 0, false)
  view.replace({ ...record, order: 5 })
  view.remove(record.instance.id, 6)
  await writeChanges([...snapshotOf(view, () => undefined, Date.now(), true)])
  const restored = new View({}, () => 0, false)
  replay((await read()).changes, restored, () => undefined)
  const rangesAt = (order: number) => {
    restored.replace({ ...record, instance: { ...record.instance, id: `srv-at-${order}` }, order })
    return rangesOf(restored.get(`srv-at-${order}`)!.instance).length
  }
  expect([rangesAt(4), rangesAt(7)]).toEqual([0, rangesOf(record.instance).length])
})

test('E3: a start flushes the name of what it serves: a power failure could take it back', async () => {
  const flush = vi.spyOn(DISK, 'syncDirectory').mockResolvedValue()
  const changes = await write()
  expect(await read()).toMatchObject({ changes, journal: 'served', isComplete: true })
  expect(flush).toHaveBeenCalledOnce()
  flush.mockRejectedValue(new Error('EIO'))
  expect(await read()).toMatchObject({ changes: [], journal: 'unserved' })
  flush.mockRestore()
})

test.each([
  ['too old', DAY_MS + 1000, /^it is older than IMDS_JOURNAL_MAX_AGE_SECONDS/],
  ['from the future by more than the greatest age', -DAY_MS - 60_000, /the clock of this hypervisor is behind$/],
])('a journal that is %s is not served, and stays until the clock is right', async (_what, afterMs, reason) => {
  const changes = await write()
  expect(await read(Date.now() + afterMs)).toMatchObject({ changes: [], journal: 'unserved' })
  expect(log).toMatchObject([{ msg: expect.stringMatching(/^the journal of the view is not served/) as string }])
  expect(log[0]!.reason).toMatch(reason)
  expect(await read(Date.now() - 120_000)).toMatchObject({ changes, ageMs: expect.closeTo(-120_000, -4) as number })
})

test('a damaged journal is deleted, since it may have user-data; the log gives its size', async () => {
  await write()
  const { size } = statSync(path)
  writeFileSync(path, readFileSync(path).fill(0, size - 1_000, size - 990))
  expect(await read()).toMatchObject({ changes: [], journal: 'none' })
  expect(log).toMatchObject([{ path, bytes: size, msg: expect.stringMatching(/^the journal .* deleted/) as string }])
  expect(readdirSync(directory)).toEqual([])
})

test('what a kill or a former version has left is deleted at the start', async () => {
  const changes = await write()
  mkdirSync(join(directory, 'view.journal.tmp', 'inside'), { recursive: true })
  for (const name of ['view.lock', 'token-key', 'view.journal.previous', 'view.12ab.tmp'])
    writeFileSync(join(directory, name), 'S3CRET')
  expect((await read()).changes).toEqual(changes)
  expect(readdirSync(directory)).toEqual(['token-key', 'view.journal', 'view.lock'])
})

test('without the lock a start serves and deletes nothing: another daemon may use the files', async () => {
  await write()
  writeFileSync(`${path}.tmp`, 'a rewrite of the other daemon')
  mkdirSync(join(directory, 'view.lock'))
  const { disk } = await lockState(
    directory,
    0,
    collectLog(() => log),
  )
  const names = readdirSync(directory)
  expect([(await read(Date.now(), disk)).journal, readdirSync(directory)]).toEqual(['unserved', names])
  rmSync(`${path}.tmp`)
  expect((await read(Date.now(), disk)).journal).toBe('unserved')
})

test('a directory in place of the journal does not hold up the start, and stays', async () => {
  mkdirSync(path)
  writeFileSync(join(path, 'mine'), '')
  expect(await read()).toMatchObject({ changes: [], journal: 'unserved' })
  expect(log).toMatchObject([{ msg: expect.stringMatching(/^the journal of the view cannot be read/) as string }])
  await expect(DISK.remove(path), 'also when the journal is given up').rejects.toThrow()
  expect(readdirSync(directory, { recursive: true }).sort()).toEqual(['view.journal', 'view.journal/mine'])
})

test('a journal of another schema is checked, and has no digests, so that all records are read', async () => {
  const [replace, compared] = await write()
  const another = (bytes: Buffer) =>
    resealed(bytes, KEYS.macKeys[0] as Buffer, (text) => text.replace(RECORD_FORM, 'another schema!!'))
  writeFileSync(path, another(readFileSync(path)))
  expect((await read()).changes).toEqual([{ ...replace, record: { ...record, digest: undefined } }, compared])
  await write({ ...record.instance, fqdn: 'no name' })
  expect(await read()).toMatchObject({ journal: 'served' }) // this version checked it before it wrote it
  writeFileSync(path, another(readFileSync(path)))
  expect(await read()).toMatchObject({ journal: 'unserved' })
  expect(log.map(({ reason }) => reason)).toEqual(['it has a record that is not valid in this version'])
})
