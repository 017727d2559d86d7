import { pino } from 'pino'
import { expect, test } from 'vitest'
import type { AssemblyFault } from '../../../src/view/validate.ts'
import { RecordHealth } from '../../../src/view/record-health.ts'
import { View } from '../../../src/view/view.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const FAULT: AssemblyFault = { reason: 'record', faults: [{ path: '/fqdn', message: 'must be a domain name' }] }
const REJECTED: AssemblyFault = { reason: 'rejected', faults: [{ path: '', message: 'is not authentic' }] }

function told() {
  const lines: Record<string, unknown>[] = []
  const counted: string[] = []
  const view = new View({}, () => 0)
  const log = pino({ level: 'debug' }, { write: (line: string) => { lines.push(JSON.parse(line) as Record<string, unknown>) } })
  const one = new RecordHealth(view, { inc: ({ reason }) => { counted.push(reason) } }, log)
  const serve = (id: string, address: string, revision = 1) => {
    view.replace({ instance: parsed(anInstance({ id, revision, interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [address] }] })), userData: null, digest: `d${String(revision)}` })
  }
  /** What was logged since the last time: level and message. */
  const logged = () => lines.splice(0).map(({ level, msg }) => `${String(level)} ${String(msg)}`)
  return { told: one, view, counted, serve, lines, logged }
}

test('a faulty record is reported once for each state of it, and counted', () => {
  const { told: one, counted, lines, serve } = told()
  for (let i = 0; i < 2; i++) one.fault('srv-a', 'd1', FAULT)
  serve('srv-a', '10.0.0.2', 7)
  one.fault('srv-a', 'd2', FAULT)
  one.fault('srv-a', 'd2', REJECTED)
  expect(lines).toMatchObject([
    { level: 40, instance: 'srv-a', reason: 'record', faults: FAULT.faults, servedRevision: null, msg: 'faulty record: this instance is not served' },
    { level: 40, reason: 'record', servedRevision: 7, msg: 'faulty record: the last good one is still served' }, { level: 40, reason: 'rejected' },
  ])
  expect([counted, one.faulty, one.faultOf('srv-a')?.reason, one.faultOf('srv-b')]).toEqual([['record', 'record', 'rejected'], 1, 'rejected', undefined])
  one.good('srv-a')
  expect([one.faulty, one.faultOf('srv-a')]).toEqual([0, undefined])
  one.fault('srv-a', 'd2', REJECTED)
  expect(lines).toHaveLength(4)
})

test('of many faulty records five per reason are logged between two resyncs, one line counts the rest', () => {
  const { told: one, lines, logged } = told()
  for (let i = 0; i < 8; i++) one.fault(`srv-${String(i)}`, 'd1', FAULT)
  one.fault('srv-x', 'd1', REJECTED)
  one.fault('srv-4', 'd2', FAULT) // one of those that were logged may be logged again
  expect(lines.map(({ level }) => level)).toEqual([40, 40, 40, 40, 40, 20, 20, 20, 40, 40])
  logged()
  one.resynced([...Array(100).keys()].map((i) => `srv-${String(i)}`))
  expect(lines).toMatchObject([{ level: 40, notLogged: 3, faulty: 9 }])
  one.resynced([])
  expect(lines).toHaveLength(1)
  one.fault('srv-7', 'd2', FAULT)
  expect(lines[1]).toMatchObject({ level: 40, instance: 'srv-7' })
})

test('a store without a usable record is reported once with its cause, and once when it recovers', () => {
  const { told: one, lines, logged } = told()
  for (const id of ['srv-a', 'srv-b']) one.fault(id, 'd1', REJECTED)
  logged()
  for (let i = 0; i < 2; i++) one.resynced(['srv-a', 'srv-b'])
  expect(lines).toMatchObject([{ level: 50, reasons: { rejected: 2 }, example: { instance: 'srv-a', faults: REJECTED.faults }, instances: 0 }])
  expect(one.problem?.cause).toBeDefined()
  for (const id of ['srv-a', 'srv-b']) one.good(id)
  logged()
  for (let i = 0; i < 2; i++) one.resynced(['srv-a', 'srv-b'])
  expect([logged(), one.problem]).toEqual([['30 the records of the store can be used again'], undefined])
})

test('invariant 8: an instance missing from the store is reported once, with the command to remove it', () => {
  const { told: one, serve, lines } = told()
  serve('srv-a', '10.0.0.2', 7)
  for (let i = 0; i < 2; i++) one.absent('srv-a')
  expect(lines).toMatchObject([{ level: 40, instance: 'srv-a' }])
  expect([lines[0]!['msg'], one.unconfirmed]).toEqual([expect.stringContaining('run imdsctl remove srv-a --revision 7'), 1])
  one.present('srv-a')
  expect(one.unconfirmed).toBe(0)
  one.absent('srv-b')
  expect(lines[1]!['msg']).toContain('imdsctl remove srv-b --revision 1')
})

test('an empty store is reported once until it holds something; all that is served is unconfirmed', () => {
  const { told: one, serve, lines } = told()
  serve('srv-a', '10.0.0.2')
  serve('srv-b', '10.0.0.3')
  for (let i = 0; i < 2; i++) one.allAbsent('redis://x')
  expect(lines).toMatchObject([{ level: 40, store: 'redis://x', instances: 2 }])
  expect(one.unconfirmed).toBe(2)
  one.initialised()
  one.allAbsent('redis://x')
  expect(lines).toHaveLength(2)
})

test('a lost store is reported, a new reason since then at info, a repeated one not at all', () => {
  const { told: one, logged } = told()
  one.lost('redis://x', 'refused', false)
  one.lost('redis://x', 'refused', false)
  one.lost('redis://x', 'loading', false)
  expect(logged()).toEqual(['40 the store cannot be used; guests are served from memory, trying again', '20 the store still cannot be used', '30 the store still cannot be used'])
  one.connected('redis://x')
  one.lost('redis://x', 'cut', true)
  one.lost('redis://x', 'refused', false)
  expect(logged()).toEqual(['30 the store is connected', '40 the store is lost; guests are served from memory', '30 the store still cannot be used'])
})

test('a fault is dropped when neither the index nor the view has its id', () => {
  const { told: one, serve } = told()
  serve('srv-served', '10.0.0.2')
  for (const id of ['srv-served', 'srv-named', 'srv-gone']) one.fault(id, 'd1', FAULT)
  one.keepFaultsOf(new Set(['srv-named']))
  expect(['srv-served', 'srv-named', 'srv-gone'].map((id) => one.faultOf(id) !== undefined)).toEqual([true, true, false])
})

test('invariant 7: a contested address is reported once, and again when it is contested anew', () => {
  const { told: one, view, serve, lines } = told()
  serve('srv-a', '10.0.0.2')
  one.contested()
  expect(lines).toEqual([])
  for (let i = 0; i < 2; i++) {
    serve('srv-b', '10.0.0.2')
    one.contested()
    one.contested()
    view.remove('srv-b')
    one.contested()
  }
  expect(lines).toMatchObject([1, 2].map(() => ({ level: 40, address: 'default 10.0.0.2', instances: ['srv-a', 'srv-b'] })))
})
