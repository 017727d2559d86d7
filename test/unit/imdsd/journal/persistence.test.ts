/** The journal and the view: what a start finds after a kill at any moment, and what happens when the disk fails. */
import { existsSync, readdirSync, readFileSync, rmSync, statSync, truncateSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { addReport, NO_REPORTS, type Reports } from '../../../../src/metadata/reports.ts'
import type { ViewChange } from '../../../../src/imdsd/view/change.ts'
import { Persistence, type PersistenceParts } from '../../../../src/imdsd/journal/persistence.ts'
import { replay, restoreView } from '../../../../src/imdsd/journal/restore.ts'
import { StaleMark } from '../../../../src/imdsd/journal/stale-mark.ts'
import { journalPath, type StateKeys } from '../../../../src/imdsd/journal/state-files.ts'
import type { ValidRecord } from '../../../../src/imdsd/view/validate.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import '../../../support/fixtures/equal-bytes.ts'
import { generateRecord } from '../../../support/fixtures/generated-records.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { aCipher } from '../../../support/fixtures/record-keys.ts'
import { DISK } from '../../../../src/imdsd/journal/disk.ts'
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
const counts = { rewrites: { written: 0, failed: 0 }, writes: { written: 0, failed: 0 } }

const asItIs: Around = (_operation, _path, run) => run()
let around = asItIs
const disk = diskWith((...operation) => around(...operation))

beforeEach(() => {
  around = asItIs
  directory = temporaryDirectory()
  path = journalPath(directory)
  stale = new StaleMark(join(temporaryDirectory(), 'operator.sock'))
  log = []
  counts.rewrites = { written: 0, failed: 0 }
  counts.writes = { written: 0, failed: 0 }
})
const daemons: Daemon[] = []
afterEach(async () => {
  vi.useRealTimers()
  around = asItIs
  for (const daemon of daemons.splice(0)) await daemon.persistence.stop()
})

/** A busy disk takes a second for two flushes. */
const eventually = (check: () => void) => vi.waitFor(check, { timeout: 20_000 })

/** The n-th state of an instance; each is valid. */
function state(seed: number, revision: number, userData?: Uint8Array): ValidRecord {
  const instance = { ...parsed(generateRecord(seed)), revision }
  return { instance, digest: `digest ${seed} ${revision}`, order: 10 * revision + seed, lost: [], userData }
}
/** An instance that claims the address 10.0.0.2. */
function claiming(id: string, order: number): ValidRecord {
  return { ...state(1, order), instance: parsed(anInstance({ id, revision: order })), order }
}
const idOf = (seed: number) => state(seed, 1).instance.id

/** What a guest has reported: a phase of its boot. */
function reports(phase: string): Reports {
  const reported = addReport(NO_REPORTS, 'boot', Buffer.from(phase), '2026-11-20T15:04:05.123Z')
  if (reported.kind !== 'reported') throw new Error(reported.kind)
  return reported.reports
}

interface Options extends Partial<PersistenceParts> {
  readonly waitsForRules?: boolean
}

/** A view, its reports, and its journal. */
class Daemon {
  readonly view: View
  readonly #reports = new WeakMap<object, Reports>()
  persistence!: Persistence

  constructor(waitsForRules: boolean) {
    this.view = new View({}, () => 0, waitsForRules)
  }

  /** Starts as a daemon does. */
  static async start({ waitsForRules = false, ...parts }: Options = {}, nowMs = Date.now()): Promise<Daemon> {
    const daemon = new Daemon(waitsForRules)
    const { owner = OWNER, keys = PLAIN } = parts
    const restored = await restoreView({ disk: DISK, path, stale, owner, keys, maxAgeMs: DAY_MS, nowMs, log: logger })
    replay(restored.changes, daemon.view, (id, all) => daemon.#keep(id, all))
    const counter = (of: 'rewrites' | 'writes') => ({
      inc: ({ result }: { result: 'written' | 'failed' }) => void (counts[of][result] += 1),
    })
    daemon.persistence = new Persistence({
      disk,
      path,
      stale,
      owner,
      keys,
      view: daemon.view,
      reportsOf: (id) => daemon.#reportsOf(id),
      restored,
      retryMs: 30_000,
      timeoutMs: TIMEOUT_MS,
      comparedAtMs: nowMs - (restored.ageMs ?? 0),
      journalWrites: counter('writes'),
      journalRewrites: counter('rewrites'),
      ...parts,
    })
    daemons.push(daemon)
    return daemon
  }

  /** All that a start must find again. */
  get content(): unknown {
    const instances = [...this.view.instances()].map(({ record }) => record)
    return {
      instances: instances.toSorted((a, b) => a.instance.id.localeCompare(b.instance.id)),
      removals: { floor: this.view.removals.floor, removed: new Map(this.view.removals.removed) },
      unconfirmed: [...this.view.unconfirmed().keys()].toSorted(),
      reports: this.reports,
    }
  }

  get reports(): ReadonlyMap<string, Reports | undefined> {
    return new Map([...this.view.ids()].toSorted().map((id) => [id, this.#reportsOf(id)]))
  }

  put(record: ValidRecord, removesUserData = false): Promise<void> {
    return this.#record({ kind: 'replace', record }, removesUserData, () => void this.view.replace(record))
  }

  report(id: string, phase: string): Promise<void> {
    const all = reports(phase)
    this.#keep(id, all)
    return this.#record({ kind: 'reported', id, reports: all }, false, () => undefined)
  }

  remove(id: string, order = 99): Promise<void> {
    return this.#record({ kind: 'remove', id, order }, true, () => this.view.remove(id, order))
  }

  /** The kernel has the rules of the view. */
  async confirm(): Promise<void> {
    this.view.noteRules(this.view.changes)
    this.persistence.noteUnconfirmed()
    await this.persistence.allApplied()
  }

  #reportsOf(id: string): Reports | undefined {
    return this.#reports.get(this.view.get(id)!.stay)
  }

  #keep(id: string, all: Reports): void {
    this.#reports.set(this.view.get(id)!.stay, all)
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

const start = (options?: Options) => Daemon.start(options)
/** What a start finds now, after a kill. */
const found = async (options?: Options) => {
  const daemon = await Daemon.start(options)
  daemons.splice(daemons.indexOf(daemon), 1)
  return daemon.content
}
const NOTHING = { instances: [], removals: { floor: 0, removed: new Map() }, unconfirmed: [], reports: new Map() }
const problem = ({ persistence }: Daemon) => persistence.problem?.kind

describe.each([
  ['plain', PLAIN],
  ['encrypted', ENCRYPTED],
])('%s', (_how, keys) => {
  test('a start finds every change, from one file', async () => {
    const daemon = await start({ keys })
    await daemon.put(state(1, 1, Buffer.from([0, 255, 10])))
    await daemon.put(state(2, 1, Buffer.alloc(0)))
    await daemon.put(state(2, 2))
    await daemon.remove(idOf(1))
    expect(await found({ keys })).toEqual(daemon.content)
    await daemon.persistence.stop()
    expect(await found({ keys })).toEqual(daemon.content)
    expect(readdirSync(directory)).toEqual(['view.journal'])
    if (keys === ENCRYPTED) expect(readFileSync(path, 'latin1')).not.toMatch(/srv-|removed|journal"/)
    expect(log).toEqual([])
  })

  test('E5: a start knows which addresses are unconfirmed, and what was confirmed is served at once', async () => {
    const daemon = await start({ keys, waitsForRules: true })
    const check = async () => {
      expect(await found({ keys, waitsForRules: true })).toEqual(daemon.content)
      return daemon.view.find('default', '10.0.0.2').kind
    }
    await daemon.put(claiming('srv-a', 1))
    expect(await check()).toBe('unconfirmed')
    await daemon.confirm()
    expect(await check()).toBe('owned')
    await daemon.put(claiming('srv-b', 2), true)
    expect(await check()).toBe('unconfirmed')
    await daemon.persistence.stop() // the same after a rewrite
    expect(counts.rewrites.written).toBe(2)
    expect(await check()).toBe('unconfirmed')
  })

  test('E5: rules that are confirmed while a change is on its way to the disk confirm nothing of it', async () => {
    const daemon = await start({ keys, waitsForRules: true })
    await daemon.put(claiming('srv-one', 1))
    const written = daemon.put(claiming('srv-two', 2))
    await daemon.confirm()
    await written
    expect(daemon.view.find('default', '10.0.0.2').kind).toBe('unconfirmed')
    expect(await found({ keys, waitsForRules: true })).toEqual(daemon.content)
  })

  test('E5: what was gained while the journal was rewritten is unconfirmed at a start', async () => {
    const daemon = await start({ keys, waitsForRules: true })
    await daemon.put(claiming('srv-a', 1))
    const [creating, held] = [Promise.withResolvers<undefined>(), Promise.withResolvers<undefined>()]
    around = async (operation, _path, run) => {
      if (operation !== 'create') return run()
      creating.resolve(undefined)
      await held.promise
      return run()
    }
    await daemon.put(state(3, 1), true)
    await creating.promise
    await daemon.confirm()
    await daemon.put(claiming('srv-b', 2))
    held.resolve(undefined)
    await eventually(() => expect(counts.rewrites.written).toBe(2))
    expect(await found({ keys, waitsForRules: true })).toEqual(daemon.content)
    expect(daemon.view.find('default', '10.0.0.2').kind).toBe('unconfirmed')
  })

  test('H9: a report is appended, is kept by a rewrite, and goes with its instance', async () => {
    const daemon = await start({ keys })
    await Promise.all([daemon.put(state(1, 1)), daemon.put(state(2, 1))])
    await Promise.all([1, 2].map((seed) => daemon.report(idOf(seed), 'running')))
    expect(counts.rewrites).toEqual({ written: 1, failed: 0 })
    expect(await found({ keys })).toEqual(daemon.content)
    await daemon.put(state(1, 2), true)
    await daemon.persistence.stop()
    expect(counts.rewrites.written).toBe(2)
    expect(await found({ keys })).toEqual(daemon.content)
    const second = await start({ keys })
    await second.remove(idOf(2))
    await second.put(state(2, 3))
    expect([1, 2].map((seed) => second.reports.get(idOf(seed))?.byName.get('boot')?.text)).toEqual([
      'running',
      undefined,
    ])
    expect(await found({ keys })).toEqual(second.content)
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

/** Lets operations fail until the returned function is called. */
function whileFull(...operations: Operation[]): () => void {
  around = (name, _path, run) =>
    operations.includes(name) ? Promise.reject(Object.assign(new Error('no space left'), { code: 'ENOSPC' })) : run()
  return () => {
    around = asItIs
  }
}

describe('a disk that does not work', () => {
  test('E3: on a full disk changes are made, and a start serves nothing rather than an older state', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const works = whileFull('writeFile')
    await daemon.put(state(1, 2))
    expect(daemon.view.get(idOf(1))?.instance.revision).toBe(2)
    expect(readdirSync(directory)).toEqual([])
    await daemon.remove(idOf(1))
    expect(daemon.persistence.problem).toEqual({ kind: 'lost', reason: 'no space left' })
    expect(counts.writes.failed).toBe(1)
    works()
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.content)
    expect(problem(daemon)).toBeUndefined()
  })

  test('E3: a disk that hangs delays a change only for a time, and a start finds no older state', async () => {
    stopTime()
    const daemon = await start()
    await daemon.put(state(1, 1))
    const { begun, release } = hold((operation) => operation === 'datasync')
    const change = daemon.put(state(1, 2))
    await begun
    tooLate()
    await change
    await daemon.put(state(1, 3))
    expect(await found()).toEqual(NOTHING)
    expect(daemon.persistence.problem?.reason).toBe('no answer within 20000 ms')
    release()
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.content)
  })

  test('a rewrite that fails leaves the journal, which every change is appended to; it is tried again', async () => {
    const daemon = await start({ retryMs: 5 })
    await daemon.put(state(1, 1, Buffer.from('old')))
    const works = whileFull('create')
    await daemon.put(state(1, 2), true)
    await eventually(() => expect(counts.rewrites.failed).toBeGreaterThan(3))
    await daemon.put(state(2, 1))
    expect(await found()).toEqual(daemon.content)
    expect([problem(daemon), readdirSync(directory)]).toEqual(['not-rewritten', ['view.journal']])
    works()
    await eventually(() => expect(problem(daemon)).toBeUndefined())
    expect(await found()).toEqual(daemon.content)
    expect(readFileSync(path, 'latin1')).not.toContain('old')
  })

  test('a comparison that cannot be written leaves the journal, until the next change', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1))
    const works = whileFull('writeFile')
    daemon.persistence.noteResync(Date.now())
    await eventually(() => expect(problem(daemon)).toBe('not-rewritten'))
    expect(await found()).toEqual(daemon.content)
    await daemon.put(state(1, 2))
    expect(await found()).toEqual(NOTHING)
    works()
  })

  test('the journal stays small while one instance changes again and again, also if no rewrite succeeds', async () => {
    const daemon = await start()
    const bytes = () =>
      readdirSync(directory)
        .map((name) => statSync(join(directory, name), { throwIfNoEntry: false })?.size ?? 0)
        .reduce((sum, size) => sum + size, 0)
    const large = (revision: number) => state(1, revision, Buffer.alloc(300_000, revision))
    let most = 0
    for (let revision = 1; revision <= 40; revision++) {
      await daemon.put(large(revision))
      most = Math.max(most, bytes())
    }
    expect(counts.rewrites.written).toBeGreaterThan(3)
    expect(most).toBeLessThan(5 * 1024 * 1024)
    const works = whileFull('create')
    for (let revision = 41; revision <= 80; revision++) {
      await daemon.put(large(revision))
      expect(bytes()).toBeLessThan(7 * 1024 * 1024)
    }
    works()
    expect(problem(daemon)).toBe('lost')
    expect(await found()).toEqual(NOTHING)
  })

  test('a flood of changes beside a rewrite waits for it, and for one that has them', async () => {
    const daemon = await start()
    await daemon.put(state(1, 1, Buffer.from('old')))
    const { begun, release } = hold((operation) => operation === 'create')
    await daemon.put(state(1, 2), true)
    await begun
    await daemon.put(state(9, 1, Buffer.alloc(5 * 1024 * 1024, 1)))
    const last = daemon.put(state(2, 1))
    setImmediate(release)
    await last
    expect([counts.writes.failed, log]).toEqual([0, []])
    expect(await found()).toEqual(daemon.content)
  })

  test('a first rewrite that makes progress may take longer than a change waits for the disk', async () => {
    const first = await start()
    await Promise.all(Array.from({ length: 12 }, (_, n) => first.put(state(n + 1, 1, Buffer.alloc(300_000)))))
    await first.persistence.stop()
    stopTime()
    const daemon = await start()
    around = (operation, _file, run) => {
      if (operation === 'writeFile') vi.advanceTimersByTime(TIMEOUT_MS / 5)
      return run()
    }
    await daemon.put(state(1, 2))
    expect(problem(daemon)).toBeUndefined()
    expect(await found()).toEqual(daemon.content)
  })

  test('a disk that hangs has at most three operations, and delays no further change', async () => {
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
    const change = daemon.put(state(1, 2))
    await begun.promise
    tooLate()
    await eventually(() => expect(problem(daemon)).toBe('lost'))
    tooLate()
    await change
    for (let revision = 3; revision <= 60; revision++) {
      await daemon.put(state(1, revision), true)
      daemon.persistence.noteResync(Date.now())
      tooLate()
    }
    expect(waiting).toBeLessThanOrEqual(3)
    expect(problem(daemon)).toBe('not-deleted')
    around = asItIs
    held.resolve(undefined)
    await daemon.persistence.stop()
    expect(await found()).toEqual(daemon.content)
  })
})

describe('a journal that another program', () => {
  test.each([
    ['deletes', () => rmSync(path)],
    ['cuts off', () => truncateSync(path, statSync(path).size - 100)],
  ])('%s is found at the next comparison, and written again', async (_what, spoil) => {
    const daemon = await start({ retryMs: 500 })
    await daemon.put(state(1, 1))
    await daemon.put(state(1, 2))
    spoil()
    daemon.persistence.noteResync(Date.now())
    const reason = / was deleted or changed by another program$/
    await eventually(() => expect(daemon.persistence.problem?.reason).toMatch(reason))
    await eventually(() => expect(problem(daemon)).toBeUndefined())
    expect(await found()).toEqual(daemon.content)
  })

  test('E3: cuts off, and that a change was appended to, is not served', async () => {
    const daemon = await start()
    await daemon.put(claiming('srv-a', 1))
    await daemon.put(claiming('srv-b', 2))
    truncateSync(path, statSync(path).size - 100)
    await daemon.put(state(3, 1))
    expect(await found()).toEqual(NOTHING)
  })
})

test('a journal that is not served stays without a change, and is replaced by the first one', async () => {
  const first = await start()
  await first.put(state(1, 1, Buffer.from('S3CRET')))
  await first.persistence.stop()
  const { ino } = statSync(path)
  const wrong = await start({ owner: { ...OWNER, region: 'gb2' } })
  wrong.persistence.noteResync(Date.now())
  await wrong.persistence.stop()
  expect(statSync(path).ino).toBe(ino)
  expect(await found()).toEqual(first.content)
  const encrypted = await start({ keys: ENCRYPTED })
  await encrypted.put(state(2, 1))
  expect(readFileSync(path, 'latin1')).not.toMatch(/S3CRET|srv-/)
  expect(await found({ keys: ENCRYPTED })).toEqual(encrypted.content)
})

test('E3: a journal that was too old is not served after a change, though the clock is right again', async () => {
  const first = await start()
  await first.put(state(1, 1))
  const daemon = await Daemon.start({}, Date.now() + 10 * DAY_MS)
  expect(daemon.content).toEqual(NOTHING)
  whileFull('create')
  await daemon.put(state(2, 1))
  expect(existsSync(path)).toBe(false)
})

test('a journal under a former key is read, and written with the new one after a comparison', async () => {
  const first = await start()
  await first.put(state(1, 1))
  const keys: StateKeys = { cipher: undefined, macKeys: [Buffer.alloc(32, 2), ...PLAIN.macKeys] }
  const next = await start({ keys })
  expect(next.content).toEqual(first.content)
  next.persistence.noteResync(Date.now())
  await eventually(() => expect(counts.rewrites.written).toBe(2))
  expect(await found({ keys: { ...keys, macKeys: keys.macKeys.slice(0, 1) } })).toEqual(first.content)
})

test('the journal has the time of the last comparison, and whether there was one', async () => {
  const read = () =>
    restoreView({
      disk: DISK,
      path,
      stale,
      owner: OWNER,
      keys: PLAIN,
      maxAgeMs: DAY_MS,
      nowMs: Date.now(),
      log: logger,
    })
  const daemon = await start({ comparedAtMs: Date.now() - 7_200_000 })
  await daemon.put(state(1, 1))
  expect(await read()).toMatchObject({ isComplete: false, ageMs: expect.closeTo(7_200_000, -4) as number })
  daemon.persistence.noteResync(Date.now() - 3_600_000)
  await daemon.persistence.stop()
  expect(await read()).toMatchObject({ isComplete: true, ageMs: expect.closeTo(3_600_000, -4) as number })
  expect(counts.rewrites.written).toBe(1)
})

test('changes that wait together are one write', async () => {
  const daemon = await start()
  await daemon.put(state(1, 1))
  await Promise.all(Array.from({ length: 200 }, (_, i) => daemon.put(state(2 + (i % 20), 1 + i))))
  expect(counts.writes.written).toBeLessThan(10)
  expect(await found()).toEqual(daemon.content)
})
