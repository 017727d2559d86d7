import { expect, test } from 'vitest'
import type { Loaded } from '../../../../src/store/source.ts'
import { sha256 } from '../../../../src/metadata/user-data.ts'
import { Applier } from '../../../../src/imdsd/view/applier.ts'
import type { ChangeLog } from '../../../../src/imdsd/view/change.ts'
import type { Origin } from '../../../../src/imdsd/view/plan.ts'
import { RecordHealth } from '../../../../src/imdsd/view/record-health.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { NO_CHANGE_LOG } from '../../../support/fixtures/change-log.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'

const ID = 'srv-abcde'
const NOW_MS = Date.parse('2026-11-20T12:00:00Z')
const NONE = {
  inc: () => undefined,
}

function applying(changeLog: ChangeLog = NO_CHANGE_LOG) {
  const log: { level: number; msg: string }[] = []
  const logger = collectLog(() => log, 'debug')
  const view = new View({}, () => 0, false)
  const health = new RecordHealth(view, NONE, logger)
  const counts = { changed: 0 }
  view.onChange(() => (counts.changed += 1))
  const applier = new Applier({
    view,
    changeLog,
    health,
    hypervisor: 'hv1',
    userDataMaxBytes: 16_384,
    wall: () => NOW_MS,
    log: logger,
  })
  const put = (
    change: { revision?: number } & Record<string, unknown> = {},
    digest = `d${change.revision ?? 1}`,
    origin: Origin = 'index',
    userData?: Buffer,
    order?: number,
  ) => {
    const loaded: Loaded = {
      kind: 'record',
      id: ID,
      digest,
      order,
      document: anInstance(change),
      userData,
      userDataSha256: userData && sha256(userData),
    }
    void applier.apply(loaded, origin, () => undefined)
  }
  return {
    applier,
    view,
    health,
    counts,
    put,
    log,
    messages: () => log.splice(0).map(({ level, msg }) => `${level} ${msg}`),
  }
}

test('a new record enters the view with its digest, which a resync need not read again', () => {
  const { applier, view, counts, put } = applying()
  put()
  expect([
    view.get(ID)?.instance.revision,
    counts.changed,
    applier.isCurrent(ID, 'd1'),
    applier.isCurrent(ID, 'd2'),
    applier.isCurrent('srv-b', 'd1'),
  ]).toEqual([1, 1, true, false, false])
})

test('a record that the view has already changes nothing', () => {
  const { view, counts, put } = applying()
  put()
  const served = view.get(ID)
  put()
  expect([view.get(ID) === served, counts.changed]).toEqual([true, 1])
})

test('E3: an earlier state than the view has seen is not applied, of a record, a seal or a removal', () => {
  const { applier, view, health, put } = applying()
  const at = (order: number, change: { revision?: number } & Record<string, unknown> = {}) =>
    put(change, `d${order}`, 'index', undefined, order)
  const removedAt = (order: number) => applier.apply({ kind: 'removed', id: ID, order }, 'notice', () => undefined)
  const sealedAt = '2026-11-20T12:00:00Z'
  at(5, { revision: 7, sealedAt })
  at(4, { revision: 6 })
  void removedAt(3)
  expect([view.get(ID)?.instance.sealedAt, health.hasLaterStates]).toEqual([sealedAt, true])
  at(6, { revision: 3 }) // the order decides, not the revision
  expect([view.get(ID)?.instance.revision, health.hasLaterStates]).toEqual([3, false])
  void removedAt(7)
  at(6, { revision: 3 })
  at(7, { revision: 9 })
  expect([view.size, health.hasLaterStates]).toEqual([0, true])
  at(8, { revision: 9 })
  expect([view.size, health.hasLaterStates]).toEqual([1, false])
})

test('what a lookup of an unknown peer finds on other hypervisors is not remembered: guests choose it', () => {
  const { view, put } = applying()
  put({ hypervisors: ['hv2'] }, 'd', 'peer', undefined, 5)
  expect(view.seen(ID)).toBe(0)
  put({ hypervisors: ['hv2'] }, 'd', 'notice', undefined, 5)
  expect(view.seen(ID)).toBe(5)
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
  void applier.apply({ kind: 'absent', id: ID }, 'index', () => undefined)
  expect([view.size, health.absent]).toEqual([1, 1])
  void applier.apply({ kind: 'removed', id: ID }, 'notice', () => undefined)
  expect([view.size, health.absent, counts.changed]).toEqual([0, 0, 2])
})

test('a record that is there again and faulty reports that the store has the instance, as a good one does', () => {
  const { health, put } = applying()
  put()
  health.noteAbsent(ID)
  expect(health.isAbsent(ID)).toBe(true)
  put({ revision: 2, fqdn: 'no name' })
  expect(health.isAbsent(ID)).toBe(false)
})

test('an instance that moves to other hypervisors leaves the view, with a line that names them', () => {
  const { view, put, log, messages } = applying()
  put()
  messages()
  put({ revision: 2, hypervisors: ['hv2'] })
  expect(view.size).toBe(0)
  expect(log).toMatchObject([
    { level: 30, revision: 2, hypervisors: ['hv2'], msg: 'instance left this hypervisor: its record names others' },
  ])
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

test('an unexpected error affects only the instance of its record: a fault, logged with its cause', async () => {
  const { applier, view, health, put, log } = applying()
  put()
  const broken = {
    kind: 'record',
    id: 'srv-b',
    digest: 'd1',
    get document() {
      throw new Error('a bug')
    },
    userData: undefined,
    userDataSha256: undefined,
  } as unknown as Loaded
  let isDone = false
  await applier.apply(broken, 'index', () => {
    isDone = true
  })
  expect(isDone).toBe(true)
  expect(log.filter(({ level }) => level === 50)).toMatchObject([
    { err: { message: 'a bug' }, instance: 'srv-b', msg: 'a record could not be processed' },
  ])
  expect([health.faultOf('srv-b')?.reason, [...view.ids()]]).toEqual(['record', [ID]])
})

test('E3: a change is recorded before the view changes, with what takes user-data away', async () => {
  const recorded: string[] = []
  const makes: (() => void)[] = []
  const { view, put, applier } = applying({
    append: async (change, takesUserData, make) => {
      recorded.push(`${change.kind}${takesUserData ? ' takes user-data' : ''}`)
      makes.push(make)
      await Promise.resolve()
    },
    allApplied: () => Promise.resolve(),
  })
  const withUserData = (text: string, revision: number) => {
    const userData = Buffer.from(text)
    put(
      { revision, userData: { size: userData.length, sha256: sha256(userData) } },
      text + String(revision),
      'index',
      userData,
    )
  }
  withUserData('one', 1)
  expect([recorded.splice(0), view.size]).toEqual([['replace'], 0])
  makes.splice(0)[0]!()
  expect(view.get(ID)?.instance.revision).toBe(1)
  for (const [change, expected] of [
    [() => withUserData('one', 2), 'replace'],
    [() => withUserData('two', 3), 'replace takes user-data'],
    [() => put({ revision: 4 }), 'replace takes user-data'],
    [() => put({ revision: 5, options: { httpTokens: 'required' } }), 'replace'],
    [() => put({ revision: 6, hypervisors: ['hv2'] }), 'remove takes user-data'],
  ] as const) {
    change()
    expect(recorded.splice(0)).toEqual([expected])
    makes.splice(0)[0]!()
  }
  let isDone = false
  await applier.apply({ kind: 'removed', id: ID }, 'notice', () => {
    isDone = true
  })
  expect([recorded, isDone, view.size]).toEqual([[], true, 0])
})

test('invariant 7: an instance that was published later takes an address for good, and a line names both', () => {
  const { view, put, messages } = applying()
  const other = parsed(anInstance({ id: 'srv-other' }))
  const owner = () => {
    const found = view.find('default', '10.0.0.2')
    return found.kind === 'owned' ? found.owner.instance.id : found.kind
  }
  view.replace({ instance: other, userData: undefined, digest: 'other', order: 5, lost: [] })
  put({}, 'd6', 'notice', undefined, 6)
  expect([owner(), view.get('srv-other')?.lost]).toEqual([ID, [{ network: 'default', range: '10.0.0.2', order: 6 }]])
  expect(messages()[0]).toMatch(/^30 instances have lost addresses to a later one/)
})
