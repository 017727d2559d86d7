/** The view on disk: what a start finds after a kill at any moment, and what happens when the disk does not work. */
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { addReport, NO_REPORTS, type Reports } from '../../../../src/metadata/reports.ts'
import type { ViewChange } from '../../../../src/imdsd/view/change.ts'
import type { SavedInstance } from '../../../../src/imdsd/journal/encoding.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
import { Persistence, type PersistenceParts } from '../../../../src/imdsd/journal/persistence.ts'
import { fillView, restoreView, savedInstances, type Restored } from '../../../../src/imdsd/journal/restore.ts'
import { StaleMark } from '../../../../src/imdsd/journal/stale-mark.ts'
import { snapshotPath, type StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'
import { diskWith, type Around, type Operation } from '../../../support/fixtures/state-disk.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'
import { temporaryDirectory } from '../../../support/fixtures/temporary-directory.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'

const OWNER = { store: 'redis', region: 'gb1', hypervisor: 'hv1' }
const DAY_MS = 86_400_000
const TIMEOUT_MS = 20_000
const PLAIN: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 1)] }
const cipher = aCipher('gb1', 'k1')
const ENCRYPTED: StateKeys = { cipher, macKeys: cipher.macKeys('hv1') }

let directory: string
let path: string
let stale: StaleMark
let log: { level: number; msg: string; reason?: string; err?: { code?: string; message: string } }[]
const logger = collectLog(() => log)
const counts = { snapshot: { written: 0, failed: 0 }, journal: { written: 0, failed: 0 } }

const asItIs: Around = (_operation, _path, run) => run()
let around = asItIs
const disk = diskWith((...operation) => around(...operation))

beforeEach(() => {
  around = asItIs
  directory = temporaryDirectory()
  path = snapshotPath(directory)
  stale = new StaleMark(join(temporaryDirectory(), 'operator.sock'))
  log = []
  counts.snapshot = { written: 0, failed: 0 }
  counts.journal = { written: 0, failed: 0 }
})
const daemons: Daemon[] = []
afterEach(async () => {
  vi.useRealTimers()
  for (const daemon of daemons.splice(0)) await daemon.persistence.stop()
})

/** A busy disk takes a second for two fsyncs. */
const eventually = (check: () => void) => vi.waitFor(check, { timeout: 20_000 })
const read = (keys = PLAIN, owner = OWNER, at = path, nowMs = Date.now()) =>
  restoreView({ path: at, stale, owner, keys, waitsForRules: false, maxAgeMs: DAY_MS, nowMs, log: logger })

/** The n-th state of an instance; each is valid. */
function state(seed: number, revision: number, userData?: Uint8Array): ValidRecord {
  return {
    instance: { ...parsed(generateRecord(seed)), revision },
    digest: `digest ${seed} ${revision}`,
    order: 1,
    lost: [],
    userData,
  }
}

/** What a guest has reported: a phase of its boot. */
function reports(phase: string): Reports {
  const reported = addReport(NO_REPORTS, { kind: 'boot' }, Buffer.from(phase), '2026-11-20T15:04:05.123Z')
  if (reported.kind !== 'reported') throw new Error(reported.kind)
  return reported.reports
}

/** A daemon's view and its files, from what was restored. */
class Daemon {
  readonly view: Map<string, SavedInstance>
  readonly persistence: Persistence

  constructor(restored: Restored, parts: Partial<PersistenceParts> = {}) {
    this.view = new Map(restored.instances.map((one) => [one.instance.id, one]))
    this.persistence = new Persistence({
      disk,
      path,
      stale,
      owner: OWNER,
      keys: PLAIN,
      restored,
      retryMs: 30_000,
      maxAgeMs: DAY_MS,
      timeoutMs: TIMEOUT_MS,
      asOfMs: Date.now() - (restored.ageMs ?? 0),
      instances: () => this.view.values(),
      removals: () => ({ floor: 0, removed: new Map() }),
      snapshotWrites: {
        inc: ({ result }) => {
          counts.snapshot[result] += 1
        },
      },
      journalWrites: {
        inc: ({ result }) => {
          counts.journal[result] += 1
        },
      },
      log: logger,
      ...parts,
    })
  }

  put(record: ValidRecord, removesUserData = false): Promise<void> {
    return this.#record({ kind: 'replace', record }, removesUserData, () => this.view.set(record.instance.id, record))
  }

  report(id: string, phase: string): Promise<void> {
    const all = reports(phase)
    this.view.set(id, { ...this.view.get(id)!, reports: all })
    return this.#record({ kind: 'reported', id, reports: all }, false, () => undefined)
  }

  remove(id: string): Promise<void> {
    return this.#record({ kind: 'remove', id, order: 9 }, true, () => this.view.delete(id))
  }

  /** Resolves when the change is applied. */
  #record(change: ViewChange, removesUserData: boolean, apply: () => void): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<undefined>()
    void this.persistence.append(change, removesUserData, () => {
      apply()
      resolve(undefined)
    })
    return promise
  }
}

const start = async (parts: Partial<PersistenceParts> = {}) => {
  const daemon = new Daemon(await read(parts.keys ?? PLAIN, (parts.owner as typeof OWNER | undefined) ?? OWNER), parts)
  daemons.push(daemon)
  return daemon
}
const byId = (instances: Iterable<SavedInstance>) => new Map([...instances].map((one) => [one.instance.id, one]))
/** What a start finds now. */
const found = async (keys = PLAIN) => byId((await read(keys)).instances)

describe.each([
  ['plain', PLAIN],
  ['encrypted', ENCRYPTED],
])('%s', (_how, keys) => {
  test('a start finds every change, and a clean stop folds them into the snapshot', async () => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1, Buffer.from([0, 255, 10])))
    await daemon.put(state(2, 1, Buffer.alloc(0)))
    await daemon.put(state(2, 2))
    await daemon.remove(state(1, 1).instance.id)
    expect(await found(keys)).toEqual(daemon.view)
    await daemon.persistence.stop()
    expect(await found(keys)).toEqual(daemon.view)
    expect(readdirSync(directory).filter((name) => name.startsWith('view.journal'))).toHaveLength(1)
    for (const name of readdirSync(directory)) expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600)
    if (keys === ENCRYPTED)
      for (const name of readdirSync(directory))
        expect(readFileSync(join(directory, name), 'latin1')).not.toMatch(/srv-|snapshot|removed|journal"/)
    expect(log).toEqual([])
  })

  test('E3: a start knows what was removed, and which addresses later instances have taken', async () => {
    const at = (id: string, order: number): ValidRecord => ({
      ...state(1, order),
      instance: parsed(anInstance({ id, revision: order })),
      order,
    })
    const view = new View({}, () => 0, false)
    const instances = () => view.instances().map(({ record }) => record)
    const daemon = await start({ keys, instances, removals: () => view.removals })
    const put = async (record: ValidRecord) => {
      await daemon.put(record)
      view.replace(record)
    }
    const remove = async (id: string) => {
      await daemon.remove(id)
      view.remove(id, 9)
    }
    const check = async () => {
      const restored = await read(keys)
      expect([restored.instances, restored.removals]).toEqual([[...instances()], view.removals])
      return restored.instances.map(({ instance, lost }) => [instance.id, lost.map(({ range }) => range)])
    }
    await put(at('srv-a', 1))
    await put(at('srv-b', 2))
    await put({ ...state(2, 3), order: 3 })
    await remove(state(2, 3).instance.id)
    const taken = [
      ['srv-a', ['10.0.0.2']],
      ['srv-b', []],
    ]
    expect(await check()).toEqual(taken)
    await remove('srv-b') // the former owner does not get it back
    expect(await check()).toEqual(taken.slice(0, 1))
    view.advance(9)
    await daemon.persistence.stop()
    expect(await check()).toEqual(taken.slice(0, 1))
    expect((await read(keys)).removals).toEqual({ floor: 9, removed: new Map() })
  })

  test('E5: a start knows which addresses are unconfirmed, and what was confirmed is served at once', async () => {
    const restored = () =>
      restoreView({
        ...{ path, stale, owner: OWNER, keys, waitsForRules: true, maxAgeMs: DAY_MS },
        nowMs: Date.now(),
        log: logger,
      })
    const view = new View({}, () => 0, true)
    const instances = () => savedInstances(view, () => undefined)
    const daemon = await start({ keys, instances, removals: () => view.removals })
    const put = async (id: string, order: number) => {
      const record = { ...state(1, order), instance: parsed(anInstance({ id, revision: order })), order }
      await daemon.put(record)
      view.replace(record)
    }
    const confirm = async () => {
      view.noteRules(view.changes)
      await daemon.persistence.whenIdle(() => undefined)
      void daemon.persistence.append({ kind: 'unconfirmed', ranges: [] }, false, () => undefined)
      await daemon.persistence.allApplied()
    }
    const check = async () => {
      const started = new View({}, () => 0, true)
      fillView(started, await restored())
      const found = started.find('default', '10.0.0.2')
      expect([...started.unconfirmed().keys()]).toEqual([...view.unconfirmed().keys()])
      return found.kind === 'owned' ? found.owner.instance.id : found.kind
    }
    await put('srv-a', 1)
    expect(await check()).toBe('unconfirmed')
    await confirm()
    expect(await check()).toBe('srv-a')
    await put('srv-b', 2)
    expect(await check()).toBe('unconfirmed')
    await daemon.persistence.stop() // the snapshot has the mark too
    expect(await check()).toBe('unconfirmed')
  })

  test('H9: a report is in the journal without another snapshot, and goes with its instance', async () => {
    const daemon = await start({ keys })
    const ids = [1, 2].map((seed) => state(seed, 1).instance.id) as [string, string]
    await Promise.all([daemon.put(state(1, 1)), daemon.put(state(2, 1))])
    const phases = async () => {
      const restored = await found(keys)
      return ids.map((id) => restored.get(id)?.reports?.boot?.phase)
    }
    const { written } = counts.snapshot
    await Promise.all(ids.map((id) => daemon.report(id, 'running')))
    expect(await phases()).toEqual(['running', 'running'])
    expect(counts.snapshot).toEqual({ written, failed: 0 })
    await daemon.put(state(1, 2))
    expect(await phases(), 'a change keeps them').toEqual(['running', 'running'])
    void daemon.report(ids[0], 'done')
    await daemon.persistence.stop()
    expect(await phases(), 'a clean stop').toEqual(['done', 'running'])

    const second = await start({ keys })
    await second.remove(ids[1])
    await second.put(state(2, 3))
    expect(await phases(), 'the same id again').toEqual(['done', undefined])
    expect(log).toEqual([])
  })

  test('a torn end of the journal loses only itself, and is continued', async () => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1))
    await daemon.put(state(1, 2))
    const before = new Map(daemon.view)
    const journal = join(directory, 'view.journal.1')
    const { size } = statSync(journal)
    await daemon.put(state(1, 3, Buffer.alloc(100, 'x')))
    const whole = readFileSync(journal)
    for (const cut of [size + 1, size + 39, size + 40, size + 44, whole.length - 2]) {
      log = []
      writeFileSync(journal, whole.subarray(0, cut))
      expect(await found(keys)).toEqual(before)
      expect(log).toMatchObject([
        { msg: expect.stringMatching(/^the end of the journal is torn/) as string, lostBytes: cut - size },
      ])
    }
    log = []
    const next = await start({ keys })
    await next.put(state(2, 1))
    expect(await found(keys)).toEqual(next.view)
    const flipped = Buffer.from(whole)
    flipped[flipped.length - 5]! ^= 1 // a confirmed frame, though a later journal follows
    writeFileSync(journal, flipped)
    expect(await found(keys)).toEqual(new Map())
    expect(log.at(-1)).toMatchObject({ reason: expect.stringMatching(/^its journal is damaged at byte/) as string })
  })

  test('E3: a start flushes the directory before it deletes a journal that a killed fold left', async () => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1))
    const left = join(directory, 'view.journal.0')
    cpSync(join(directory, 'view.journal.1'), left)
    const flush = vi.spyOn(DISK, 'syncDirectory').mockImplementation(() => {
      expect(existsSync(left), 'at the flush').toBe(true)
      return Promise.resolve()
    })
    expect(await found(keys)).toEqual(daemon.view)
    expect(flush).toHaveBeenCalledOnce()
    expect(existsSync(left)).toBe(false)
    flush.mockRestore()
  })

  test.each([
    [
      'rejected',
      () => {
        const journal = join(directory, 'view.journal.1')
        const bytes = readFileSync(journal)
        bytes[Math.floor(bytes.length / 2)]! ^= 1 // of the frame before the last
        writeFileSync(journal, bytes)
      },
    ],
    ['deleted by the daemon before', () => rmSync(join(directory, 'view.snapshot'))],
  ])('E3: a start flushes the deletion of a snapshot before it deletes a journal: %s', async (_how, lose) => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1))
    await daemon.put(state(2, 1))
    lose()
    const flushed: string[][] = []
    const flush = vi.spyOn(DISK, 'syncDirectory').mockImplementation(() => {
      flushed.push(readdirSync(directory))
      return Promise.resolve()
    })
    expect(await found(keys)).toEqual(new Map())
    expect(flushed).toEqual([['view.journal.1'], []])
    flush.mockRestore()
  })

  test('E3: after a kill, a damaged frame is not taken for a torn end: no former owner is served', async () => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1, Buffer.from('secret of the former owner')))
    const journal = join(directory, 'view.journal.1')
    const { size } = statSync(journal)
    await daemon.remove(state(1, 1).instance.id) // so its fold is not due yet
    await daemon.put({
      ...state(2, 1),
      instance: { ...state(2, 1).instance, interfaces: state(1, 1).instance.interfaces },
    })
    await daemon.put(state(3, 1))
    const killed = temporaryDirectory()
    cpSync(directory, killed, { recursive: true })
    const flipped = readFileSync(join(killed, 'view.journal.1'))
    flipped[size + 60]! ^= 1
    writeFileSync(join(killed, 'view.journal.1'), flipped)
    expect(await read(keys, OWNER, snapshotPath(killed))).toMatchObject({ instances: [], files: 'none' })
    expect(readdirSync(killed)).toEqual([])
    expect(log).toMatchObject([{ reason: `its journal is damaged at byte ${size}` }])
  })
})

/**
 * From here on the disk is too slow only when `tooLate` is called, however busy the machine is. Timers pass only with
 * it, or in `eventually`.
 */
function stopTime(): void {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
}
const tooLate = () => vi.advanceTimersByTime(TIMEOUT_MS)

/** Holds the operations that match. `begun` resolves when the first one is held, `release` lets them go on. */
function hold(matches: (operation: Operation, file: string) => boolean) {
  const [begun, held] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
  around = async (operation, file, run) => {
    if (matches(operation, file)) {
      begun.resolve(undefined)
      await held.promise
    }
    return run()
  }
  const release = () => {
    around = asItIs
    held.resolve(undefined)
  }
  return { begun: begun.promise, release }
}

/** Lets an operation fail or hang until the returned function is called. */
function whileDisk(operation: Operation, behave: () => Promise<never>): () => void {
  around = (name, _path, run) => (name === operation ? behave() : run())
  return () => {
    around = asItIs
  }
}

const full = () => Promise.reject(Object.assign(new Error('no space left on device'), { code: 'ENOSPC' }))

describe('a disk that does not work', () => {
  test('E3: on a full disk changes are made, and a start serves nothing rather than an older state', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const works = whileDisk('writeFile', full)
    await daemon.put(state(1, 2))
    expect(daemon.view.get(state(1, 2).instance.id)?.instance.revision).toBe(2)
    expect(readdirSync(directory)).toEqual([])
    await daemon.remove(state(1, 1).instance.id)
    expect(log.map(({ level, msg, err }) => [level, msg, err?.code])).toEqual([
      [40, expect.stringMatching(/^the view cannot be kept on disk/), 'ENOSPC'],
    ])
    expect(counts.journal.failed).toBe(1)
    works()
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.view)
    expect(log.map(({ msg }) => msg)).toContain('the snapshot can be written again')
  })

  test('E3: a disk that hangs delays a change only for a time, and a start finds no older state', async () => {
    stopTime()
    const daemon = await start()
    await daemon.put(state(1, 1))
    const [begun, hung] = [Promise.withResolvers<undefined>(), Promise.withResolvers<never>()]
    const works = whileDisk('datasync', () => {
      begun.resolve(undefined)
      return hung.promise
    })
    const change = daemon.put(state(1, 2))
    await begun.promise
    tooLate()
    await change
    await daemon.put(state(1, 3))
    expect(daemon.view.get(state(1, 3).instance.id)?.instance.revision).toBe(3)
    expect(existsSync(path)).toBe(false)
    expect(await found()).toEqual(new Map())
    expect(log).toMatchObject([
      {
        msg: expect.stringMatching(/^the view cannot be kept on disk/) as string,
        err: { message: 'no answer within 20000 ms' },
      },
    ])
    works()
    hung.reject(new Error('interrupted'))
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.view)
  })

  test('a snapshot that cannot be written leaves the journal, which has every change', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1, Buffer.from('old')))
    const works = whileDisk('utimes', full) // only the snapshot sets its time
    await daemon.put(state(1, 2), true)
    await eventually(() => expect(counts.snapshot.failed).toBe(1))
    await daemon.put(state(2, 1))
    expect(await found()).toEqual(daemon.view)
    expect(log.map(({ msg }) => msg)).toEqual([
      expect.stringMatching(/^the snapshot cannot be written: changes are only in the journal/),
    ])
    works()
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.view)
    expect(readdirSync(directory)).toHaveLength(2)
  })

  test('retries of a snapshot that cannot be written leave no further journals', async () => {
    const daemon = await start({ retryMs: 5 })
    await daemon.put(state(1, 1, Buffer.from('old')))
    const works = whileDisk('utimes', full)
    const journalsAfterRetries = async () => {
      const { failed } = counts.snapshot
      await eventually(() => expect(counts.snapshot.failed).toBeGreaterThan(failed + 5))
      return readdirSync(directory).filter((name) => /^view\.journal\.\d+$/.test(name)).length
    }
    await daemon.put(state(1, 2), true)
    expect(await journalsAfterRetries()).toBe(2)
    await daemon.put(state(2, 1))
    expect(await journalsAfterRetries()).toBe(3)
    expect(await found()).toEqual(daemon.view)
    works()
    await eventually(() => expect(counts.snapshot.written).toBe(2))
    await daemon.put(state(2, 2))
    expect(readdirSync(directory).toSorted()).toEqual([expect.stringMatching(/^view\.journal\.\d+$/), 'view.snapshot'])
    expect(await found()).toEqual(daemon.view)
  })

  test('the files stay small while one instance changes again and again, also without a new snapshot', async () => {
    const daemon = await start()
    // a temporary file may be gone before its size is read
    const sizeOf = (name: string) => statSync(join(directory, name), { throwIfNoEntry: false })?.size ?? 0
    const bytes = () => readdirSync(directory).reduce((sum, name) => sum + sizeOf(name), 0)
    const large = (revision: number) => state(1, revision, Buffer.alloc(300_000, revision))
    let most = 0
    for (let revision = 1; revision <= 40; revision++) {
      await daemon.put(large(revision))
      most = Math.max(most, bytes())
    }
    expect(counts.snapshot.written).toBeGreaterThan(3)
    expect(most).toBeLessThan(5 * 1024 * 1024)
    const works = whileDisk('utimes', full)
    for (let revision = 41; revision <= 80; revision++) {
      await daemon.put(large(revision))
      expect(bytes()).toBeLessThan(7 * 1024 * 1024)
    }
    works()
    expect(log.at(-1)).toMatchObject({
      err: {
        message: expect.stringMatching(/^the journal is too long, because no snapshot could be written/) as string,
      },
    })
    expect(await found()).toEqual(new Map())
  })
})

describe('work on a disk that fails or hangs for a time', () => {
  const gone = (code: string) => Promise.reject(Object.assign(new Error(code), { code }))
  const messages = () => log.map(({ msg }) => msg.split(':')[0])
  const LOST = 'the view cannot be kept on disk'
  /** Waits for a change whose write hangs, and then the deletion of the files too. */
  const tooLateTwice = async (change: Promise<void>, begun: Promise<unknown>) => {
    await begun
    tooLate()
    await eventually(() => expect(messages()).toContain(LOST))
    tooLate()
    await change
  }

  test('a first snapshot that fails leaves no file open, and none on the disk', async () => {
    const open = new Set<string>()
    around = (operation, file, run) => {
      if (operation === 'create') open.add(file)
      if (operation === 'close') open.delete(file)
      return operation === 'utimes' ? gone('ENOSPC') : run()
    }
    const daemon = await start()
    await daemon.put(state(1, 1))
    await eventually(() => expect([[...open], readdirSync(directory)]).toEqual([[], []]))
    expect(messages()).toEqual([LOST])
  })

  test('E3: a journal whose creation takes too long is removed before the next change, or ends the attempt', async () => {
    stopTime()
    const first = await start()
    await first.put(state(1, 1))
    await first.persistence.stop()
    for (const [operation, ending] of [
      ['create', '.tmp'],
      ['rename', '.tmp'],
      ['syncDirectory', ''],
    ] as const) {
      log = []
      const daemon = await start()
      await daemon.put(state(2, 1))
      const failed = counts.snapshot.failed
      const { begun, release } = hold(
        (name, file) => name === operation && file.includes('view.journal.') && file.endsWith(ending),
      )
      await daemon.put(state(2, 2, Buffer.from('new')), true)
      vi.advanceTimersByTime(1_000) // its fold begins a journal
      await begun
      tooLate()
      await eventually(() => expect(counts.snapshot.failed).toBe(failed + 1))
      const change = daemon.put(state(1, 2))
      release()
      await change
      await daemon.put(state(1, 3))
      expect(await found()).toEqual(daemon.view)
      expect(messages()).toEqual(['the snapshot cannot be written'])
      await daemon.persistence.stop()
      expect(await found()).toEqual(daemon.view)
    }
  })

  test('E3: what hung when the files were given up writes nothing later', async () => {
    const first = await start()
    await first.put(state(1, 1))
    await first.persistence.stop()
    rmSync(path)
    stopTime()
    const daemon = await start({ retryMs: 50 })
    for (let seed = 1; seed <= 40; seed++) daemon.view.set(state(seed, 1).instance.id, state(seed, 1))
    const { begun, release } = hold((operation) => operation === 'makeDirectory')
    await tooLateTwice(daemon.put(state(1, 2)), begun)
    release()
    for (let seed = 1; seed <= 40; seed++) await daemon.put(state(seed, 3))
    await eventually(() => expect(existsSync(path)).toBe(true))
    expect(await found()).toEqual(daemon.view)
    expect(messages().filter((message) => message === LOST)).toHaveLength(1)
  })

  test('E3: the files are deleted at once, though a slow fold is under way', async () => {
    stopTime()
    const daemon = await start()
    await daemon.put(state(1, 1, Buffer.from('old')))
    const { begun, release } = hold((operation) => operation === 'utimes' || operation === 'datasync')
    const change = daemon.put(state(1, 2), true)
    await begun
    tooLate()
    await change
    await daemon.put(state(1, 3))
    expect([readdirSync(directory).filter((name) => !name.endsWith('.tmp')), messages()]).toEqual([[], [LOST]])
    release()
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.view)
  })

  test('a slow disk does not cost the snapshot of another owner, nor the next attempt', async () => {
    const first = await start()
    await first.put(state(1, 1))
    await first.persistence.stop()
    const before = readFileSync(path)
    const other = { ...OWNER, hypervisor: 'hv2' }
    stopTime()
    const daemon = await start({ owner: other, retryMs: 30 })
    const { begun, release } = hold((operation, file) => operation === 'rename' && file === path)
    await tooLateTwice(daemon.put(state(2, 1)), begun)
    release()
    await eventually(() => expect(log.at(-1)?.msg).toBe('the snapshot can be written again'))
    expect(readFileSync(`${path}.previous`)).toEqual(before)
    expect(readdirSync(directory).filter((name) => /^view\.journal\.\d+\.previous$/.test(name))).toHaveLength(1)
    await daemon.put(state(2, 2))
    expect(byId((await read(PLAIN, other)).instances)).toEqual(daemon.view)
  })

  /** More than the journals of a small view may have. */
  const flood = () => state(9, 1, Buffer.alloc(5 * 1024 * 1024, 1))

  test.each([
    [
      'a fold that lacks them',
      (operation: Operation, file: string) => operation === 'rename' && file === `${path}.tmp`,
      1,
    ],
    ['the time of the snapshot is renewed', (operation: Operation) => operation === 'setTime', 2],
  ])('a flood of changes while %s is under way waits for a new snapshot', async (_what, matches, confirmations) => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    await eventually(() => expect(counts.snapshot.written).toBe(1))
    for (let n = 1; n < confirmations; n++) daemon.persistence.noteResync(Date.now())
    await eventually(() => expect(counts.snapshot.written).toBe(confirmations))
    const { begun, release } = hold(matches)
    daemon.persistence.noteResync(Date.now())
    await begun
    await daemon.put(flood())
    const last = daemon.put(state(2, 1))
    setImmediate(release)
    await last
    expect(counts.journal.failed).toBe(0)
    expect(log).toEqual([])
    expect(await found()).toEqual(daemon.view)
  })

  test('journals that are too long are folded before they are given up, also soon after a fold that failed', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    await eventually(() => expect(counts.snapshot.written).toBe(1))
    around = (operation, file, run) => (operation === 'rename' && file === `${path}.tmp` ? gone('ENOSPC') : run())
    daemon.persistence.noteResync(Date.now())
    await eventually(() => expect(counts.snapshot.failed).toBe(1))
    await daemon.put(flood())
    around = asItIs
    await daemon.put(state(2, 1))
    expect(counts.journal.failed).toBe(0)
    expect(await found()).toEqual(daemon.view)
  })

  test('a fold that cannot begin leaves the files, which are appended to', async () => {
    const daemon = await start({ retryMs: 20 })
    await daemon.put(state(1, 1, Buffer.from('old')))
    around = (operation, _file, run) => (operation === 'create' ? gone('ENOSPC') : run())
    await daemon.put(state(1, 2), true)
    await eventually(() => expect(counts.snapshot.failed).toBeGreaterThan(2))
    await daemon.put(state(2, 1))
    expect(await found()).toEqual(daemon.view)
    expect(messages()).toEqual(['the snapshot cannot be written'])
    around = asItIs
    await eventually(() => expect(log.at(-1)?.msg).toBe('the snapshot can be written again'))
    expect(await found()).toEqual(daemon.view)
  })

  test('a disk that hangs has at most three operations, delays no further change, and is logged once', async () => {
    stopTime()
    const daemon = await start({ retryMs: 10 })
    await daemon.put(state(1, 1))
    let waiting = 0
    const [begun, held] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
    around = async (_operation, _file, run) => {
      waiting += 1
      begun.resolve(undefined)
      await held.promise
      return run()
    }
    await tooLateTwice(daemon.put(state(1, 2)), begun.promise)
    const { length } = log
    for (let revision = 3; revision <= 60; revision++) {
      await daemon.put(state(1, revision), true)
      daemon.persistence.noteResync(Date.now())
      tooLate()
    }
    expect(waiting).toBeLessThanOrEqual(3)
    expect([length, log.length]).toEqual([2, 2]) // that it is lost, and that it cannot be deleted
    around = asItIs
    held.resolve(undefined)
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.view)
  })

  test('retries on a full disk leave nothing behind', async () => {
    const daemon = await start({ retryMs: 5 })
    await daemon.put(state(1, 1))
    let writes = 0
    around = (operation, _file, run) => {
      if (operation !== 'writeFile') return run()
      writes += 1
      return gone('ENOSPC')
    }
    await daemon.put(state(1, 2))
    await eventually(() => expect(writes).toBeGreaterThan(6))
    around = asItIs
    await daemon.persistence.stop()
    expect(readdirSync(directory).toSorted()).toEqual([expect.stringMatching(/^view\.journal\.\d+$/), 'view.snapshot'])
    expect(messages()).toEqual([LOST, 'the snapshot can be written again'])
  })

  test('the first snapshot may take longer than a change waits for the disk, if it makes progress', async () => {
    stopTime()
    const daemon = await start()
    for (let seed = 1; seed <= 12; seed++)
      daemon.view.set(state(seed, 1).instance.id, state(seed, 1, Buffer.alloc(300_000)))
    around = (operation, file, run) => {
      if (operation === 'writeFile' && file.includes('snapshot')) vi.advanceTimersByTime(TIMEOUT_MS / 5)
      return run()
    }
    await daemon.put(state(1, 2))
    expect([messages(), existsSync(path)]).toEqual([[], true])
    expect(await found()).toEqual(daemon.view)
  })
})

describe('a state directory with files that do not fit', () => {
  test.each([0, 100])(
    'E3: with a further journal of %d bytes nothing is served, and later changes are',
    async (bytes) => {
      const daemon = await start()
      await daemon.put(state(1, 1))
      await daemon.persistence.stop()
      writeFileSync(join(directory, 'view.journal.9'), Buffer.alloc(bytes))
      expect(await found()).toEqual(new Map())
      expect(log.at(-1)?.reason).toMatch(/^its journal is torn/)
      const next = await start()
      await next.put(state(1, 2))
      expect(await found()).toEqual(next.view)
    },
  )

  test('E3: journals need not have consecutive numbers, but none may be missing', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const next = await start({ restored: { ...(await read()), generation: 7 } })
    await next.put(state(1, 1))
    await next.put(state(1, 2))
    const third = await start()
    await third.put(state(1, 3))
    expect(await found()).toEqual(third.view)
    rmSync(join(directory, 'view.journal.8'))
    expect(await found()).toEqual(new Map())
    expect(log.at(-1)?.reason).toMatch(/^its journals do not belong together/)
  })

  test('a start goes on with a directory in the place of a journal', async () => {
    mkdirSync(join(directory, 'view.journal.5'))
    expect(await read()).toMatchObject({ instances: [], generation: 5 })
    expect(log).toHaveLength(1)
    rmSync(join(directory, 'view.journal.5'), { recursive: true })
    const daemon = await start()
    await daemon.put(state(1, 1))
    mkdirSync(join(directory, 'view.journal.5'))
    expect(await found()).toEqual(new Map())
    expect(existsSync(path)).toBe(true)
  })
})

describe('files that are not served', () => {
  const write = async (keys = PLAIN) => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1, Buffer.from('S3CRET')))
    daemon.persistence.noteResync(Date.now())
    await daemon.persistence.stop()
  }
  const other = { ...OWNER, region: 'gb2' }

  test('of another owner stay while that owner has no records, and are served to the right one again', async () => {
    await write()
    const wrong = await start({ owner: other })
    wrong.persistence.noteResync(Date.now())
    await wrong.persistence.stop()
    expect(wrong.view.size).toBe(0)
    expect(log).toMatchObject([
      { reason: 'its region is "gb1", not "gb2"', msg: expect.stringMatching(/stays where it is/) as string },
    ])
    expect((await found()).size).toBe(1)
  })

  test('of another owner are set aside before the first change, and deleted when they are too old', async () => {
    await write()
    const wrong = await start({ owner: other })
    const order: Operation[] = []
    around = (operation, _path, run) => {
      if (operation === 'rename' || operation === 'syncDirectory') order.push(operation)
      return run()
    }
    await wrong.put(state(2, 1))
    around = asItIs
    // also after a power failure, no journal is set aside before an older one
    expect(order.slice(0, 4)).toEqual(['rename', 'syncDirectory', 'rename', 'syncDirectory'])
    const aside = readdirSync(directory).filter((name) => name.endsWith('.previous'))
    expect(aside).toHaveLength(2)
    for (const name of aside) expect(statSync(join(directory, name)).mode & 0o777).toBe(0o600)
    expect(byId((await read(PLAIN, other)).instances)).toEqual(wrong.view)
    await read(PLAIN, other, path, Date.now() + DAY_MS + 60_000)
    expect(readdirSync(directory).filter((name) => name.endsWith('.previous'))).toEqual([])
  })

  test('E3: a file that was too old is not served after a change, though the clock is right again', async () => {
    await write()
    const daemon = new Daemon(await read(PLAIN, OWNER, path, Date.now() + 10 * DAY_MS))
    daemons.push(daemon)
    await daemon.put(state(2, 1))
    expect(await found()).toEqual(daemon.view)
  })

  test('a plain snapshot is never served with record keys, and is deleted before the first change', async () => {
    await write()
    const daemon = await start({ keys: ENCRYPTED })
    expect(daemon.view.size).toBe(0)
    expect(log).toMatchObject([{ reason: 'it is not encrypted, and there are record keys (IMDS_RECORD_KEYS_FILE)' }])
    daemon.persistence.noteResync(Date.now())
    expect(existsSync(path)).toBe(true)
    await daemon.put(state(2, 1))
    for (const name of readdirSync(directory))
      expect(readFileSync(join(directory, name), 'latin1')).not.toMatch(/S3CRET|srv-/)
    expect(await found(ENCRYPTED)).toEqual(daemon.view)
  })

  test('with record keys a journal that is plain, or that the token key authenticates, is not served', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const plain = readFileSync(join(directory, 'view.journal.1'))
    await daemon.persistence.stop()
    rmSync(directory, { recursive: true })
    directory = temporaryDirectory()
    path = snapshotPath(directory)
    const encrypted = await start({ keys: ENCRYPTED })
    await encrypted.put(state(2, 1))
    writeFileSync(join(directory, 'view.journal.1'), plain)
    expect(await found(ENCRYPTED)).toEqual(new Map())
    expect(log.at(-1)?.reason).toMatch(/^its journal is torn, or was written with another key/)
  })

  test('a snapshot without the journal that it names is not served', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    rmSync(join(directory, 'view.journal.1'))
    expect(await found()).toEqual(new Map())
    expect(log.at(-1)?.reason).toMatch(/^its journal .* is missing$/)
  })

  test('a journal of another time, or without its snapshot, is not applied', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const former = readFileSync(join(directory, 'view.journal.1'))
    rmSync(path)
    expect(await found()).toEqual(new Map())
    expect(readdirSync(directory)).toEqual([])
    const next = await start()
    await next.put(state(2, 1))
    writeFileSync(join(directory, 'view.journal.1'), former)
    expect(await found()).toEqual(new Map())
    expect(log.at(-1)?.reason).toMatch(/^its journals do not belong together/)
  })
})

test('files under a former key of the hypervisor are read, and written with the new one after a resync', async () => {
  const daemon = await start()
  await daemon.put(state(1, 1))
  const keys: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 2), ...PLAIN.macKeys] }
  const next = await start({ keys })
  expect(next.view.size).toBe(1)
  await next.put(state(1, 2))
  expect(await found(keys)).toEqual(next.view)
  next.persistence.noteResync(Date.now())
  await eventually(() => expect(counts.snapshot.written).toBe(2))
  const only: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 2)] }
  expect(await found(only)).toEqual(next.view)
  expect(await found()).toEqual(new Map())
})

test('a confirmation renews the time of the snapshot; deleted files are written again', async () => {
  const daemon = await start()
  await daemon.put(state(1, 1))
  daemon.persistence.noteResync(Date.now())
  await eventually(() => expect(counts.snapshot.written).toBe(2)) // the first was written before the view was complete
  const { ino } = statSync(path)
  const beganAtMs = Date.now() - 60_000
  daemon.persistence.noteResync(beganAtMs)
  await eventually(() => expect(statSync(path).mtimeMs).toBeCloseTo(beganAtMs))
  expect(statSync(path).ino).toBe(ino)
  expect((await read()).isComplete).toBe(true)
  for (const name of readdirSync(directory)) rmSync(join(directory, name))
  daemon.persistence.noteResync(Date.now())
  await eventually(() => expect(existsSync(path)).toBe(true))
  await daemon.put(state(1, 2))
  expect(await found()).toEqual(daemon.view)
})

test('a view that no resync has confirmed is not complete, and its age counts from the last one', async () => {
  const daemon = await start({ asOfMs: Date.now() - 7_200_000 })
  await daemon.put(state(1, 1))
  expect(await read()).toMatchObject({ isComplete: false, ageMs: expect.closeTo(7_200_000, -4) as number })
})

test('a directory with the name of a temporary file is deleted at the start', async () => {
  mkdirSync(join(directory, 'view.snapshot.tmp', 'inside'), { recursive: true })
  expect(await read()).toMatchObject({ files: 'none' })
  expect([readdirSync(directory), log]).toEqual([[], []])
})

test('E3: what is older than the view is deleted though its directory cannot be made', async () => {
  const daemon = await start()
  await daemon.put(state(1, 1))
  await daemon.persistence.stop()
  around = (operation, _path, run) =>
    operation === 'makeDirectory' || operation === 'writeFile' ? Promise.reject(new Error('no space')) : run()
  const next = await start()
  await next.put(state(1, 2))
  await eventually(() => expect(readdirSync(directory)).toEqual([]))
})

test('E3: a disk refuses to write and to delete, and works again: the next start serves nothing of it', async () => {
  const before = await start()
  await before.put(state(1, 1))
  await before.persistence.stop()
  const daemon = await start()
  around = () => Promise.reject(new Error('the disk refuses that'))
  await daemon.put(state(1, 2))
  expect(log.map(({ msg }) => msg)).toContainEqual(expect.stringMatching(/^the snapshot cannot be deleted/))
  around = asItIs
  expect((await read()).files).toBe('none')
  expect(readdirSync(directory)).toEqual([])
  const after = await start()
  await after.put(state(1, 3))
  await after.persistence.stop()
  expect(await found()).toEqual(after.view)
})

test('a file that was set aside and cannot be deleted disturbs neither a start nor a resync', async () => {
  mkdirSync(`${path}.previous`) // rm refuses a directory, as it refuses any file of a read-only disk
  const daemon = await start({ maxAgeMs: -1 })
  await daemon.put(state(1, 1))
  expect(() => daemon.persistence.noteResync(Date.now())).not.toThrow()
  expect(
    byId(
      (
        await restoreView({
          path,
          stale,
          owner: OWNER,
          keys: PLAIN,
          waitsForRules: false,
          maxAgeMs: DAY_MS,
          nowMs: Date.now(),
          log: logger,
        })
      ).instances,
    ),
  ).toEqual(daemon.view)
})

test('changes that wait together are one write', async () => {
  const daemon = await start()
  await daemon.put(state(1, 1))
  await Promise.all(Array.from({ length: 200 }, (_, i) => daemon.put(state(2 + (i % 20), 1 + i))))
  expect(counts.journal.written).toBeLessThan(10)
  expect(await found()).toEqual(daemon.view)
})
