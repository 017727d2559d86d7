import { expect, test } from 'vitest'
import { FORMATS } from '../../../../src/api/model/formats.ts'

test.each<[string, readonly string[], readonly string[]]>([
  ['country-code', ['GB', 'DE'], ['', 'gb', 'UK', 'GBR']],
  ['eu-vat-number', ['DE136695976', 'DE 136 695 976'], ['', 'DE136695977', 'GB980780684']],
  [
    'host-name',
    [
      'www.example.com',
      'www.example.com.',
      'WWW.Example.COM',
      'a.b',
      '1.example.com',
      '3com.com',
      'a-b.example.com',
      'xn--bcher-kva.example',
      'example.xn--p1ai',
      '1-2-3.4a',
      'a.b1',
      `${'a'.repeat(63)}.com`,
      `${'a.'.repeat(126)}b`,
      `${'a.'.repeat(126)}b.`,
      'a--b.com',
    ],
    [
      '',
      '.',
      'localhost',
      'localhost.',
      '.example.com',
      'www..example.com',
      'www.example.com..',
      '-a.com',
      'a-.com',
      'a_b.com',
      '_dmarc.example.com',
      '*.example.com',
      'bücher.example',
      'a b.com',
      'www.example.com ',
      'www.example.com\n',
      'a.com/',
      'a.com:80',
      '203.0.113.7',
      '2001:db8::1',
      'example.123',
      `${'a'.repeat(64)}.com`,
      `${'a.'.repeat(126)}bb`,
      'a.\0b',
    ],
  ],
  ['line', ['', "St James's Square", 'Zürich', '東京'], ['a\n', 'a\tb', '\0', '\u0085', '\u007f']],
  [
    'telephone',
    ['+442079460000', '+123456789012345'],
    [
      '',
      '442079460000',
      '+0442079460000',
      '+44 20 7946 0000',
      '+44(0)2079460000',
      '+1234567890123456',
      '+44',
      '+442079460000\n',
      '00442079460000',
    ],
  ],
])('%s', (name, valid, invalid) => {
  const { isValid, fault } = FORMATS[name]!
  expect(valid.filter((text) => !isValid(text))).toEqual([])
  expect(invalid.filter(isValid)).toEqual([])
  expect(fault).toMatch(/^must /)
})
