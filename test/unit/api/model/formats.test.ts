import { expect, test } from 'vitest'
import { FORMATS } from '../../../../src/api/model/formats.ts'

test.each<[string, readonly string[], readonly string[]]>([
  ['country-code', ['GB', 'DE'], ['', 'gb', 'UK', 'GBR']],
  ['eu-vat-number', ['DE136695976', 'DE 136 695 976'], ['', 'DE136695977', 'GB980780684']],
  ['line', ['', 'St James\'s Square', 'Zürich', '東京'], ['a\n', 'a\tb', '\0', '\u0085', '\u007f']],
  ['telephone', ['+442079460000', '+123456789012345'], ['', '442079460000', '+0442079460000', '+44 20 7946 0000', '+44(0)2079460000', '+1234567890123456', '+44', '+442079460000\n', '00442079460000']],
])('%s', (name, valid, invalid) => {
  const { isValid, fault } = FORMATS[name]!
  expect(valid.filter((text) => !isValid(text))).toEqual([])
  expect(invalid.filter(isValid)).toEqual([])
  expect(fault).toMatch(/^must /)
})
