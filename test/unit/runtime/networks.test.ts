import { expect, test } from 'vitest'
import { buildNetworkTest, isNetwork } from '../../../src/runtime/networks.ts'

test.each<[string, boolean]>([
  ['10.1.0.1', true],
  ['10.1.255.255', true],
  ['10.2.0.1', false],
  ['192.0.2.1', true],
  ['192.0.2.2', false],
  ['fd00::1', true],
  ['fe80::1', false],
  ['2001:db8::1', true],
  ['2001:db8::2', false],
  ['::ffff:10.1.0.1', true],
  ['::ffff:10.2.0.1', false],
  ['', false],
  ['unknown', false],
  ['10.1.0.1:80', false],
])('%j belongs to the networks: %s', (address, isMember) => {
  expect(buildNetworkTest(['10.1.0.0/16', '192.0.2.1', 'fd00::/8', '2001:db8::1'])(address)).toBe(isMember)
})

test('an empty list has no address', () => expect(buildNetworkTest([])('127.0.0.1')).toBe(false))

test('a network is an address, or one with the length of its prefix', () => {
  const valid = ['192.0.2.1', '192.0.2.0/24', '0.0.0.0/0', '2001:db8::1', '2001:db8::/32', '::/0', '10.0.0.1/32']
  const wrong = [
    '',
    '192.0.2.0/33',
    '2001:db8::/129',
    '192.0.2',
    'a.example',
    '::1%lo',
    '10.0.0.0/8/8',
    '10.0.0.0/',
    '10.0.0.0/-1',
  ]
  expect([valid.filter(isNetwork), wrong.filter(isNetwork)]).toEqual([valid, []])
})
