import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { parsePackets, type Packets } from '../../../../src/imdsd/firewall/counters.ts'
import { Firewall } from '../../../../src/imdsd/firewall/firewall.ts'
import type { Instance } from '../../../../src/metadata/instance.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'

beforeEach(() => vi.useFakeTimers())
afterEach(() => vi.useRealTimers())

const PLACES = {
  listeners: [{ network: 'default', address: '169.254.169.254', port: 80 }],
  operator: { address: '127.0.0.1', port: 9169 },
  limitedDscp: 0x0b,
}

/** What the agent reports: the version that is applied, or none. */
function report(applied?: string, failed?: string, packets?: Packets) {
  return { applied, failed, packets }
}

function aFirewall(required = true, link = 'tap-{interfaceId}') {
  const instances = new Map<string, Instance>()
  const log: Record<string, unknown>[] = []
  const onFirstApplied = vi.fn()
  const firewall = new Firewall({
    required,
    link,
    instances: () => instances.values(),
    now: () => Date.now(),
    startId: 'e',
    onFirstApplied,
    log: collectLog(() => log),
  })
  const put = (change: Record<string, unknown> = {}) => {
    const instance = parsed(anInstance(change))
    instances.set(instance.id, instance)
    firewall.noteChange()
    return instance
  }
  const ready = () => {
    firewall.setListeners(PLACES)
    firewall.noteComplete()
  }
  return { firewall, put, ready, log, onFirstApplied }
}

test('no document is sent before the daemon listens and its view is complete', async () => {
  const { firewall, put } = aFirewall()
  put()
  const early = firewall.next(report())
  firewall.setListeners(PLACES)
  await vi.advanceTimersByTimeAsync(2_999)
  firewall.noteComplete()
  expect(await early).toMatchObject({
    version: 'e.1',
    ...PLACES,
    guests: [{ id: 'srv-abcde', interfaces: [{ ipv4Addresses: ['10.0.0.2'] }] }],
  })
  const never = aFirewall().firewall.next(report())
  await vi.advanceTimersByTimeAsync(3_000)
  expect(await never).toBeUndefined()
})

test('the gate stays closed until the rules of that record are applied', async () => {
  const { firewall, put, ready } = aFirewall()
  ready()
  const first = put()
  expect(firewall.problemOf(first)).toBe('the firewall has not admitted the guest yet')
  await firewall.next(report())
  expect(firewall.problemOf(first)).not.toBeUndefined()
  const second = firewall.next(report('e.1'))
  expect(firewall.problemOf(first)).toBeUndefined()
  const changed = put({ revision: 2 })
  expect(await second).toMatchObject({ version: 'e.2' })
  expect([firewall.problemOf(first) === undefined, firewall.problemOf(changed) === undefined]).toEqual([true, false])
  void firewall.next(report('e.2'))
  expect([firewall.problemOf(first) === undefined, firewall.problemOf(changed) === undefined]).toEqual([false, true])
})

test('it is reported once, and for good, that rules of this process were applied', () => {
  const { firewall, put, ready, onFirstApplied } = aFirewall()
  ready()
  put()
  for (const applied of [undefined, 'other.1', 'e.2']) void firewall.next(report(applied))
  expect(onFirstApplied).not.toHaveBeenCalled()
  void firewall.next(report('e.1'))
  expect(onFirstApplied).toHaveBeenCalledOnce()
  for (const applied of [undefined, 'e.1']) void firewall.next(report(applied))
  expect(onFirstApplied).toHaveBeenCalledOnce()
})

test("an agent that has applied nothing, or another daemon's view, closes the gate again", async () => {
  for (const applied of [undefined, 'other.1', 'e.9']) {
    const { firewall, put, ready } = aFirewall()
    ready()
    const instance = put()
    await firewall.next(report())
    void firewall.next(report('e.1'))
    expect(firewall.problemOf(instance)).toBeUndefined()
    void firewall.next(undefined)
    expect(firewall.problemOf(instance), 'a request without a report changes nothing').toBeUndefined()
    void firewall.next(report(applied))
    expect(firewall.problemOf(instance)).not.toBeUndefined()
  }
})

test('a guest without a possible link name is held with the reason; only a required firewall holds', () => {
  const record = {
    interfaces: [{ id: 'int-muchtoolong', macAddress: '02:24:19:00:00:ee', ipv4Addresses: ['10.0.0.2/30'] }],
  }
  expect(aFirewall().firewall.problemOf(parsed(anInstance(record)))).toBe(
    'the firewall keeps interface int-muchtoolong out: its link name by the rule tap-{interfaceId} has 19 characters, and Linux allows 15; {interfaceId:11} takes the first 11 of an id',
  )
  expect(aFirewall(false).firewall.problemOf(parsed(anInstance(record)))).toBeUndefined()
})

test('guests whose interfaces would share a link are held, and their hop limits do not count', async () => {
  const { firewall, put, ready } = aFirewall(true, 'tap{interfaceId:11}')
  ready()
  const nic = (n: number) => ({
    interfaces: [
      {
        id: `port-tenant-${n}`,
        macAddress: `02:24:19:00:00:0${n}`,
        ipv4Addresses: [`10.0.0.${n * 4 + 2}/30`],
      },
    ],
  })
  const first = put({ id: 'srv-a', ...nic(1) })
  await firewall.next(report())
  void firewall.next(report('e.1'))
  expect([firewall.problemOf(first), firewall.limitsHops(first)]).toEqual([undefined, true])
  const second = put({ id: 'srv-b', ...nic(2) })
  await firewall.next(report('e.1'))
  void firewall.next(report('e.2'))
  for (const instance of [first, second]) {
    expect(firewall.problemOf(instance)).toMatch(
      /^the firewall keeps interface port-tenant-. out: the rule tap\{interfaceId:11\} gives it the link name tapport-tenant, which interfaces port-tenant-1 and port-tenant-2 would share$/,
    )
    expect(firewall.limitsHops(instance)).toBe(false)
  }
})

test('rules that contain only some interfaces of a record are not applied for it', async () => {
  const { firewall, put, ready } = aFirewall(true, 'tap-{interfaceId}')
  ready()
  const base = anInstance()['interfaces'] as Record<string, unknown>[]
  const instance = put({
    interfaces: [
      base[0],
      {
        ...base[0],
        id: 'int-much-too-long',
        macAddress: '02:24:19:00:00:ef',
        ipv4Addresses: ['10.0.0.6/30'],
        cloudIps: [],
      },
    ],
  })
  await firewall.next(report())
  void firewall.next(report('e.1'))
  expect(firewall.isApplied(instance)).toBe(false)
})

test('an agent that has rules of an unknown version gets a new version of the same view', async () => {
  const { firewall, put, ready } = aFirewall()
  ready()
  const instance = put()
  await firewall.next(report())
  void firewall.next(report('e.1'))
  expect(firewall.isApplied(instance)).toBe(true)
  expect(await firewall.next(report('other.7'))).toMatchObject({ version: 'e.2' })
  expect(firewall.isApplied(instance)).toBe(false)
  void firewall.next(report('e.2'))
  expect(firewall.isApplied(instance)).toBe(true)
})

test('rules that nft rejects hold the gate with the reason, which is logged once', async () => {
  const { firewall, put, ready, log } = aFirewall()
  ready()
  const instance = put()
  await firewall.next(report())
  for (let i = 0; i < 3; i++) void firewall.next(report(undefined, 'nft: no such thing'))
  void firewall.next(undefined)
  expect(firewall.problemOf(instance)).toBe('the firewall has not admitted the guest yet: nft: no such thing')
  expect(firewall.status()).toMatchObject({ applied: false, failed: 'nft: no such thing' })
  expect(log).toMatchObject([{ level: 40, code: 'firewall-not-applied', failed: 'nft: no such thing' }])
  void firewall.next(report('e.1'))
  expect([firewall.problemOf(instance), firewall.status().failed]).toEqual([undefined, undefined])
})

test('the age grows while rules are missing, outdated or unmaintained', async () => {
  const { firewall, put, ready } = aFirewall()
  await vi.advanceTimersByTimeAsync(3_000)
  expect(firewall.status()).toEqual({ required: true, applied: false, ageSeconds: 3 })
  ready()
  put()
  await firewall.next(report())
  const poll = firewall.next(report('e.1'))
  expect(firewall.status()).toEqual({ required: true, applied: true, ageSeconds: 0 })
  await vi.advanceTimersByTimeAsync(3_000)
  expect(await poll).toMatchObject({ version: 'e.1' })
  expect(firewall.status()).toEqual({ required: true, applied: true, ageSeconds: 0 })
  await vi.advanceTimersByTimeAsync(20_000)
  expect(firewall.status(), 'the agent has stopped asking').toEqual({
    required: true,
    applied: true,
    ageSeconds: 20,
  })
  put({ revision: 2 })
  await vi.advanceTimersByTimeAsync(1_000)
  await firewall.next(report('e.1'))
  await vi.advanceTimersByTimeAsync(2_000)
  expect(firewall.status(), 'sent, not applied').toEqual({ required: true, applied: false, ageSeconds: 3 })
})

test('D6: the hop limit counts as enforced while the rules of that record are applied and current', async () => {
  const { firewall, put, ready } = aFirewall()
  ready()
  const instance = put()
  await firewall.next(report())
  expect(firewall.limitsHops(instance)).toBe(false)
  void firewall.next(report('e.1'))
  expect(firewall.limitsHops(instance)).toBe(true)
  firewall.setListeners({
    ...PLACES,
    listeners: [...PLACES.listeners, { network: 'default', address: '::', port: 80 }],
  })
  expect(firewall.limitsHops(instance)).toBe(false)
  firewall.setListeners({ ...PLACES, listeners: [...PLACES.listeners, { network: 'red', address: '::', port: 80 }] })
  expect(firewall.limitsHops(instance)).toBe(true)
  await vi.advanceTimersByTimeAsync(36_000)
  expect(firewall.limitsHops(instance), 'the agent has stopped asking').toBe(false)
})

test('a slow agent that misses many versions costs bounded memory, and its own version still counts', async () => {
  const { firewall, put, ready } = aFirewall()
  ready()
  const first = put()
  await firewall.next(report())
  void firewall.next(report('e.1'))
  for (let revision = 2; revision < 100; revision++) {
    put({ id: 'srv-other', revision })
    await firewall.next(undefined)
  }
  void firewall.next(report('e.1'))
  expect(firewall.isApplied(first)).toBe(true)
})

test('a stop releases every waiting request', async () => {
  const { firewall, ready } = aFirewall()
  ready()
  await firewall.next(report())
  const poll = firewall.next(report('e.1'))
  firewall.stop()
  expect(await poll).toMatchObject({ version: 'e.1' })
})

test('the packets are those of the last report that has any', async () => {
  const { firewall, ready } = aFirewall()
  ready()
  expect(firewall.packets()).toBeUndefined()
  const packets = parsePackets({ admitted: 7, unknown_peers: 2, too_many: 0, fragments: 0, strays: 0, operators: 1 })
  await firewall.next(report(undefined, undefined, packets))
  expect(firewall.packets()).toEqual(packets)
  await firewall.next(report())
  expect(firewall.packets()).toEqual(packets)
})
