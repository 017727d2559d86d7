import { expect, test } from 'vitest'
import { buildClientAddress } from '../../../../src/imds-api/http/client-address.ts'

const PROXY = '192.0.2.250'

/** The address of the client of a request. `peer`: null for a unix socket. */
function addressOf(forwarded: string | undefined, peer: string | null = PROXY, trusted = [PROXY, '10.0.0.0/8']) {
  const headers = forwarded === undefined ? {} : { 'x-forwarded-for': forwarded }
  return buildClientAddress(trusted)({ socket: { remoteAddress: peer ?? undefined } as never, headers })
}

test.each([
  ['198.51.100.8', '198.51.100.8'],
  ['198.51.100.8:20001', '198.51.100.8'],
  ['2001:DB8:0::1', '2001:db8::1'],
  ['[2001:db8::1]', '2001:db8::1'],
  ['[2001:db8::1]:443', '2001:db8::1'],
  ['[::ffff:198.51.100.8]:443', '198.51.100.8'],
  ['203.0.113.9, 198.51.100.8', '198.51.100.8'],
  ['198.51.100.8, 10.1.2.3:55', '198.51.100.8'],
  ['198.51.100.8:1,10.1.2.3:55 , [::ffff:10.0.0.9]', '198.51.100.8'],
  [', 10.1.2.3', '10.1.2.3'],
  [undefined, PROXY],
  ['', PROXY],
  ['unknown', PROXY],
  ['198.51.100.256', PROXY],
  ['198.51.100.8:x', PROXY],
  ['198.51.100.8:99999', PROXY],
  ['2001:db8::/32', PROXY],
  ['198.51.100.8, _hidden', PROXY],
])('what a trusted proxy names as %j is %s', (forwarded, address) => expect(addressOf(forwarded)).toBe(address))

test('a peer that is not trusted names nobody', () => {
  expect(addressOf('198.51.100.8', '203.0.113.9')).toBe('203.0.113.9')
  expect(addressOf('198.51.100.8', '::ffff:203.0.113.9')).toBe('203.0.113.9')
  expect(addressOf('198.51.100.8', '::ffff:10.0.0.9')).toBe('198.51.100.8')
  expect(addressOf('198.51.100.8', null, [])).toBe('')
  expect(addressOf('198.51.100.8', null, ['unix:'])).toBe('198.51.100.8')
})

test('at most 16 proxies in a row are followed, and a long text is not read', () => {
  expect(addressOf(`198.51.100.8${',10.0.0.1'.repeat(15)}`)).toBe('198.51.100.8')
  expect(addressOf(`198.51.100.8${',10.0.0.1'.repeat(16)}`)).toBe('10.0.0.1')
  expect(addressOf(`${'1:'.repeat(8_000)}1`)).toBe(PROXY)
})
