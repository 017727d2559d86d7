import { expect, test } from 'vitest'
import { cloudIpFqdn } from '../../../../src/imds-api/model/names.ts'

test('the host name of a cloud IP has its address', () => {
  expect(cloudIpFqdn('gb1.example.com', '109.107.36.145')).toBe('cip-109-107-36-145.gb1.example.com')
})
