import { expect, test } from 'vitest'
import { Firewall } from '../../../../src/imdsd/firewall/firewall.ts'
import { explain, explainInstance } from '../../../../src/imdsd/operator/explain.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import { aGuestServer, parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance, loopback } from '../../../support/fixtures/instance.ts'

/** Listeners for IPv4 and IPv6. */
const LISTENERS = [{ network: 'default', host: '::' }]

const aFirewall = (required: boolean, view = new View({}, () => 0, required)) =>
  new Firewall({
    required,
    link: 'tap-{interfaceId}',
    view,
    now: () => 0,
    startId: 'e',
    onConfirmed: () => undefined,
  })

/** What explains an instance with some addresses, on a firewall with or without packets. */
function explaining(
  ipv4Addresses: readonly string[],
  firewall = aFirewall(false),
  view = new View({}, () => 0, false),
) {
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses, ipv6Prefixes: ['fd00::/64'] }]
  view.replace({
    instance: parsed(anInstance({ id: 'srv-a', interfaces })),
    userData: undefined,
    digest: 'a',
    order: 1,
    lost: [],
  })
  return {
    view,
    firewall,
    listeners: LISTENERS,
    firewallWait: () => undefined,
    diagnosis: {
      instance: (id: string) => Promise.resolve(id === 'srv-a' ? undefined : `the store has no record of ${id}`),
      address: () => Promise.resolve(''),
    },
    unreachable: () => undefined,
    requests: () => [],
  }
}

test('for a contested address it names the claimants and no other conflict', async () => {
  const parts = explaining(['10.0.0.2/8', '10.0.0.3/8'])
  for (const [id, address] of [
    ['srv-b', '10.0.0.2'],
    ['srv-c', '10.0.0.3'],
  ] as const) {
    const interfaces = loopback(1, { ipv4Addresses: [`${address}/8`] })
    parts.view.replace({
      instance: parsed(anInstance({ id, interfaces })),
      userData: undefined,
      digest: id,
      order: 1,
      lost: [],
    })
  }
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({
    answer: 'contested-address',
    status: 503,
    because: '10.0.0.2 is contested: srv-a and srv-b claim it',
  })
})

test('for an address that waits for the rules it says so, and that a former owner may still have it', async () => {
  const view = new View({}, () => 0, true)
  const parts = explaining(['10.0.0.2/8'], aFirewall(true, view), view)
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({
    answer: 'unconfirmed-address',
    status: 503,
    because:
      'the firewall must confirm it first: ' +
      'default 10.0.0.2 of srv-a: the rules in the kernel may still give it to another instance',
  })
})

test('for an address on a network without a listener it names the networks that are served', async () => {
  const parts = explaining(['10.0.0.2/8'])
  expect(await explain(parts, 'blue', '10.0.0.2')).toEqual({
    network: 'blue',
    address: '10.0.0.2',
    answer: 'no-listener',
    because: 'this daemon does not serve network blue; it serves default',
  })
})

test('an instance whose guest reaches no listener has the reason', async () => {
  const parts = { ...explaining(['10.0.0.2/8']), unreachable: () => 'an address is missing' }
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({ status: 200, listener: 'an address is missing' })
})

test('while no guest is answered, it says why, and names no instance', async () => {
  const parts = { ...explaining(['10.0.0.2/8'], aFirewall(true)), firewallWait: () => 'no rules yet' }
  expect(await explain(parts, 'default', '10.0.0.2')).toEqual({
    network: 'default',
    address: '10.0.0.2',
    answer: 'unknown-peer',
    status: 503,
    because: 'no rules yet',
  })
})

test('an instance is explained by its addresses; one that is not served by the reason', async () => {
  const parts = explaining(['10.0.0.2/8', '10.0.0.3/8'])
  expect(await explainInstance(parts, 'srv-a')).toMatchObject({
    id: 'srv-a',
    revision: 1,
    addresses: [
      { address: '10.0.0.2', answer: 'metadata' },
      { address: '10.0.0.3', answer: 'metadata' },
    ],
    more: 0,
  })
  expect(await explainInstance(parts, 'srv-b')).toEqual({
    id: 'srv-b',
    reason: 'the store has no record of srv-b',
    addresses: [],
    more: 0,
  })
})

test('of an instance with many addresses the first 16 are explained, since guests wait meanwhile', async () => {
  const many = Array.from({ length: 20 }, (_, i) => `10.0.0.${i + 2}/8`)
  const { addresses, more } = await explainInstance(explaining(many), 'srv-a')
  expect([addresses.length, more]).toEqual([16, 4])
})

test('an explanation has what the firewall has counted, once its agent has reported it', async () => {
  const firewall = aFirewall(false)
  const parts = explaining(['10.0.0.2/8'], firewall)
  expect(await explain(parts, 'default', '10.0.0.2')).not.toHaveProperty('packets')
  const packets = { admitted: 7, unknown_peers: 2, too_many: 0, fragments: 0, strays: 0, operators: 0 }
  firewall.stop() // so that the report is not answered later
  await firewall.next({ applied: undefined, failed: undefined, packets })
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({ packets: { admitted: 7, 'unknown-peers': 2 } })
})

test('an unknown address gets 503, or no response where the rules of the firewall are applied', async () => {
  const firewall = aFirewall(false)
  const parts = explaining(['10.0.0.2/8'], firewall)
  expect(await explain(parts, 'default', '10.0.0.9')).toMatchObject({ answer: 'unknown-peer', status: 503 })
  firewall.documents.setListeners({ listeners: [], operator: { address: '127.0.0.1', port: 9169 }, limitedDscp: 1 })
  firewall.documents.noteComplete()
  const document = await firewall.next(undefined)
  firewall.stop()
  await firewall.next({ applied: document!.version, failed: undefined, packets: undefined })
  const explained = await explain(parts, 'default', '10.0.0.9')
  expect(explained).toMatchObject({ answer: 'unknown-peer' })
  expect(explained).not.toHaveProperty('status')
  expect(explained!.because).toMatch(/the firewall resets its connections$/)
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({ answer: 'metadata', status: 200 })
})

const ADDRESSES = {
  ipv4Addresses: ['10.0.0.2/8', '127.0.0.2/8'],
  ipv6Addresses: ['fd00::2/64', '::1/128'],
}
const IPV6 = { httpProtocolIpv6: 'enabled' }

test.each<[string, { host: string }, string, string, number, Record<string, unknown>?]>([
  ['a known guest', { host: '169.254.169.254' }, '10.0.0.2', '10.0.0.2', 200],
  ['an IPv4 guest at a listener of both families', { host: '::' }, '::ffff:10.0.0.2', '10.0.0.2', 200],
  ['an IPv4-mapped address', { host: '::' }, '::ffff:10.0.0.2', '::ffff:10.0.0.2', 200],
  ['a loopback guest at all addresses', { host: '0.0.0.0' }, '127.0.0.2', '127.0.0.2', 503],
  ['a loopback guest at all addresses of both families', { host: '::' }, '::ffff:127.0.0.2', '127.0.0.2', 503],
  ['an IPv6 loopback guest at all addresses', { host: '::' }, '::1', '::1', 503, IPV6],
  ['a loopback guest at a loopback listener', { host: '127.0.0.1' }, '127.0.0.2', '127.0.0.2', 200],
  ['an unknown peer', { host: '0.0.0.0' }, '10.0.0.9', '10.0.0.9', 503],
  ['a multicast address', { host: '0.0.0.0' }, '224.0.0.1', '224.0.0.1', 503],
  ['an IPv6 guest', { host: '::' }, 'fd00::2', 'fd00::2', 200, IPV6],
  ['an IPv6 guest without the option', { host: '::' }, 'fd00::2', 'fd00::2', 403],
  ['a link-local address', { host: '::' }, 'fe80::1%eth0', 'fe80::1', 503, IPV6],
  ['a disabled endpoint', { host: '0.0.0.0' }, '10.0.0.2', '10.0.0.2', 403, { httpEndpoint: 'disabled' }],
])(
  'explain gives the status that the guest server responds with: %s',
  async (_state, listener, from, address, status, options = {}) => {
    const guest = aGuestServer(listener)
    guest.put(anInstance({ interfaces: loopback(1, ADDRESSES), options }))
    const response = await guest.ask({ url: '/latest/meta-data/instance-id', from })
    const parts = {
      ...explaining([]),
      view: guest.view,
      listeners: [{ network: 'default', ...listener }],
    }
    const explained = await explain(parts, 'default', address)
    expect([response.status, explained?.status]).toEqual([status, status])
  },
)

test('a guest is not answered at an address of a family that no listener has', async () => {
  const parts = explaining(['10.0.0.2/8'])
  const [listener] = parts.listeners
  const onlyIpv6 = { ...parts, listeners: [{ ...listener!, host: 'fd00::254' }] }
  expect(await explain(onlyIpv6, 'default', '10.0.0.2')).toEqual({
    network: 'default',
    address: '10.0.0.2',
    answer: 'no-listener',
    because: 'no listener of network default has an IPv4 address',
  })
})

test('explain names what a response depends on besides the address: session tokens and a seal', async () => {
  const guest = aGuestServer({ host: '0.0.0.0' })
  const options = { httpTokens: 'required' }
  guest.put(
    anInstance({ interfaces: loopback(1, ADDRESSES), options, sealedAt: '2026-11-20T00:00:00Z' }),
    Buffer.from('x'),
  )
  const token = await guest.ask({
    method: 'PUT',
    url: '/latest/api/token',
    headers: { 'x-aws-ec2-metadata-token-ttl-seconds': '60' },
  })
  const headers = { 'x-aws-ec2-metadata-token': token.text }
  expect((await guest.ask('/latest/meta-data/instance-id')).status).toBe(401)
  expect((await guest.ask({ url: '/latest/meta-data/instance-id', headers })).status).toBe(200)
  expect((await guest.ask({ url: '/latest/user-data', headers })).status).toBe(404)
  const parts = {
    ...explaining([]),
    view: guest.view,
    listeners: [{ network: 'default', host: '0.0.0.0' }],
  }
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({
    status: 200,
    sessionTokens: 'required',
    userData: 'sealed since 2026-11-20T00:00:00Z',
  })
})
