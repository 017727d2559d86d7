import { expect, test } from 'vitest'
import { guests } from '../../../../src/imdsctl/doctor/checks-of-guests.ts'
import type { DoctorState } from '../../../../src/imdsctl/doctor/hypervisor-state.ts'
import { documentOf, GUEST, linesOf, settingsOf } from '../../../support/fixtures/look.ts'

const LINK = { ifname: 'tap-int-a', flags: ['UP', 'LOWER_UP'] }

/** What the kernel answers. `asked`: what is sent to `ip -batch`. */
function kernel({
  links = [LINK] as readonly object[],
  neighbours = [] as readonly object[],
  routes = [{ dst: '10.0.0.2', dev: 'tap-int-a' }] as readonly object[],
  asked = [] as string[],
} = {}): Pick<DoctorState, 'run'> {
  return {
    run: (command, input) => {
      const words = command.join(' ')
      if (input !== undefined) asked.push(input)
      const stdout = words.includes('-batch')
        ? routes.map((route) => `${JSON.stringify([route])}\n`).join('')
        : JSON.stringify(words.includes('neighbour') ? neighbours : links)
      return Promise.resolve({ status: words.includes('-batch') && routes.length === 0 ? 1 : 0, stdout })
    },
  }
}

const FINE = 'ok 1 of 1 instance: link, route and MAC address are right'

const STOPPED = 'ok 0 of 1 instance: link, route and MAC address are right; the machines of 1 do not run here'

test('the link of a guest must be up; one that is not there, or without carrier, is of a stopped machine', async () => {
  expect(await linesOf(guests, kernel())).toEqual([FINE])
  expect(await linesOf(guests, kernel({ links: [] }))).toEqual([STOPPED])
  expect(await linesOf(guests, kernel({ links: [{ ...LINK, flags: [] }] }))).toEqual([
    'failure srv-a: link tap-int-a is down',
  ])
  expect(await linesOf(guests, kernel({ links: [{ ...LINK, flags: ['UP', 'NO-CARRIER'] }] }))).toEqual([STOPPED])
  expect(await linesOf(guests, { run: () => Promise.resolve(undefined) })).toEqual([
    'warning not checked: ip cannot be run',
  ])
})

test('packets to an address must leave by the link, or by the bridge that it belongs to', async () => {
  const dst = '10.0.0.2'
  expect(await linesOf(guests, kernel({ routes: [] }))).toEqual(['failure srv-a: there is no route to 10.0.0.2'])
  expect(await linesOf(guests, kernel({ routes: [{ dst, dev: 'eth0', gateway: '192.0.2.1' }] }))).toEqual([
    'failure srv-a: packets to 10.0.0.2 leave by eth0 to the gateway 192.0.2.1, not by tap-int-a',
  ])
  expect(await linesOf(guests, kernel({ routes: [{ dst, dev: 'lo', type: 'local' }] }))).toEqual([
    'failure srv-a: 10.0.0.2 is an address of this hypervisor',
  ])
  const routes = [{ dst, dev: 'br0' }]
  const bridge = { ifname: 'br0', flags: ['UP'], linkinfo: { info_kind: 'bridge' } }
  expect(await linesOf(guests, kernel({ routes, links: [{ ...LINK, master: 'br0' }, bridge] }))).toEqual([FINE])
  expect(
    await linesOf(
      guests,
      kernel({
        routes,
        links: [
          { ...LINK, master: 'br0' },
          { ...bridge, flags: [] },
        ],
      }),
    ),
  ).toEqual(['failure srv-a: link br0 is down'])
})

test('IPv6 that is routed elsewhere is no failure: the guest is served over IPv4', async () => {
  const interfaces = [{ ...GUEST.interfaces[0]!, ipv6Addresses: ['2001:db8::2'] }]
  const routes = [
    { dst: '10.0.0.2', dev: 'tap-int-a' },
    { dst: '2001:db8::2', dev: 'eth0', gateway: 'fe80::1' },
  ]
  const wrong = 'srv-a: packets to 2001:db8::2 leave by eth0 to the gateway fe80::1, not by tap-int-a'
  for (const [address, expected] of [
    ['169.254.169.254', [FINE]],
    ['fd00:ec2::254', [`warning ${wrong}`]],
  ] as const) {
    const listeners = [{ network: 'default', address, port: 80 }]
    const firewall = documentOf({ guests: [{ ...GUEST, interfaces }], listeners })
    expect(await linesOf(guests, { ...kernel({ routes }), firewall })).toEqual(expected)
  }
})

test('a guest in a VRF is looked for in the routes of the VRF', async () => {
  const asked: string[] = []
  const links = [
    { ...LINK, master: 'blue' },
    { ifname: 'blue', flags: ['UP'], linkinfo: { info_kind: 'vrf' } },
  ]
  expect(await linesOf(guests, kernel({ links, asked }))).toEqual([FINE])
  expect(asked.at(-1)).toBe('route get 10.0.0.2 vrf blue\n')
})

test('a neighbour with another MAC address than the record, which a guest can choose, is no failure', async () => {
  const neighbour = { dst: '10.0.0.2', dev: 'tap-int-a', lladdr: '02:24:19:00:00:0A' }
  expect(await linesOf(guests, kernel({ neighbours: [neighbour] }))).toEqual([FINE])
  expect(await linesOf(guests, kernel({ neighbours: [{ ...neighbour, lladdr: '02:00:00:00:00:01' }] }))).toEqual([
    'warning srv-a: 10.0.0.2 has the MAC address 02:00:00:00:00:01, and its record has 02:24:19:00:00:0a',
  ])
})

test('among neighbours on one bridge, the one with the address on the device of its route counts', async () => {
  const links = [
    { ...LINK, master: 'br0' },
    { ifname: 'br0', flags: ['UP'], linkinfo: { info_kind: 'bridge' } },
  ]
  const routes = [{ dst: '10.0.0.2', dev: 'br0' }]
  const own = { dst: '10.0.0.2', dev: 'br0', lladdr: '02:24:19:00:00:0a' }
  const other = '02:00:00:00:00:01'
  for (const before of [
    { dst: '10.0.0.3', dev: 'br0', lladdr: other },
    { dst: '10.0.0.2', dev: 'br1', lladdr: other },
  ])
    expect(await linesOf(guests, kernel({ links, routes, neighbours: [before, own] }))).toEqual([FINE])
  expect(
    await linesOf(
      guests,
      kernel({
        links,
        routes,
        neighbours: [
          { ...own, dst: '10.0.0.3' },
          { ...own, lladdr: other },
        ],
      }),
    ),
  ).toEqual([`warning srv-a: 10.0.0.2 has the MAC address ${other}, and its record has 02:24:19:00:00:0a`])
})

test('an address that is none is not passed to ip, which runs as root', async () => {
  const asked: string[] = []
  const [nic] = GUEST.interfaces
  const ipv4Addresses = ['10.0.0.2\nlink delete eth0', '-batch', '10.0.0.2']
  const guest = { ...GUEST, interfaces: [{ ...nic!, ipv4Addresses }] }
  await linesOf(guests, { ...kernel({ asked }), firewall: documentOf({ guests: [guest] }) })
  expect(asked.at(-1)).toBe('route get 10.0.0.2\n')
})

test('without a firewall and IMDS_LINK the name of a link is not known, and only the route is checked', async () => {
  const settings = settingsOf({ IMDS_LINK: '' })
  const routes = [{ dst: '10.0.0.2', dev: 'vnet0' }]
  expect(await linesOf(guests, { ...kernel({ links: [], routes }), settings })).toEqual([FINE])
  for (const elsewhere of [[], [{ dst: '10.0.0.2', dev: 'mgmt0', gateway: '192.0.2.1' }]])
    expect(await linesOf(guests, { ...kernel({ links: [], routes: elsewhere }), settings })).toEqual([STOPPED])
  const local = [{ dst: '10.0.0.2', dev: 'lo', type: 'local' }]
  expect(await linesOf(guests, { ...kernel({ links: [], routes: local }), settings })).toEqual([
    'failure srv-a: 10.0.0.2 is an address of this hypervisor',
  ])
})

test('an interface that can have no link name is a failure with the rule', async () => {
  const found = await linesOf(guests, { ...kernel(), firewall: documentOf({ link: 'a-long-head-{interfaceId}' }) })
  expect(found).toEqual([
    expect.stringMatching(/^failure srv-a: its link name by the rule a-long-head-\{interfaceId\}/),
  ])
})

test('an older daemon, or one that serves nothing, is not looked at', async () => {
  expect(await linesOf(guests, { ...kernel(), firewall: documentOf({ guests: [] }) })).toEqual([])
})
