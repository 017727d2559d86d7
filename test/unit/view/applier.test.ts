import { pino } from 'pino'
import { expect, test } from 'vitest'
import type { Loaded } from '../../../src/store/source.ts'
import { Applier } from '../../../src/view/applier.ts'
import type { Origin } from '../../../src/view/plan.ts'
import { RecordHealth } from '../../../src/view/record-health.ts'
import { View } from '../../../src/view/view.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const ID = 'srv-abcde'
const NONE = { inc: () => { /* not counted */ } }

function applying() {
  const log: { level: number, msg: string }[] = []
  const logger = pino({ level: 'debug' }, { write: (line: string) => { log.push(JSON.parse(line) as typeof log[number]) } })
  const view = new View({}, () => 0)
  const health = new RecordHealth(view, NONE, logger)
  const counts = { changed: 0, back: 0 }
  const applier = new Applier({
    view, health, hypervisor: 'hv1', userDataMaxBytes: 16_384, changed: () => { counts.changed += 1 }, revisionsBack: { inc: () => { counts.back += 1 } }, log: logger,
  })
  const put = (change: { revision?: number } & Record<string, unknown> = {}, digest = `d${String(change.revision ?? 1)}`, origin: Origin = 'index') => {
    const loaded: Loaded = { kind: 'record', id: ID, digest, document: anInstance(change), userData: undefined, userDataSha256: undefined }
    applier.apply(loaded, origin)
  }
  return { applier, view, health, counts, put, log, messages: () => log.splice(0).map(({ level, msg }) => `${String(level)} ${msg}`) }
}

test('a new record enters the view with its digest, which a resync need not read again', () => {
  const { applier, view, counts, put } = applying()
  put()
  expect([view.get(ID)?.instance.revision, counts.changed, applier.isCurrent(ID, 'd1'), applier.isCurrent(ID, 'd2'), applier.isCurrent('srv-b', 'd1')]).toEqual([1, 1, true, false, false])
})

test('a record that the view has already changes nothing', () => {
  const { view, counts, put } = applying()
  put()
  const served = view.get(ID)
  put()
  expect([view.get(ID) === served, counts.changed]).toEqual([true, 1])
})

test('an older revision is taken as it is, and is counted and logged', () => {
  const { view, counts, put, messages } = applying()
  put({ revision: 7 })
  messages()
  put({ revision: 3 })
  expect([view.get(ID)?.instance.revision, counts.back, messages()[0]]).toEqual([3, 1, '40 the store went back to an older revision, which is served now'])
})

test('invariant 3: a faulty record leaves the last good one in place, until a good one replaces it', () => {
  const { view, health, counts, put } = applying()
  put()
  put({ revision: 2, fqdn: '' })
  expect([view.get(ID)?.instance.revision, health.faulty, counts.changed]).toEqual([1, 1, 1])
  put({ revision: 3 })
  expect([view.get(ID)?.instance.revision, health.faulty]).toEqual([3, 0])
})

test('invariant 8: absence is not removal; a tombstone is', () => {
  const { applier, view, health, counts, put } = applying()
  put()
  applier.apply({ kind: 'absent', id: ID }, 'index')
  expect([view.size, health.unconfirmed]).toEqual([1, 1])
  applier.apply({ kind: 'removed', id: ID }, 'notice')
  expect([view.size, health.unconfirmed, counts.changed]).toEqual([0, 0, 2])
})

test('an instance that moves to other hypervisors leaves the view, with a line that names them', () => {
  const { view, put, log, messages } = applying()
  put()
  messages()
  put({ revision: 2, hypervisors: ['hv2'] })
  expect(view.size).toBe(0)
  expect(log).toMatchObject([{ level: 30, revision: 2, hypervisors: ['hv2'], msg: 'instance left this hypervisor: its record names others' }])
})

test('a record of another hypervisor that the index names is read again only if it changes', () => {
  const { applier, put } = applying()
  put({ hypervisors: ['hv2'] }, 'd1')
  expect([applier.isCurrent(ID, 'd1'), applier.isCurrent(ID, 'd2')]).toEqual([true, false])
  applier.forgetAllBut(new Set([ID]))
  expect(applier.isCurrent(ID, 'd1')).toBe(true)
  applier.forgetAllBut(new Set())
  expect(applier.isCurrent(ID, 'd1')).toBe(false)
})

test('nothing is remembered of a record of another hypervisor that a peer or a notice led to', () => {
  for (const origin of ['peer', 'notice'] as const) {
    const { applier, view, counts, put } = applying()
    put({ hypervisors: ['hv2'] }, 'd1', origin)
    expect([applier.isCurrent(ID, 'd1'), view.size, counts.changed]).toEqual([false, 0, 0])
  }
})

test('an unexpected error affects only the instance of its record: a fault, logged with its cause', () => {
  const { applier, view, health, put, log } = applying()
  put()
  const broken = { kind: 'record', id: 'srv-b', digest: 'd1', get document() { throw new Error('a bug') }, userData: undefined, userDataSha256: undefined } as unknown as Loaded
  expect(() => { applier.apply(broken, 'index') }).not.toThrow()
  expect(log.filter(({ level }) => level === 50)).toMatchObject([{ err: { message: 'a bug' }, instance: 'srv-b', msg: 'a record could not be processed' }])
  expect([health.faultOf('srv-b')?.reason, [...view.ids()]]).toEqual(['record', [ID]])
})
