/** The loop that follows the store, one round trip at a time. */
import { afterEach, expect, test, vi } from 'vitest'
import { View } from '../../../../src/imdsd/view/view.ts'
import type { ChangeLog } from '../../../../src/imdsd/view/change.ts'
import { Sync } from '../../../../src/imdsd/view/sync.ts'
import type { Loaded } from '../../../../src/store/source.ts'
import { NO_CHANGE_LOG } from '../../../support/fixtures/change-log.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { SteppedSource, type Request } from '../../../support/fixtures/stepped-source.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'

/** As in sync.ts: what a resync gets of each read, at least. */
const SHARE = 33
/** The number of round trips of a resync, given how many instances it has to read. */
const bound = (instances: number) => 1 + Math.ceil(instances / SHARE)

const id = (n: number) => `srv-n${n}`
const record = (n: number, revision = 1, change: Record<string, unknown> = {}) =>
  anInstance({
    id: id(n),
    revision,
    interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`10.1.${n >> 8}.${n & 255}/8`] }],
    ...change,
  })
const isLoad = ({ ids }: Request) => typeof ids !== 'string'

const watches: Sync[] = []
afterEach(async () => {
  vi.restoreAllMocks()
  for (const sync of watches.splice(0)) await sync.stop()
})

interface TestSync {
  source: SteppedSource
  view: View
  sync: Sync
  log: Record<string, unknown>[]
  confirmed: ((beganAtMs: number, isFirst: boolean) => void)[]
  failed: () => number
}

/** A sync of a store with the instances 1 to `count`, connected. */
function aSync(count: number, userDataMaxBytes = 16_384, changeLog: ChangeLog = NO_CHANGE_LOG): TestSync {
  const source = new SteppedSource()
  for (let n = 1; n <= count; n++) source.put(record(n))
  const view = new View({}, () => 0, false)
  const log: Record<string, unknown>[] = []
  const confirmed: ((beganAtMs: number, isFirst: boolean) => void)[] = []
  let failed = 0
  const none = {
    inc: () => undefined,
  }
  const metrics = {
    notices: none,
    resyncs: {
      inc: ({ result }: { result: string }) => {
        if (result === 'failed') failed += 1
      },
    },
    recordFaults: none,
  }
  const sync = new Sync({
    source,
    view,
    changeLog,
    hypervisor: 'hv1',
    userDataMaxBytes,
    resyncMs: 3_600_000,
    onChange: () => undefined,
    metrics,
    onResync: (beganAtMs, isFirst) => {
      for (const call of confirmed) call(beganAtMs, isFirst)
    },
    log: collectLog(() => log),
  })
  watches.push(sync)
  sync.start()
  source.events.connected()
  return { source, view, sync, log, confirmed, failed: () => failed }
}

/** Lets round trips pass until the condition holds, `before` each; gives their number. */
async function roundTripsUntil(
  source: SteppedSource,
  condition: () => boolean,
  most: number,
  before: () => void = () => undefined,
): Promise<number> {
  for (let n = 0; n <= most; n++) {
    if (condition()) return n
    await source.next()
    before()
    await source.roundTrip()
    await source.next()
  }
  return Infinity
}

const isReady =
  ({ sync }: TestSync) =>
  () =>
    sync.status().ready

test('an instance that changes in every round trip does not delay the resync: the daemon becomes ready', async () => {
  const setup = aSync(250)
  const { source, view } = setup
  let revision = 1
  const changeAgain = () => {
    source.put(record(1, ++revision))
    source.events.notice(id(1))
  }
  expect(await roundTripsUntil(source, isReady(setup), bound(250), changeAgain)).toBeLessThanOrEqual(bound(250))
  expect(view.size).toBe(250)
})

test('a tombstone whose notice was lost is found by the next resync, whatever changes meanwhile', async () => {
  const setup = aSync(250)
  const { source, view, sync } = setup
  await source.drain()
  source.remove(id(77))
  for (let n = 100; n <= 200; n++) source.put(record(n, 2))
  sync.resync()
  let revision = 1
  const storm = () => {
    revision += 1
    for (let n = 1; n <= 60; n++) {
      source.put(record(n, revision))
      source.events.notice(id(n))
    }
  }
  const gone = () => view.get(id(77)) === undefined
  expect(await roundTripsUntil(source, gone, bound(102), storm)).toBeLessThanOrEqual(bound(102))
})

test('a notice is read in the next read, however much a resync still has to read', async () => {
  const { source, view } = aSync(5_000)
  await source.roundTrip()
  await source.next(isLoad)
  source.put(record(5_000, 2))
  source.events.notice(id(5_000))
  await source.roundTrip()
  expect((await source.next())?.ids).toContain(id(5_000))
  await source.roundTrip()
  await source.next()
  expect(view.get(id(5_000))?.instance.revision).toBe(2)
})

test('instances that change again and again are read equally often', async () => {
  const setup = aSync(500)
  const { source } = setup
  await source.drain()
  source.reads.clear()
  for (let trip = 0; trip < 20; trip++) {
    for (let n = 1; n <= 500; n++) source.events.notice(id(n))
    for (let again = 0; again < 10; again++) source.events.notice(id(7))
    await source.roundTrip()
    await source.next()
  }
  const counts = [...source.reads.values()]
  expect(counts.length).toBe(500)
  expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1)
})

test('notices before the first resync is complete do not restart it', async () => {
  const setup = aSync(250)
  const { source } = setup
  expect(
    await roundTripsUntil(source, isReady(setup), bound(250), () => source.events.notice(id(3))),
  ).toBeLessThanOrEqual(bound(250))
  expect(source.indexReads).toBe(1)
})

test('after a loss that outlasts the interval of resyncs, a resync waits for its random time too', async () => {
  const { source, sync } = aSync(2)
  await source.drain()
  vi.spyOn(Math, 'random').mockReturnValue(0.2)
  source.events.disconnected('cut')
  sync.resync() // as the timer does
  source.events.connected()
  expect(await source.next()).toBeUndefined()
  await vi.waitFor(() => expect(source.requests.map(({ ids }) => ids)).toEqual(['index']))
})

test('a resync requested during another begins when that one is complete', async () => {
  const setup = aSync(250)
  const { source, sync } = setup
  expect(await roundTripsUntil(source, isReady(setup), bound(250), () => sync.resync())).toBeLessThanOrEqual(bound(250))
  await source.drain()
  expect(source.indexReads).toBe(2)
})

test('a resync continues across connections that are lost again and again', async () => {
  const setup = aSync(250)
  const { source } = setup
  const cut = async () => {
    const request = await source.next()
    source.events.disconnected('cut')
    request?.fail()
    await source.next()
    source.events.connected()
  }
  for (let n = 0; n < 3 * bound(250) && !setup.sync.status().ready; n++) {
    await source.roundTrip()
    await cut()
  }
  expect(setup.sync.status().ready).toBe(true)
  expect(setup.view.size).toBe(250)
  expect(setup.failed(), 'each loss during the resync').toBeGreaterThan(1)
})

test('the time of a resync is when it began, also if it was completed after a loss of the store', async () => {
  const { source, sync, confirmed } = aSync(1)
  const resynced: number[] = []
  confirmed.push((beganAtMs) => resynced.push(beganAtMs))
  await source.next()
  const beganBeforeMs = performance.now()
  await source.roundTrip()
  const request = await source.next(isLoad)
  source.events.disconnected('cut')
  request?.fail()
  await source.next()
  source.events.connected()
  await source.drain()
  expect(resynced[0]).toBeLessThanOrEqual(beganBeforeMs)
  expect(resynced.at(-1)).toBe(sync.status().resyncedAtMs)
})

test('a failed read outside of a resync is repeated, and is no failed resync', async () => {
  const setup = aSync(1)
  const { source, view } = setup
  await source.drain()
  source.put(record(1, 2))
  source.events.notice(id(1))
  ;(await source.next(isLoad))?.fail()
  await expect.poll(() => source.requests.length, { timeout: 5_000 }).toBe(1)
  await source.drain()
  expect([view.get(id(1))?.instance.revision, setup.failed()]).toEqual([2, 0])
})

test('the first publish into a store without the region is followed by a resync at once', async () => {
  const setup = aSync(0)
  const { source } = setup
  source.initialised = false
  await source.drain()
  expect(setup.sync.status()).toMatchObject({ ready: false, isStoreEmpty: true })
  source.initialised = true
  source.put(record(1))
  source.events.notice(id(1))
  await source.drain()
  expect(setup.sync.status().ready).toBe(true)
})

test('so is the first usable record beside faulty ones, since rules and readiness wait for a resync', async () => {
  const setup = aSync(0)
  const { source, sync } = setup
  source.put(record(1))
  const loaded = source.records.get(id(1)) as Extract<Loaded, { kind: 'record' }>
  source.records.set(id(1), { ...loaded, document: {} })
  await source.drain()
  expect(sync.status().storeProblem).toBeDefined()
  source.put(record(2))
  source.events.notice(id(2))
  await source.drain()
  expect(sync.status().storeProblem).toBeUndefined()
})

test('so is a first publish whose notice overtakes the answer that the region is not there', async () => {
  const setup = aSync(0)
  const { source } = setup
  source.initialised = false
  const index = await source.next()
  index?.execute()
  source.initialised = true
  source.put(record(1))
  source.events.notice(id(1))
  index?.reply()
  await source.drain()
  expect(setup.sync.status().ready).toBe(true)
})

test('a failed read of index, notices or resync is repeated, with its reason; waiting lookups end at once', async () => {
  const setup = aSync(50)
  const { source, view, sync } = setup
  const failedAgain = async (times: number) => {
    source.requests[0]?.fail()
    await expect.poll(() => setup.failed(), { timeout: 5_000 }).toBe(times)
    await expect.poll(() => source.requests.length, { timeout: 5_000 }).toBe(1)
  }
  await source.next()
  await failedAgain(1)
  source.put(record(60))
  source.digests.delete(id(60)) // not part of the resync
  source.put(record(61))
  source.owners.set('default 10.1.0.61', id(61))
  source.events.notice(id(60))
  const found = sync.lookUp('default', '10.1.0.61')
  const refused = expect(found).rejects.toThrow('no answer')
  source.requests[1]?.execute()
  source.requests[1]?.reply()
  source.digests.delete(id(61))
  await source.roundTrip()
  expect((await source.next(isLoad))?.ids).toHaveLength(52)
  await failedAgain(2)
  await refused
  expect(sync.status().readFailure).toBe('no answer')
  await source.drain()
  expect(view.size).toBe(51)
  expect(sync.status().ready).toBe(true)
  expect(source.indexReads).toBe(2)
  expect(sync.status().readFailure).toBeUndefined()
})

test('a notice is read even if the index cannot be read', async () => {
  const setup = aSync(1)
  const { source, view } = setup
  await source.next()
  source.events.notice(id(1))
  source.requests[0]?.fail()
  await expect.poll(() => source.requests.length, { timeout: 5_000 }).toBe(1)
  expect((await source.next())?.ids).toEqual([id(1)])
  await source.roundTrip()
  await source.next()
  expect(view.get(id(1))).toBeDefined()
  expect(setup.sync.status().ready).toBe(false)
})

test('E3: a late answer to a lookup of an unknown peer does not restore an older state', async () => {
  const setup = aSync(1)
  const { source, view, sync } = setup
  await source.drain()
  source.put(record(2, 1))
  source.owners.set('default 10.1.0.2', id(2))
  const found = sync.lookUp('default', '10.1.0.2')
  await source.roundTrip()
  const late = await source.next(isLoad)
  // revision 1 was read; its answer is on its way, in a Cluster's ASK window over a connection of its own
  late?.execute()
  source.put(record(2, 2))
  source.events.notice(id(2))
  const other = await source.next((request) => request !== late)
  other?.execute()
  other?.reply()
  await source.next((request) => request !== late)
  late?.reply()
  await source.drain()
  await found
  expect(view.get(id(2))?.instance.revision).toBe(2)
})

test('a notice that arrives while the loop ends is read at once', async () => {
  const setup = aSync(1)
  const { source, view, confirmed } = setup
  let wasSent = false
  confirmed.push(() => {
    if (wasSent) return
    wasSent = true
    source.put(record(2))
    queueMicrotask(() => source.events.notice(id(2)))
  })
  await source.drain()
  expect(view.get(id(2))).toBeDefined()
})

test('a notice that arrives before the connection is complete is read as soon as possible', async () => {
  const setup = aSync(1)
  const { source, view } = setup
  await source.drain()
  source.events.disconnected('cut')
  source.put(record(2))
  source.events.notice(id(2))
  source.events.connected()
  await source.roundTrip()
  await source.next()
  expect(view.get(id(2))).toBeDefined()
})

test('E2: a lookup that finds a record of another hypervisor leaves nothing behind', async () => {
  const setup = aSync(1)
  const { source, view, sync, log } = setup
  await source.drain()
  source.put(record(2, 1, { hypervisors: ['hv2'] }))
  source.owners.set('default 10.1.0.2', id(2))
  const found = sync.lookUp('default', '10.1.0.2')
  await source.drain()
  await found
  expect(source.reads.get(id(2))).toBe(1)
  expect(view.get(id(2))).toBeUndefined()
  source.put(record(3, 1, { fqdn: '' }))
  source.owners.set('default 10.1.0.3', id(3))
  const faulty = sync.lookUp('default', '10.1.0.3')
  await source.drain()
  await faulty
  source.digests.delete(id(3))
  expect(sync.status()).toMatchObject({ faulty: 0, absent: 0 })
  expect(log.map(({ msg }) => msg)).toEqual(['the store is connected', 'first resync completed: ready'])
  sync.resync() // the index of the double names it for us with the same digest: not remembered, so it is read
  await source.drain()
  expect(source.reads.get(id(2))).toBe(2)
})

test('lookups of too many peers do not delay a notice', async () => {
  const setup = aSync(300)
  const { source, view, sync } = setup
  await source.drain()
  for (let n = 1; n <= 300; n++) {
    source.owners.set(`default 10.2.${n >> 8}.${n & 255}`, id(n))
    void sync.lookUp('default', `10.2.${n >> 8}.${n & 255}`).catch(() => undefined)
  }
  source.put(record(300, 2))
  while (source.requests.some(({ ids }) => ids === 'owner')) {
    const request = source.requests.find(({ ids }) => ids === 'owner')!
    request.execute()
    request.reply()
  }
  await source.next(isLoad)
  source.events.notice(id(299))
  source.put(record(299, 2))
  await source.roundTrip()
  await source.next()
  await source.roundTrip()
  await source.next()
  expect(view.get(id(299))?.instance.revision).toBe(2)
})

test.each([
  [16_384, 100],
  [65_536, 100],
  [1_048_576, 64],
  [8_388_608, 10],
  [16_777_216, 10],
])('with up to %i bytes of user-data a batch has %i ids, a third of each kind', async (limit, size) => {
  const { source, sync } = aSync(250, limit)
  await source.roundTrip()
  const first = await source.next(isLoad)
  for (let n = 301; n <= 400; n++) source.events.notice(id(n))
  for (let n = 401; n <= 500; n++) {
    source.owners.set(`default 10.2.0.${n - 400}`, id(n))
    void sync.lookUp('default', `10.2.0.${n - 400}`).catch(() => undefined)
  }
  for (const request of source.requests.filter(({ ids }) => ids === 'owner')) {
    request.execute()
    request.reply()
  }
  first?.execute()
  first?.reply()
  const batch = (await source.next(isLoad))?.ids as readonly string[]
  expect(batch).toHaveLength(size)
  for (const [from, to] of [
    [1, 250],
    [301, 400],
    [401, 500],
  ] as const) {
    const numbers = batch.map((one) => Number(one.slice('srv-n'.length))).filter((n) => n >= from && n <= to)
    expect(numbers.length).toBeGreaterThanOrEqual(Math.floor(size / 3))
  }
})

test('an instance is in the view as soon as it is read, and nothing enters it after the stop', async () => {
  const { source, view, sync } = aSync(3)
  const { promise: wait, resolve: next } = Promise.withResolvers<undefined>()
  source.load = async function* (ids) {
    for (const [i, one] of ids.entries()) {
      if (i === 1) await wait
      yield source.records.get(one)!
    }
  }
  await source.roundTrip()
  await source.next()
  expect([...view.ids()]).toEqual([id(1)])
  await sync.stop()
  next(undefined)
  await source.next()
  expect([...view.ids()]).toEqual([id(1)])
})

test('if a read fails half-way, the rest of it is read again', async () => {
  const setup = aSync(3)
  const { source, view } = setup
  const load = source.load.bind(source)
  source.load = async function* (ids) {
    source.load = load
    yield await Promise.resolve(source.records.get(ids[0]!)!)
    throw new Error('no answer')
  }
  await source.roundTrip()
  await source.next()
  expect([...view.ids()]).toEqual([id(1)])
  await expect.poll(() => source.requests.length, { timeout: 5_000 }).toBe(1)
  expect(source.requests[0]!.ids).toEqual([id(2), id(3)])
  await source.drain()
  expect(setup.sync.status().ready).toBe(true)
})

/** Takes longer than one turn of the event loop should. */
function work(): void {
  for (const startedMs = performance.now(); performance.now() - startedMs < 5;) {
    /* work */
  }
}

/** How many turns of the event loop pass until the condition holds. */
async function turnsUntil(condition: () => boolean): Promise<number> {
  let turns = 0
  for (; !condition(); turns++) await new Promise((resolve) => setImmediate(resolve))
  return turns
}

test('guests are answered while instances are processed and the index is compared', async () => {
  const { source, view, confirmed } = aSync(20)
  const entries = new (class extends Map<string, string> {
    override *[Symbol.iterator](): MapIterator<[string, string]> {
      for (const entry of this.entries()) {
        work()
        yield entry
      }
    }
  })(source.digests)
  const { promise: asked, resolve: ask } = Promise.withResolvers<undefined>()
  source.index = () => {
    ask(undefined)
    return Promise.resolve({ initialised: true, digests: entries })
  }
  source.load = async function* (ids) {
    for (const one of ids) {
      work()
      yield await Promise.resolve(source.records.get(one)!)
    }
  }
  let isConfirmed = false
  confirmed.push(() => {
    isConfirmed = true
  })
  await asked
  const turns = await turnsUntil(() => isConfirmed)
  expect(view.size).toBe(20)
  expect(turns).toBeGreaterThanOrEqual(39)
})

test('a store that was replaced is compared at once', async () => {
  const { source, sync, view, confirmed } = aSync(1)
  const firsts: boolean[] = []
  confirmed.push((_beganAtMs, isFirst) => firsts.push(isFirst))
  await source.drain()
  sync.resync()
  await source.drain()
  source.put(record(2)) // without a notice
  source.events.replaced()
  await source.drain()
  expect([view.size, sync.status().ready]).toEqual([2, true])
  expect(firsts, 'the store may have lost what this hypervisor wrote').toEqual([true, false, true])
})

test('the lag is the time since the oldest change that is not read, or since the store was lost', async () => {
  const { source, sync } = aSync(1)
  const isBehind = () => sync.status().lagMs > 0
  await source.next()
  expect(isBehind(), 'before the first resync').toBe(true)
  await source.drain()
  expect(sync.status().lagMs).toBe(0)
  source.put(record(1, 2))
  source.events.notice(id(1))
  await source.next()
  expect(isBehind(), 'a notice').toBe(true)
  await source.drain()
  expect(sync.status().lagMs).toBe(0)
  source.events.disconnected('lost')
  source.events.connected()
  source.events.notice(id(1))
  await source.drain()
  expect(isBehind(), 'a change that was read, before the resync that finds the others').toBe(true)
  sync.resync()
  await source.drain()
  expect(sync.status().lagMs).toBe(0)
})

test('a record that was faulty at a resync is served when it comes back without a publish', async () => {
  const { source, view, sync } = aSync(1)
  source.put(record(2))
  const loaded = { ...(source.records.get(id(2)) as Extract<Loaded, { kind: 'record' }>), order: 5 }
  source.records.set(id(2), { ...loaded, document: {} })
  source.last = 9
  await source.drain()
  expect(sync.health.faultOf(id(2))?.reason).toBe('record')
  source.records.set(id(2), loaded)
  source.events.notice(id(2))
  await source.drain()
  expect(view.get(id(2))?.order).toBe(5)
})

test('a place that is more than a day ahead is faulty, also after one that is nearly a day ahead', async () => {
  const { source, view, sync } = aSync(1)
  const hoursAhead = (hours: number) => (Date.now() + hours * 3_600_000) * 1_000
  source.last = hoursAhead(23)
  await source.drain()
  expect(view.removals.floor).toBe(source.last)
  source.put(record(2))
  source.records.set(id(2), {
    ...(source.records.get(id(2)) as Extract<Loaded, { kind: 'record' }>),
    order: hoursAhead(40),
  })
  source.last = hoursAhead(40)
  sync.resync()
  await source.drain()
  expect([view.get(id(2)), sync.health.faultOf(id(2))?.reason, view.latest < hoursAhead(24)]).toEqual([
    undefined,
    'order',
    true,
  ])
})

test('a read that fails is given back once all that was read before is applied', async () => {
  const applied = Promise.withResolvers<undefined>()
  const { source, sync } = aSync(0, 16_384, { ...NO_CHANGE_LOG, allApplied: () => applied.promise })
  await source.roundTrip()
  source.put(record(1))
  source.owners.set('default 10.1.0.1', id(1))
  const ended = sync.lookUp('default', '10.1.0.1').then(
    () => 'read',
    () => 'not read',
  )
  await source.roundTrip()
  const read = await source.next(isLoad)
  read!.fail()
  await source.next()
  expect(await Promise.race([ended, Promise.resolve('waits')])).toBe('waits')
  applied.resolve(undefined)
  expect(await ended).toBe('not read')
})

test('each reason why the store cannot be used is logged once, until it is connected again', async () => {
  const { source, sync, log } = aSync(0)
  await source.drain()
  for (const reason of ['refused', 'refused', 'loading']) source.events.disconnected(reason)
  expect(sync.status()).toMatchObject({ connected: false, disconnectReason: 'loading' })
  source.events.connected()
  source.events.disconnected('refused')
  const reasons = log.filter(({ msg }) => msg === 'the store cannot be used').map(({ reason }) => reason)
  expect(reasons).toEqual(['refused', 'loading', 'refused'])
})
