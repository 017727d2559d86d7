import { expect, test } from 'vitest'
import type { InvalidRecord } from '../../../../src/imdsd/view/validate.ts'
import { RecordHealth } from '../../../../src/imdsd/view/record-health.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'

const FAULT: InvalidRecord = { reason: 'record', faults: [{ path: '/fqdn', message: 'must be a domain name' }] }
const REJECTED: InvalidRecord = { reason: 'rejected', faults: [{ path: '', message: 'is not authentic' }] }

/** A RecordHealth, what it counted, and what it logged. */
function aRecordHealth() {
  const lines: Record<string, unknown>[] = []
  const counted: string[] = []
  const view = new View({}, () => 0, false)
  const log = collectLog(() => lines, 'debug')
  const health = new RecordHealth(
    view,
    {
      inc: ({ reason }) => counted.push(reason),
    },
    log,
  )
  const serve = (id: string, address: string, revision = 1) => {
    view.replace({
      instance: parsed(
        anInstance({
          id,
          revision,
          interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] }],
        }),
      ),
      userData: undefined,
      digest: `d${revision}`,
      order: 1,
      lost: [],
    })
  }
  /** What was logged since the last time: level and message. */
  const logged = () => lines.splice(0).map(({ level, msg }) => `${String(level)} ${String(msg)}`)
  return { health, view, counted, serve, lines, logged }
}

test('a faulty record is reported once for each state of it, and counted', () => {
  const { health, counted, lines, serve } = aRecordHealth()
  for (let i = 0; i < 2; i++) health.noteFault('srv-a', 'd1', FAULT)
  serve('srv-a', '10.0.0.2', 7)
  health.noteFault('srv-a', 'd2', FAULT)
  health.noteFault('srv-a', 'd2', REJECTED)
  expect(lines).toMatchObject([
    {
      level: 40,
      instance: 'srv-a',
      reason: 'record',
      faults: FAULT.faults,
      msg: 'faulty record: this instance is not served',
    },
    { level: 40, reason: 'record', servedRevision: 7, msg: 'faulty record: the last good one is still served' },
    { level: 40, reason: 'rejected' },
  ])
  expect(lines[0]).not.toHaveProperty('servedRevision')
  expect([counted, health.faulty, health.faultOf('srv-a')?.reason, health.faultOf('srv-b')]).toEqual([
    ['record', 'record', 'rejected'],
    1,
    'rejected',
    undefined,
  ])
  health.noteGood('srv-a')
  expect([health.faulty, health.faultOf('srv-a')]).toEqual([0, undefined])
  health.noteFault('srv-a', 'd2', REJECTED)
  expect(lines).toHaveLength(4)
})

test('all faulty records are named, also those of instances that are not served', () => {
  const { health, serve } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  for (const id of ['srv-a', 'srv-b']) health.noteFault(id, 'd1', FAULT)
  expect([...health.faults()].map(([id, { reason }]) => [id, reason])).toEqual([
    ['srv-a', 'record'],
    ['srv-b', 'record'],
  ])
})

test('of many faulty records five per reason are logged between two resyncs, one line counts the rest', () => {
  const { health, lines, logged } = aRecordHealth()
  for (let i = 0; i < 8; i++) health.noteFault(`srv-${i}`, 'd1', FAULT)
  health.noteFault('srv-x', 'd1', REJECTED)
  health.noteFault('srv-4', 'd2', FAULT) // one of those that were logged may be logged again
  expect(lines.map(({ level }) => level)).toEqual([40, 40, 40, 40, 40, 20, 20, 20, 40, 40])
  logged()
  health.completeResync([...Array(100).keys()].map((i) => `srv-${i}`))
  expect(lines).toMatchObject([{ level: 40, notLogged: 3, faulty: 9 }])
  health.completeResync([])
  expect(lines).toHaveLength(1)
  health.noteFault('srv-7', 'd2', FAULT)
  expect(lines[1]).toMatchObject({ level: 40, instance: 'srv-7' })
})

test('a store without a usable record is reported once with its cause, and once when it recovers', () => {
  const { health, lines, logged } = aRecordHealth()
  for (const id of ['srv-a', 'srv-b']) health.noteFault(id, 'd1', REJECTED)
  logged()
  for (let i = 0; i < 2; i++) health.completeResync(['srv-a', 'srv-b'])
  expect(lines).toMatchObject([
    { level: 50, reasons: { rejected: 2 }, example: { instance: 'srv-a', faults: REJECTED.faults }, instances: 0 },
  ])
  expect(health.problem?.cause).toBeDefined()
  for (const id of ['srv-a', 'srv-b']) health.noteGood(id)
  logged()
  for (let i = 0; i < 2; i++) health.completeResync(['srv-a', 'srv-b'])
  expect([logged(), health.problem]).toEqual([['30 the records of the store can be used again'], undefined])
})

test('invariant 8: an instance missing from the store is reported once, with the command to remove it', () => {
  const { health, serve, lines } = aRecordHealth()
  serve('srv-a', '10.0.0.2', 7)
  for (let i = 0; i < 2; i++) health.reportUnconfirmed('srv-a')
  expect(lines).toMatchObject([{ level: 40, instance: 'srv-a' }])
  expect([lines[0]!['msg'], health.unconfirmed]).toEqual([
    expect.stringContaining('run imdsctl remove srv-a --revision 7'),
    1,
  ])
  health.notePresent('srv-a')
  expect(health.unconfirmed).toBe(0)
  health.reportUnconfirmed('srv-b')
  expect(lines[1]!['msg']).toContain('imdsctl remove srv-b --revision 1')
})

test('an empty store is reported once until it has something; all that is served is unconfirmed', () => {
  const { health, serve, lines } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  serve('srv-b', '10.0.0.3')
  for (let i = 0; i < 2; i++) health.reportAllUnconfirmed('redis://x')
  expect(lines).toMatchObject([{ level: 40, store: 'redis://x', instances: 2 }])
  expect([health.unconfirmed, health.hint]).toEqual([
    2,
    'the store has nothing of this region, so none of the served instances (2) is confirmed: publish them again, or remove them',
  ])
  health.noteInitialised()
  expect(health.hint).toBeUndefined()
  lines.splice(1)
  health.reportUnconfirmed('srv-a')
  expect([health.unconfirmed, lines[1]]).toMatchObject([1, { level: 40, instance: 'srv-a' }])
  health.reportAllUnconfirmed('redis://x')
  expect(lines).toHaveLength(3)
})

test('a hypervisor that no record names has a hint until a record names it, not only until the next resync', () => {
  const { health, serve } = aRecordHealth()
  health.reportUnnamed('hv1')
  expect(health.hint).toMatch(/^no record names hv1: compare IMDS_HYPERVISOR with/)
  serve('srv-a', '10.0.0.2')
  expect(health.hint).toBeUndefined()
  health.reportUnnamed('hv1')
  health.reportUnconfirmed('srv-a')
  health.reportUnnamed('hv1')
  expect(health.hint).toMatch(/^no record names hv1, so none of the served instances \(1\) is confirmed/)
  health.notePresent('srv-a')
  expect(health.hint).toBeUndefined()
})

test('a record that was faulty, and that the store no longer has, is not faulty', () => {
  const { health, serve } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  health.noteFault('srv-a', 'd2', FAULT)
  health.reportUnconfirmed('srv-a')
  expect([health.faulty, health.faultOf('srv-a'), health.unconfirmed]).toEqual([0, undefined, 1])
})

test('a lost store is reported, a new reason since then at info, a repeated one not at all', () => {
  const { health, logged } = aRecordHealth()
  health.reportDisconnected('redis://x', 'refused', false)
  health.reportDisconnected('redis://x', 'refused', false)
  health.reportDisconnected('redis://x', 'loading', false)
  expect(logged()).toEqual([
    '40 the store cannot be used; guests are served from memory, trying again',
    '20 the store still cannot be used',
    '30 the store still cannot be used',
  ])
  health.reportConnected('redis://x')
  health.reportDisconnected('redis://x', 'cut', true)
  health.reportDisconnected('redis://x', 'refused', false)
  expect(logged()).toEqual([
    '30 the store is connected',
    '40 the store is lost; guests are served from memory',
    '30 the store still cannot be used',
  ])
})

test('a fault is dropped when neither the index nor the view has its id', () => {
  const { health, serve } = aRecordHealth()
  serve('srv-served', '10.0.0.2')
  for (const id of ['srv-served', 'srv-named', 'srv-gone']) health.noteFault(id, 'd1', FAULT)
  health.keepFaultsOf(new Set(['srv-named']))
  expect(['srv-served', 'srv-named', 'srv-gone'].map((id) => health.faultOf(id) !== undefined)).toEqual([
    true,
    true,
    false,
  ])
})

test('invariant 7: a contested address is reported once, and again when it is contested anew', () => {
  const { health, view, serve, lines } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  health.reportContested()
  expect(lines).toEqual([])
  for (let i = 0; i < 2; i++) {
    serve('srv-b', '10.0.0.2')
    health.reportContested()
    health.reportContested()
    view.remove('srv-b', 1)
    health.reportContested()
  }
  expect(lines).toMatchObject(
    [1, 2].map(() => ({ level: 40, address: 'default 10.0.0.2', instances: ['srv-a', 'srv-b'] })),
  )
})

test('E3: a store that has lost changes is reported once, until it has none that are earlier', () => {
  const { health, lines, serve } = aRecordHealth()
  const states = () => [health.isStoreBehind, health.hasLaterStates]
  serve('srv-a', '10.0.0.2')
  for (const id of ['srv-a', 'srv-a', 'srv-gone']) health.reportBehind(id)
  expect(states()).toEqual([true, true])
  health.noteMark(true) // set by this daemon, or another one
  expect(lines).toMatchObject([{ level: 40, code: 'store-behind', instance: 'srv-a' }])
  health.noteGood('srv-a')
  health.keepFaultsOf(new Set())
  expect(states()).toEqual([true, false])
  health.noteMark(false)
  expect(states()).toEqual([false, false])
  health.noteMark(true)
  expect(lines).toMatchObject([{ instance: 'srv-a' }, { level: 40, code: 'store-behind' }])
})

test('E1: unusable addresses are reported once for each record, the first five in full', () => {
  const { health, view, lines } = aRecordHealth()
  const serve = (id: string, address: string) => {
    const record = anInstance({
      id,
      interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv6Addresses: [address] }],
    })
    view.replace({ instance: parsed(record), userData: undefined, digest: 'd1', order: 1, lost: [] })
  }
  serve('srv-a', 'fe80::a')
  serve('srv-b', 'fd00::b')
  for (let i = 0; i < 2; i++) health.reportUnusableAddresses()
  expect(lines).toMatchObject([
    { level: 40, instance: 'srv-a', addresses: [{ network: 'default', range: 'fe80::a' }], instances: 1 },
  ])
  for (let i = 0; i < 9; i++) serve(`srv-n${i}`, `fe80::${i + 1}`)
  health.reportUnusableAddresses()
  expect(lines.splice(1).map(({ instances }) => instances)).toEqual([9, 9, 9, 9, 9])
  serve('srv-a', 'fd00::a')
  health.reportUnusableAddresses()
  serve('srv-a', 'fe80::a')
  health.reportUnusableAddresses()
  expect(lines.splice(1)).toMatchObject([{ instance: 'srv-a' }])
})
