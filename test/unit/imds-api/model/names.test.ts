import { expect, test } from 'vitest'
import { cloudIpFqdn, ipv6Fqdn } from '../../../../src/imds-api/model/names.ts'

test('the host name of a cloud IP has its address', () => {
  expect(cloudIpFqdn('gb1.example.com', '109.107.36.145')).toBe('cip-109-107-36-145.gb1.example.com')
})

test('the host name of an IPv6 address has the id of its server', () => {
  expect(ipv6Fqdn('gb1.example.com', 'srv-6ilgo')).toBe('ipv6.srv-6ilgo.gb1.example.com')
})
