import { pino } from 'pino'
import { expect, test } from 'vitest'
import { Firewall } from '../../../src/firewall/firewall.ts'
import { explain, explainInstance } from '../../../src/operator/explain.ts'
import { View } from '../../../src/view/view.ts'
import { parsed } from '../../support/fixtures/guest-server.ts'
import { anInstance } from '../../support/fixtures/instance.ts'

const aFirewall = (required: boolean) =>
  new Firewall({
    required,
    link: 'tap-{interfaceId}',
    instances: () => [],
    now: () => 0,
    epoch: 'e',
    firstApplied: () => undefined,
    log: pino({ level: 'silent' }),
  })

test('for a contested address it names the claimants and no other conflict', async () => {
  const view = new View({}, () => 0)
  const firewall = aFirewall(false)
  for (const [id, address] of [
    ['srv-a', '10.0.0.2'],
    ['srv-b', '10.0.0.2'],
    ['srv-c', '10.0.0.3'],
    ['srv-d', '10.0.0.3'],
  ] as const) {
    const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses: [`${address}/8`] }]
    view.replace({ instance: parsed(anInstance({ id, interfaces })), userData: undefined, digest: id })
  }
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  expect(
    await explain(
      {
        view,
        firewall,
        networks: ['default'],
        unserved: [],
        hold: () => undefined,
        diagnosis,
        unreachable: () => undefined,
        recent: () => [],
      },
      'default',
      '10.0.0.2',
    ),
  ).toMatchObject({
    answer: 'contested-address',
    status: 503,
    because: 'more than one instance claims it: 10.0.0.2 by srv-a and srv-b',
  })
})

test('on a network that is not served a guest gets no response, whatever the view has', async () => {
  const view = new View({}, () => 0)
  const firewall = aFirewall(false)
  view.replace({
    instance: parsed(
      anInstance({
        interfaces: [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', network: 'red', ipv4Addresses: ['10.0.0.2/8'] }],
      }),
    ),
    userData: undefined,
    digest: 'a',
  })
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  const parts = {
    view,
    firewall,
    hold: () => undefined,
    diagnosis,
    unreachable: () => undefined,
    recent: () => [],
    unserved: [{ network: 'red', problem: 'its socket has no link' }],
  }
  expect(await explain({ ...parts, networks: [] }, 'red', '10.0.0.2')).toEqual({
    network: 'red',
    address: '10.0.0.2',
    answer: 'no-listener',
    because: 'its socket has no link',
  })
  expect(await explain({ ...parts, networks: [] }, 'blue', '10.0.0.2')).toMatchObject({
    because: 'this daemon does not serve network blue; it serves none',
  })
})

test('while no guest is answered, it says why, and names no instance', async () => {
  const view = new View({}, () => 0)
  const firewall = aFirewall(true)
  view.replace({ instance: parsed(anInstance({})), userData: undefined, digest: 'a' })
  const diagnosis = { instance: () => Promise.resolve(undefined), address: () => Promise.resolve('') }
  expect(
    await explain(
      {
        view,
        firewall,
        networks: ['default'],
        unserved: [],
        hold: () => 'no rules yet',
        diagnosis,
        unreachable: () => undefined,
        recent: () => [],
      },
      'default',
      '10.0.0.2',
    ),
  ).toEqual({ network: 'default', address: '10.0.0.2', answer: 'unknown-peer', status: 503, because: 'no rules yet' })
})

/** What explains an instance with some addresses, on a firewall with or without packets. */
function explaining(ipv4Addresses: readonly string[], firewall = aFirewall(false)) {
  const view = new View({}, () => 0)
  const interfaces = [{ id: 'int-a', macAddress: '02:24:19:00:00:ee', ipv4Addresses, ipv6Prefixes: ['fd00::/64'] }]
  view.replace({ instance: parsed(anInstance({ id: 'srv-a', interfaces })), userData: undefined, digest: 'a' })
  return {
    view,
    firewall,
    networks: ['default'],
    unserved: [],
    hold: () => undefined,
    diagnosis: {
      instance: (id: string) => Promise.resolve(id === 'srv-a' ? undefined : `the store has no record of ${id}`),
      address: () => Promise.resolve(''),
    },
    unreachable: () => undefined,
    recent: () => [],
  }
}

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
  const many = Array.from({ length: 20 }, (_, i) => `10.0.0.${String(i + 2)}/8`)
  const { addresses, more } = await explainInstance(explaining(many), 'srv-a')
  expect([addresses.length, more]).toEqual([16, 4])
})

test('an explanation has what the firewall has counted, once its agent has reported it', async () => {
  const firewall = aFirewall(false)
  const parts = explaining(['10.0.0.2/8'], firewall)
  expect(await explain(parts, 'default', '10.0.0.2')).not.toHaveProperty('packets')
  const packets = { admitted: 7, unknown_peers: 2, too_many: 0, fragments: 0, strays: 0, operators: 0 }
  firewall.stop() // so that the report is not answered later
  await firewall.next({ applied: undefined, refused: [], packets })
  expect(await explain(parts, 'default', '10.0.0.2')).toMatchObject({ packets: { admitted: 7, 'unknown-peers': 2 } })
})
