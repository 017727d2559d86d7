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
  return { health, view, counted, serve, lines }
}

test('a faulty record is reported once for each state of it, and counted', () => {
  const { health, counted, lines, serve } = aRecordHealth()
  for (let i = 0; i < 2; i++) health.noteFault('srv-a', 'd1', FAULT)
  serve('srv-a', '10.0.0.2', 7)
  health.noteFault('srv-a', 'd2', FAULT)
  health.noteFault('srv-a', 'd2', REJECTED)
  expect(lines).toMatchObject([
    {
      level: 30,
      instance: 'srv-a',
      reason: 'record',
      faults: FAULT.faults,
      msg: 'faulty record: this instance is not served',
    },
    { level: 30, reason: 'record', servedRevision: 7, msg: 'faulty record: the last good one is still served' },
    { level: 30, reason: 'rejected' },
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

test('of many faulty records five per reason are logged between two resyncs', () => {
  const { health, lines } = aRecordHealth()
  for (let i = 0; i < 8; i++) health.noteFault(`srv-${i}`, 'd1', FAULT)
  health.noteFault('srv-x', 'd1', REJECTED)
  health.noteFault('srv-4', 'd2', FAULT) // one of those that were logged may be logged again
  expect(lines.map(({ level }) => level)).toEqual([30, 30, 30, 30, 30, 20, 20, 20, 30, 30])
  health.completeResync([])
  health.noteFault('srv-7', 'd2', FAULT)
  expect(lines.at(-1)).toMatchObject({ level: 30, instance: 'srv-7' })
})

test('a store without a usable record has a problem with its cause, until it recovers', () => {
  const { health } = aRecordHealth()
  for (const id of ['srv-a', 'srv-b']) health.noteFault(id, 'd1', REJECTED)
  health.completeResync(['srv-a', 'srv-b'])
  expect(health.problem).toMatchObject({ reasons: { rejected: 2 }, cause: expect.any(String) as string })
  for (const id of ['srv-a', 'srv-b']) health.noteGood(id)
  health.completeResync(['srv-a', 'srv-b'])
  expect(health.problem).toBeUndefined()
})

test('invariant 8: an instance missing from the store is absent, and all are if the store is empty', () => {
  const { health, serve } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  serve('srv-b', '10.0.0.3')
  health.noteAbsent('srv-a')
  const states = () => [health.absent, health.isAbsent('srv-a'), health.isAbsent('srv-b')]
  expect(states()).toEqual([1, true, false])
  health.noteStore(true)
  expect(states()).toEqual([2, true, true])
  health.noteStore(false)
  health.notePresent('srv-a')
  expect(states()).toEqual([0, false, false])
})

test('a record that was faulty, and that the store no longer has, is not faulty', () => {
  const { health, serve } = aRecordHealth()
  serve('srv-a', '10.0.0.2')
  health.noteFault('srv-a', 'd2', FAULT)
  health.noteAbsent('srv-a')
  expect([health.faulty, health.faultOf('srv-a'), health.absent]).toEqual([0, undefined, 1])
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

test('E3: a store has lost changes until it has none that are earlier, and nobody says so', () => {
  const { health, serve } = aRecordHealth()
  const states = () => [health.isStoreBehind, health.hasLaterStates]
  serve('srv-a', '10.0.0.2')
  for (const id of ['srv-a', 'srv-a', 'srv-gone']) health.noteBehind(id)
  expect(states()).toEqual([true, true])
  health.noteMark(true) // set by this daemon, or another one
  health.noteGood('srv-a')
  health.keepFaultsOf(new Set())
  expect(states()).toEqual([true, false])
  health.noteMark(false)
  expect(states()).toEqual([false, false])
})
