import { expect, test } from 'vitest'
import { escapeControls, escapeJsonLine } from '../../../src/runtime/escape.ts'

const HOSTILE = 'a\u001b[2Jb\u009b31m\u007f\r\n\tc\u2028d\u202ee\u2066'

test('control characters are escaped as in JSON: in lines all but tab and newline, in columns all', () => {
  expect(escapeControls(HOSTILE)).toBe('a\\u001b[2Jb\\u009b31m\\u007f\\u000d\\u000a\\u0009c\\u2028d\\u202ee\\u2066')
  expect(escapeControls('a\u001b\n\tb', true)).toBe('a\\u001b\n\tb')
})

test('a line of JSON keeps its meaning', () => {
  for (const value of [{ HOSTILE }, { [HOSTILE]: ['é ü 漢 😀'] }]) {
    expect(JSON.parse(escapeControls(JSON.stringify(value)))).toEqual(value)
    expect(JSON.parse(escapeJsonLine(`${JSON.stringify(value)}\n`))).toEqual(value)
    expect(escapeJsonLine(`${JSON.stringify(value)}\n`)).toMatch(
      // eslint-disable-next-line no-control-regex
      /^[^\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]+\n$/,
    )
  }
})
