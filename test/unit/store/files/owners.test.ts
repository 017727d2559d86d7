import { expect, test } from 'vitest'
import { Owners } from '../../../../src/store/files/owners.ts'

const on = (range: string, network = 'default') => ({ network, range })

test('the owner of an address is found by text, on its network only, until it is removed', () => {
  const owners = new Owners()
  owners.add('srv-a', [on('10.0.0.2'), on('fd00::2')])
  owners.add('srv-b', [on('10.0.0.2')])
  expect([
    owners.overlapping(on('10.0.0.2')),
    owners.overlapping(on('10.0.0.2', 'red')),
    owners.overlapping(on('10.0.0.20')),
  ]).toEqual([new Set(['srv-a', 'srv-b']), new Set(), new Set()])
  owners.remove('srv-a', [on('10.0.0.2'), on('fd00::2')])
  expect([owners.overlapping(on('10.0.0.2')), owners.overlapping(on('fd00::2'))]).toEqual([
    new Set(['srv-b']),
    new Set(),
  ])
})

test('a prefix overlaps the prefixes around it, and the prefixes and addresses inside it', () => {
  const owners = new Owners()
  owners.add('srv-a', [on('fd00::/48'), on('10.0.0.2')])
  owners.add('srv-b', [on('fd00:0:0:20::/60')])
  owners.add('srv-c', [on('fd00:0:0:20::7')])
  owners.add('srv-d', [on('fd00:0:1::/48')])
  expect(owners.overlapping(on('fd00:0:0:20::7'))).toEqual(new Set(['srv-a', 'srv-b', 'srv-c']))
  expect(owners.overlapping(on('fd00:0:0:20::8'))).toEqual(new Set(['srv-a', 'srv-b']))
  expect(owners.overlapping(on('fd00:0:0:20::/64'))).toEqual(new Set(['srv-a', 'srv-b', 'srv-c']))
  expect(owners.overlapping(on('fd00:0:0:30::/60'))).toEqual(new Set(['srv-a']))
  expect(owners.overlapping(on('fd00:0:1:1::/64'))).toEqual(new Set(['srv-d']))
})
