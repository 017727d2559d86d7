import { expect, test } from 'vitest'
import { isEmailAddress } from '../../../../src/imds-api/model/email-address.ts'

test.each([
  'ada@example.com',
  'ada.lovelace+imds@example.co.uk',
  'ADA@EXAMPLE.COM',
  "o'hara@example.com",
  'a@b',
  "!#$%&'*+-/=?^_`{|}~@example.com",
  '"ada lovelace"@example.com',
  '"a\\"b@c"@example.com',
  '""@example.com',
  `${'a'.repeat(64)}@example.com`,
  `a@${'b'.repeat(252)}`,
])('%s is an address', (text) => {
  expect(isEmailAddress(text)).toBe(true)
})

test.each([
  '',
  'ada',
  '@example.com',
  'ada@',
  'ada@@example.com',
  'ada@b@example.com',
  '.ada@example.com',
  'ada.@example.com',
  'a..b@example.com',
  'ada@example..com',
  'ada@.com',
  'ada@example.com.',
  'ada lovelace@example.com',
  ' ada@example.com',
  'ada@example.com ',
  'ada@exam ple.com',
  'Ada <ada@example.com>',
  'ada@example.com, eve@example.com',
  'ada@example.com\r\nBcc: eve@example.com',
  'ada@example.com\n',
  '"ada@example.com',
  '"a"b@example.com',
  '"a\r\nb"@example.com',
  '"a<b>"@example.com',
  'ada@[192.0.2.1',
  'ada@[192.0.2.1]',
  'ada@[127.0.0.1]',
  'ada@[IPv6:2001:db8::1]',
  'ada@[a b]',
  'ådå@example.com',
  'ada@exämple.com',
  'ada(comment)@example.com',
  'a\0@example.com',
  `${'a'.repeat(65)}@example.com`,
  `a@${'b'.repeat(253)}`,
])('%j is not an address', (text) => {
  expect(isEmailAddress(text)).toBe(false)
})
