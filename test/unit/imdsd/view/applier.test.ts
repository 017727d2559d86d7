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
const NONE = {
  inc: () => undefined,
}

function applying(changeLog: ChangeLog = NO_CHANGE_LOG) {
  const log: { level: number; msg: string }[] = []
  const logger = collectLog(() => log, 'debug')
  const view = new View({}, () => 0)
  const health = new RecordHealth(view, NONE, logger)
  const counts = { changed: 0, back: 0 }
  /** What the index names. */
  const named = new Set([ID])
  const applier = new Applier({
    view,
    changeLog,
    health,
    isNamed: (id) => named.has(id),
    hypervisor: 'hv1',
    userDataMaxBytes: 16_384,
    onChange: () => {
      counts.changed += 1
    },
    revisionsBack: {
      inc: () => {
        counts.back += 1
      },
    },
    log: logger,
  })
  const put = (
    change: { revision?: number } & Record<string, unknown> = {},
    digest = `d${change.revision ?? 1}`,
    origin: Origin = 'index',
    userData?: Buffer,
  ) => {
    const loaded: Loaded = {
      kind: 'record',
      id: ID,
      digest,
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
    named,
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

test('an older revision is taken as it is, and is counted and logged', () => {
  const { view, counts, put, messages } = applying()
  put({ revision: 7 })
  messages()
  put({ revision: 3 })
  expect([view.get(ID)?.instance.revision, counts.back, messages()[0]]).toEqual([
    3,
    1,
    '40 the store went back to an older revision, which is served now',
  ])
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
  expect([view.size, health.unconfirmed]).toEqual([1, 1])
  void applier.apply({ kind: 'removed', id: ID }, 'notice', () => undefined)
  expect([view.size, health.unconfirmed, counts.changed]).toEqual([0, 0, 2])
})

test('a record that is there again and faulty reports that the store has the instance, as a good one does', () => {
  const { view, health, counts, put } = applying()
  put()
  health.reportUnconfirmed(ID)
  health.completeResync([])
  expect([view.isUnconfirmed(ID), counts.changed]).toEqual([true, 1])
  put({ revision: 2, fqdn: 'no name' })
  expect([view.isUnconfirmed(ID), counts.changed]).toEqual([false, 2])
})

test('invariant 7: a faulty record that the index does not name is no sign that a lost instance is back', () => {
  const { view, health, named, put } = applying()
  put()
  named.clear()
  health.reportUnconfirmed(ID)
  health.completeResync([])
  put({ revision: 2, fqdn: 'no name' })
  expect([view.isUnconfirmed(ID), health.faultOf(ID)?.reason]).toEqual([true, 'record'])
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

test('invariant 7: an instance that is back takes its address from the other only when that is on disk', () => {
  const applies: (() => void)[] = []
  const { applier, view, health, put } = applying({
    append: async (_change, _removesUserData, apply) => {
      applies.push(apply)
      await Promise.resolve()
    },
    allApplied: () => Promise.resolve(),
  })
  const owner = () => {
    const found = view.find('default', '10.0.0.2')
    return found.kind === 'owned' ? found.owner.instance.id : found.kind
  }
  const lose = () => {
    health.reportUnconfirmed(ID)
    health.completeResync(['srv-other'])
    expect(owner()).toBe('srv-other')
  }
  put()
  applies.shift()!()
  view.replace({ instance: parsed(anInstance({ id: 'srv-other' })), userData: undefined, digest: 'd1' })
  lose()
  put({ revision: 2 })
  expect(owner()).toBe('srv-other')
  applies.shift()!()
  expect([owner(), health.unconfirmed]).toEqual(['contested', 0])
  lose()
  void applier.apply({ kind: 'removed', id: ID }, 'notice', () => undefined)
  expect(owner()).toBe('srv-other')
  applies.shift()!()
  expect([owner(), health.unconfirmed, view.size]).toEqual(['srv-other', 0, 1])
})
