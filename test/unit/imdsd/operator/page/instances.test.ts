import { expect, test } from 'vitest'
import { formatInstances } from '../../../../../src/imdsd/operator/page/instances.ts'
import type { Question } from '../../../../../src/pages/search.ts'
import { aGuestServer } from '../../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../../support/fixtures/instance.ts'

const interfaceOf = (addresses: object, network = 'default') => ({
  id: 'int-a',
  network,
  macAddress: '02:24:19:00:00:ee',
  ...addresses,
})

/** A view with 120 instances, and the ids of the instances on a page. */
function aTable() {
  const guest = aGuestServer()
  for (let i = 0; i < 120; i++)
    guest.put(
      anInstance({
        id: `srv-${String(i).padStart(3, '0')}`,
        interfaces: [interfaceOf({ ipv4Addresses: [`10.0.1.${i}/16`] })],
      }),
    )
  const { view, requests, clock } = guest
  const text = async (question: Partial<Question>) =>
    (
      await formatInstances(
        { instances: view.instances(), requests, nowMs: clock.ms },
        { search: '', page: 1, ...question },
      )
    ).toString()
  const ids = async (question: Partial<Question>) =>
    [...(await text(question)).matchAll(/<a href="\?q=[^"]*">(srv-[^<]*)/g)].map(([, id]) => id)
  return { ...guest, text, ids }
}

test('a page has 50 instances, sorted by their ids', async () => {
  const { ids } = aTable()
  expect(await ids({})).toEqual(Array.from({ length: 50 }, (_, i) => `srv-${String(i).padStart(3, '0')}`))
  expect(await ids({ page: 3 })).toHaveLength(20)
})

test('a search finds a part of an id or of an address, and an IPv6 address in any form or in a prefix', async () => {
  const { put, ids } = aTable()
  put(
    anInstance({
      id: 'srv-v6',
      interfaces: [interfaceOf({ ipv6Addresses: ['fd00::a/64'], ipv6Prefixes: ['fd00:0:0:7::/64'] })],
    }),
  )
  expect(await ids({ search: 'SRV-11' })).toHaveLength(10)
  expect(await ids({ search: '10.0.1.77' })).toEqual(['srv-077'])
  for (const search of ['fd00::a', 'FD00:0::000A', 'fd00:0:0:7::1234'])
    expect(await ids({ search })).toEqual(['srv-v6'])
  expect(await ids({ search: '<script>' })).toEqual([])
})

test('an instance has its addresses, of which only a few are shown, and what its guest asked for', async () => {
  const { put, ask, clock, text } = aTable()
  clock.ms = 1_000
  const ipv4Addresses = ['10.0.0.2', ...Array.from({ length: 9 }, (_, i) => `10.9.0.${i}`)]
  put(
    anInstance({ id: 'srv-x', interfaces: [interfaceOf({ ipv4Addresses: ipv4Addresses.map((one) => `${one}/16`) })] }),
  )
  for (const url of ['/latest/meta-data/instance-id', '/latest/user-data', '/latest/x']) await ask(url)
  expect(await text({ search: 'srv-x' })).toMatch(/10\.0\.0\.2, 10\.9\.0\.0, 10\.9\.0\.1, 10\.9\.0\.2, 6 more/)
  expect(await text({ search: 'srv-x' })).toMatch(/data-of="requests">3<.*user-data: not-found/)
  expect(await text({ search: 'srv-000' })).toMatch(/>0<.*none yet/)
})
