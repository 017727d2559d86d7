import { expect, test } from 'vitest'
import { firewallGuest } from '../../../../src/imdsd/firewall/firewall.ts'
import { withoutOutranked } from '../../../../src/imdsd/firewall/outranked.ts'
import { buildRules } from '../../../../src/imdsd/firewall/rules.ts'
import { View } from '../../../../src/imdsd/view/view.ts'
import type { Instance } from '../../../../src/metadata/instance.ts'
import { parsed } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const MAC = '02:24:19:00:00:ee'
const LISTENERS = ['169.254.169.254', 'fd00:ec2::254'].map((address) => ({ network: 'default', address, port: 80 }))

const withInterface = (id: string, one: Record<string, unknown>) =>
  parsed(anInstance({ id, interfaces: [{ id: `i-${id}`, macAddress: MAC, ipv4Addresses: [], ...one }] }))

/** A view in which the store has lost the first instance before it got the second one. */
function taken(a: Record<string, unknown>, b: Record<string, unknown>) {
  const view = new View({}, () => 0)
  const put = (id: string, one: Record<string, unknown>) => {
    view.replace({ instance: withInterface(id, one), userData: undefined, digest: id })
  }
  put('srv-a', a)
  view.setUnconfirmed(['srv-a'])
  put('srv-b', b)
  return view
}

/** What the rules of a view admit, each as `link address`, and the answers that they let out. */
function rulesOf(view: View, link = '{interfaceId}') {
  const instances = view.instances().map(({ instance }) => instance)
  const guests = [...withoutOutranked(link, instances.toArray(), view)].map(firewallGuest)
  const operator = { address: '127.0.0.1', port: 9169 }
  const { sets } = buildRules({ version: 'a.1', link, listeners: LISTENERS, operator, limitedDscp: 0x0b, guests }, [])
  const keys = (...names: string[]) => names.flatMap((name) => [...(sets.get(name)?.keys() ?? [])])
  return {
    admitted: keys('guests4', 'guests6', 'prefixes6').map((key) => {
      const [name, , source] = key.split(' . ')
      return `${JSON.parse(name!) as string} ${source!}`
    }),
    answered: keys('answers4', 'answers6', 'ranges6').map((key) => key.replaceAll('"', '').replace(' . ', ' ')),
  }
}

test('invariant 7: the rules admit no guest at an address that its instance has lost, and at its others', () => {
  const view = taken({ ipv4Addresses: ['10.0.0.2/30', '10.0.0.5/30'] }, { ipv4Addresses: ['10.0.0.2/30'] })
  const both = ['i-srv-a 10.0.0.5', 'i-srv-b 10.0.0.2']
  expect(rulesOf(view)).toEqual({ admitted: both, answered: both })
  view.setConfirmed('srv-a') // both claim the address at one rank: its guests get 503
  expect(rulesOf(view).admitted).toEqual(['i-srv-a 10.0.0.2', ...both])
})

test('invariant 7: on a bridge, the rules admit one MAC address at an address that was lost', () => {
  const address = { ipv4Addresses: ['10.0.0.2/30'] }
  const view = taken({ ...address, macAddress: '02:24:19:00:00:0a' }, address)
  expect(rulesOf(view, 'br0').admitted).toEqual(['br0 10.0.0.2'])
})

test.each([
  ['a lost address is in a prefix', ['fd00:1::/64', 'fd00:2::/64'], [], [], ['fd00:1::5'], ['fd00:2::/64']],
  ['a lost prefix has an address', [], ['fd00:1::5', 'fd00:2::5'], ['fd00:1::/64'], [], ['fd00:2::5']],
  ['a lost prefix is in a prefix', ['fd00:1::/48', 'fd00:2::/64'], [], ['fd00:1::/64'], [], ['fd00:2::/64']],
] as const)(
  'invariant 7: %s, and the rules admit its former instance at neither',
  (_what, ipv6Prefixes, ipv6Addresses, prefixes, addresses, kept) => {
    const view = taken({ ipv6Prefixes, ipv6Addresses }, { ipv6Prefixes: prefixes, ipv6Addresses: addresses })
    const all = rulesOf(view).admitted.toSorted()
    expect(all).toEqual([
      ...kept.map((one) => `i-srv-a ${one}`),
      ...[...prefixes, ...addresses].map((one) => `i-srv-b ${one}`),
    ])
  },
)

test('an address that was lost on one network stays on another', () => {
  const view = taken({ ipv4Addresses: ['10.0.0.2/30'] }, { ipv4Addresses: ['10.0.0.2/30'], network: 'red' })
  expect(rulesOf(view).admitted).toEqual(['i-srv-a 10.0.0.2'])
})

test('an instance has no interface whose link one of a higher rank needs', () => {
  const [a, b] = ['srv-a', 'srv-b'].map((id) => withInterface(id, { id: 'int-1' })) as [Instance, Instance]
  const of = (rule: string, ...outranked: string[]) =>
    withoutOutranked(rule, [a, b], {
      rankOf: (id) => (outranked.includes(id) ? 1 : Infinity),
      lost: () => new Map(),
    }).map(({ interfaces }) => interfaces.length)
  expect(of('tap-{interfaceId}', 'srv-a')).toEqual([0, 1])
  expect([of('tap-{interfaceId}'), of('tap-{interfaceId}', 'srv-a', 'srv-b'), of('br0', 'srv-a')]).toEqual([
    [1, 1],
    [1, 1],
    [1, 1],
  ])
})

test('an instance that the store no longer has, and that has lost nothing, stays the same', () => {
  const view = taken({ ipv4Addresses: ['10.0.0.5/30'] }, { ipv4Addresses: ['10.0.0.2/30'] })
  const instances = view
    .instances()
    .map(({ instance }) => instance)
    .toArray()
  for (const [at, one] of withoutOutranked('{interfaceId}', instances, view).entries()) expect(one).toBe(instances[at])
})
