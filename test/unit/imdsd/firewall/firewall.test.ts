import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { parsePackets, type Packets } from '../../../../src/imdsd/firewall/counters.ts'
import { Firewall } from '../../../../src/imdsd/firewall/firewall.ts'
import type { FirewallDocument } from '../../../../src/imdsd/firewall/document.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'

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

/** `restored`: an instance that the view has at the start. */
function aFirewall(required = true, link = 'tap-{interfaceId}', restored?: Record<string, unknown>) {
  const confirmed: string[] = []
  const view = new View({}, () => Date.now(), required)
  const put = (change: Record<string, unknown> = {}, order = 1) => {
    const instance = parsed(anInstance(change))
    view.replace({ instance, userData: undefined, digest: undefined, order, lost: [] })
    return instance
  }
  if (restored !== undefined) put(restored)
  const firewall = new Firewall({
    required,
    link,
    view,
    now: () => Date.now(),
    startId: 'e',
    onConfirmed: (version, wasFresh) => {
      confirmed.push(`${version}${wasFresh ? '' : ' anew'}`)
      view.noteRules(version)
    },
  })
  view.onChange((id) => firewall.documents.note(id))
  const ready = () => {
    firewall.documents.setListeners(PLACES)
    firewall.documents.noteComplete()
  }
  /** What the agent gets when the document has changed, as soon as one is built. */
  const next = async (...reported: Parameters<typeof report>) => {
    const answer = firewall.next(report(...reported))
    await vi.advanceTimersByTimeAsync(100)
    const document = await answer
    return document && (JSON.parse(document.json.toString()) as FirewallDocument)
  }
  /** The agent applies the newest document, and reports it. */
  const apply = async () => {
    const { version } = (await next())!
    void firewall.next(report(version))
    return version
  }
  const owner = (address = '10.0.0.2') => {
    const found = view.find('default', address)
    return found.kind === 'owned' ? found.owner.instance.id : found.kind
  }
  return { firewall, view, put, ready, next, apply, owner, confirmed }
}

test('E5: an address is unconfirmed until rules that give it to its new owner alone are confirmed', async () => {
  const { firewall, view, put, ready, next, apply, owner } = aFirewall()
  ready()
  put({ id: 'srv-a' })
  const first = await apply()
  expect(owner()).toBe('srv-a')
  const late = put({ id: 'srv-b' }, 2)
  expect([owner(), firewall.problemOf(late)]).toEqual([
    'unconfirmed',
    'the firewall has not admitted the guest yet: ' +
      'default 10.0.0.2 of srv-b: the rules in the kernel may still give it to another instance',
  ])
  const given = await next(first)
  expect(given!.guests.map(({ id, interfaces }) => [id, interfaces.flatMap((one) => one.ipv4Addresses)])).toEqual([
    ['srv-a', []],
    ['srv-b', ['10.0.0.2']],
  ])
  expect(owner(), 'given is not applied').toBe('unconfirmed')
  void firewall.next(report(given!.version))
  expect([owner(), view.unconfirmed().size, firewall.problemOf(late)]).toEqual(['srv-b', 0, undefined])
  void firewall.next(report(first))
  expect(owner(), 'the kernel went back').toBe('unconfirmed')
})

test('E5: an address that goes away and comes back waits for rules of after its return', async () => {
  const { firewall, put, ready, next, apply, owner } = aFirewall()
  ready()
  put({ id: 'srv-a' })
  const first = await apply()
  put({ id: 'srv-b' }, 2)
  const between = (await next(first))!.version
  put({ id: 'srv-a', revision: 2 }, 3)
  void firewall.next(report(between))
  expect(owner()).toBe('unconfirmed')
  await apply()
  expect(owner()).toBe('srv-a')
})

test('E5: without a firewall nothing is unconfirmed', () => {
  const { put, owner } = aFirewall(false)
  put({ id: 'srv-a' })
  expect(owner()).toBe('srv-a')
})

test('a document follows no change that the rules do not see, and at most ten follow in a second', async () => {
  const { firewall, put, ready, apply, next } = aFirewall()
  ready()
  put({})
  const first = await apply()
  put({ revision: 2, tags: { a: 'x' } })
  expect(firewall.status().applied).toBe(true)
  let built = 0
  for (let n = 0; n < 100; n++) {
    put({ options: { httpPutResponseHopLimit: (n % 60) + 2 } })
    void firewall.next(report(first)).then(() => (built += 1))
    await vi.advanceTimersByTimeAsync(10)
  }
  const versions = new Set<string>()
  for (let n = 0; n < 10; n++) versions.add((await next(first))!.version)
  expect([versions.size, built > 0]).toEqual([1, true])
})

test('no document is sent before the daemon listens and its view is complete', async () => {
  const { firewall, put } = aFirewall()
  put()
  const early = firewall.next(report())
  firewall.documents.setListeners(PLACES)
  await vi.advanceTimersByTimeAsync(2_999)
  firewall.documents.noteComplete()
  expect(JSON.parse((await early)!.json.toString())).toMatchObject({
    version: 'e.1',
    ...PLACES,
    guests: [{ id: 'srv-abcde', interfaces: [{ ipv4Addresses: ['10.0.0.2'] }] }],
  })
  const never = aFirewall().firewall.next(report())
  await vi.advanceTimersByTimeAsync(3_000)
  expect(await never).toBeUndefined()
})

test('the gate stays closed until the rules of that record are applied', async () => {
  const { firewall, put, ready, apply } = aFirewall()
  ready()
  const first = put()
  expect(firewall.problemOf(first)).toBe(
    'the firewall has not admitted the guest yet: ' +
      'default 10.0.0.2 of srv-abcde: the rules in the kernel may still give it to another instance',
  )
  await apply()
  expect(firewall.problemOf(first)).toBeUndefined()
  const changed = put({ interfaces: [{ ...first.interfaces[0], macAddress: '02:24:19:00:00:ff' }] })
  expect(firewall.problemOf(changed)).toBe('the firewall has not admitted the guest yet')
  await apply()
  expect(firewall.problemOf(changed)).toBeUndefined()
})

test('rules of this process are reported, also whether others or none were there before', async () => {
  const { firewall, put, ready, next, confirmed } = aFirewall()
  ready()
  put()
  await next()
  for (const applied of [undefined, 'other.1', 'e.2', 'e.1', 'e.1', undefined, 'e.1'])
    void firewall.next(report(applied))
  await vi.advanceTimersByTimeAsync(9_000)
  void firewall.next(report('e.1'))
  expect(confirmed).toEqual(['1 anew', '1', '1 anew', '1 anew'])
})

test("an agent that has no rules, another daemon's, or is silent for seconds, closes the gate again", async () => {
  for (const applied of [undefined, 'other.1', 'e.9', 'silent']) {
    const { firewall, put, ready, apply } = aFirewall()
    ready()
    const instance = put()
    await apply()
    void firewall.next(undefined)
    expect(firewall.problemOf(instance), 'a request without a report changes nothing').toBeUndefined()
    if (applied === 'silent') await vi.advanceTimersByTimeAsync(8_000)
    else void firewall.next(report(applied))
    expect([firewall.problemOf(instance), firewall.isFresh(), firewall.status().applied]).toEqual([
      'the firewall has not admitted the guest yet: no rules are confirmed',
      false,
      false,
    ])
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
  const { firewall, put, ready, apply } = aFirewall(true, 'tap{interfaceId:11}')
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
  await apply()
  expect([firewall.problemOf(first), firewall.limitsHops(first)]).toEqual([undefined, true])
  const second = put({ id: 'srv-b', ...nic(2) })
  await apply()
  for (const instance of [first, second]) {
    expect(firewall.problemOf(instance)).toMatch(
      /^the firewall keeps interface port-tenant-. out: the rule tap\{interfaceId:11\} gives it the link name tapport-tenant, which interfaces port-tenant-1 and port-tenant-2 would share$/,
    )
    expect(firewall.limitsHops(instance)).toBe(false)
  }
})

test('a guest that had to share its link waits for rules of after the other one has left', async () => {
  const { firewall, view, put, ready, apply } = aFirewall()
  ready()
  const one = put()
  put({ id: 'srv-other', interfaces: one.interfaces.map((link) => ({ ...link, ipv4Addresses: ['10.0.0.9'] })) }, 2)
  await apply()
  expect(firewall.problemOf(one)).toMatch(/would share/)
  view.remove('srv-other', 3)
  expect(firewall.problemOf(one)).toMatch(/has not admitted the guest yet/)
  await apply()
  expect(firewall.problemOf(one)).toBeUndefined()
})

test('E5: the gate waits for an address of which another claimant has just left', async () => {
  const { firewall, view, put, ready, apply } = aFirewall()
  ready()
  const one = put()
  const [link] = one.interfaces
  put({ id: 'srv-other', interfaces: [{ ...link!, id: 'int-other', macAddress: '02:24:19:00:00:99' }] })
  await apply()
  view.remove('srv-other', 2)
  expect(firewall.problemOf(one)).toMatch(/not admitted/)
  await apply()
  expect(firewall.problemOf(one)).toBeUndefined()
})

test('rules that nft rejects hold the gate with the reason', async () => {
  const { firewall, put, ready, next } = aFirewall()
  ready()
  const instance = put()
  await next()
  for (let i = 0; i < 3; i++) void firewall.next(report(undefined, 'nft: no such thing'))
  void firewall.next(undefined)
  expect(firewall.problemOf(instance)).toMatch(
    /^the firewall has not admitted the guest yet: nft: no such thing; default 10.0.0.2 of srv-abcde: /,
  )
  expect(firewall.status()).toMatchObject({ applied: false, failed: 'nft: no such thing' })
  void firewall.next(report('e.1'))
  expect([firewall.problemOf(instance), firewall.status().failed]).toEqual([undefined, undefined])
})

test('the age grows while rules are missing, outdated or unmaintained', async () => {
  const { firewall, put, ready, next, apply } = aFirewall()
  await vi.advanceTimersByTimeAsync(3_000)
  expect(firewall.status()).toEqual({ required: true, applied: false, ageSeconds: 3 })
  ready()
  put()
  const version = await apply()
  expect(firewall.status()).toEqual({ required: true, applied: true, ageSeconds: 0 })
  await vi.advanceTimersByTimeAsync(3_000)
  void firewall.next(report(version))
  expect(firewall.status()).toEqual({ required: true, applied: true, ageSeconds: 0 })
  await vi.advanceTimersByTimeAsync(20_000)
  expect(firewall.status(), 'the agent has stopped asking').toEqual({ required: true, applied: false, ageSeconds: 20 })
  void firewall.next(report(version))
  put({ id: 'srv-b' }, 2)
  await vi.advanceTimersByTimeAsync(1_000)
  await next(version)
  await vi.advanceTimersByTimeAsync(1_900)
  expect(firewall.status(), 'sent, not applied').toEqual({ required: true, applied: false, ageSeconds: 3 })
})

test('D6: the hop limit counts as enforced while the rules of that record are applied and current', async () => {
  const { firewall, put, ready, apply } = aFirewall()
  ready()
  const instance = put()
  expect(firewall.limitsHops(instance)).toBe(false)
  await apply()
  expect(firewall.limitsHops(instance)).toBe(true)
  put({ revision: 2, options: { httpPutResponseHopLimit: 3 } })
  expect(firewall.limitsHops(instance)).toBe(false)
  await apply()
  expect(firewall.limitsHops(instance)).toBe(true)
  await vi.advanceTimersByTimeAsync(8_000)
  expect(firewall.limitsHops(instance), 'the agent has stopped asking').toBe(false)
})

test('a stop releases every waiting request', async () => {
  const { firewall, ready, apply } = aFirewall()
  ready()
  const version = await apply()
  const poll = firewall.next(report(version))
  firewall.stop()
  expect(await poll).toMatchObject({ version })
})

test('the packets are those of the last report that has any', async () => {
  const { firewall, ready, next } = aFirewall()
  ready()
  expect(firewall.packets()).toBeUndefined()
  const packets = parsePackets({ admitted: 7, unknown_peers: 2, too_many: 0, fragments: 0, strays: 0, operators: 1 })
  await next(undefined, undefined, packets)
  expect(firewall.packets()).toEqual(packets)
  await next()
  expect(firewall.packets()).toEqual(packets)
})
