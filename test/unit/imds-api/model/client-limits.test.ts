import { expect, test } from 'vitest'
import { limitsOf } from '../../../../src/imds-api/model/client-limits.ts'

const limits = (...allow_access: string[]) => limitsOf({ read_only: false, expires_at: null, allow_access })

test('addresses of the networks are allowed, and no others', () => {
  const { allows } = limits('192.0.2.0/24')
  expect(['192.0.2.255', '::ffff:192.0.2.1', '192.0.3.0', ''].map(allows)).toEqual([true, true, false, false])
})

test('without networks every address is allowed, also that of a unix socket', () => {
  for (const address of ['192.0.2.1', '::1', '']) expect(limits().allows(address)).toBe(true)
})
