import { expect, test } from 'vitest'
import { allowsAddress, isNetwork, limitsOf } from '../../../../src/imds-api/model/client-limits.ts'

const limits = (...allow_access: string[]) => limitsOf({ read_only: false, expires_at: null, allow_access })

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

test('addresses of the networks are allowed, and no others', () => {
  const some = limits('192.0.2.0/24', '198.51.100.7', '2001:db8::/32')
  const of = ['192.0.2.255', '198.51.100.7', '2001:db8:ffff::1', '::ffff:192.0.2.1']
  const others = ['192.0.3.0', '198.51.100.8', '2001:db9::1', '', 'x']
  expect([of.filter((one) => allowsAddress(some, one)), others.filter((one) => allowsAddress(some, one))]).toEqual([
    of,
    [],
  ])
})

test('without networks every address is allowed, also that of a unix socket', () => {
  for (const address of ['192.0.2.1', '::1', '']) expect(allowsAddress(limits(), address)).toBe(true)
})
