import { expect, test } from 'vitest'
import { FORMATS } from '../../../../src/imds-api/model/formats.ts'
import { tagsFault } from '../../../../src/imds-api/model/metadata-options.ts'
import { parseSshKeys } from '../../../../src/imds-api/model/ssh-key.ts'
import { parse } from '../../../../src/metadata/record.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'
import { ODD_TEXTS } from '../../../support/fixtures/odd-texts.ts'

const ED25519 = 'AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5'

test.each<[string, readonly string[], readonly string[]]>([
  ['country-code', ['GB', 'DE'], ['', 'gb', 'UK', 'GBR']],
  ['eu-vat-number', ['DE136695976', 'DE 136 695 976'], ['', 'DE136695977', 'GB980780684']],
  [
    'pointer-name',
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
      ...['_dmarc.example.com', 'a_b.example.com', '*.example.com'],
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
      ...['a', '*', '*.', 'a.*.example.com', '*a.example.com'],
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

test('what is accepted of a text that guests see, a record accepts', () => {
  const accepted = { name: 0, key: 0, tag: 0 }
  for (const odd of ODD_TEXTS.flatMap((text) => [`${text}a`, `a${text}b`, `a${text}`])) {
    const key = parseSshKeys(`ssh-ed25519 ${ED25519} ${odd}`)
    const records: [keyof typeof accepted, boolean, Record<string, unknown>][] = [
      ['name', FORMATS['line']!.isValid(odd), { serverGroups: [{ id: 'grp-a', name: odd }] }],
      ['key', key.ok, { publicKeys: [{ user: 'usr-a', key: key.ok && key.value }] }],
      ['tag', tagsFault({ [odd]: odd }) === undefined, { tags: { [odd]: odd } }],
    ]
    for (const [what, isAccepted, record] of records) {
      if (!isAccepted) continue
      accepted[what]++
      expect([what, odd, parse(anInstance(record)).ok]).toEqual([what, odd, true])
    }
  }
  expect(Object.values(accepted).every((count) => count > 10)).toBe(true)
})
