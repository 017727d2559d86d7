import { expect, test } from 'vitest'
import { decodeText } from '../../../src/runtime/text-file.ts'

test.each([
  ['', ''],
  ['grüß 😀\n', 'grüß 😀\n'],
  ['\ufeffa: 1\n', 'a: 1\n'],
  ['a\ufffdb\0', 'a\ufffdb\0'],
])('UTF-8 is text, without a byte order mark: %j', (text, expected) => {
  expect(decodeText(Buffer.from(text))).toBe(expected)
})

test.each([
  ['Latin-1', Buffer.from('grüß', 'latin1'), 2],
  ['after a replacement character and an emoji', Buffer.from([...Buffer.from('\ufffd😀'), 0xff, 0x41]), 7],
  ['after a byte order mark', Buffer.from([0xef, 0xbb, 0xbf, 0x41, 0xc3]), 4],
  ['half of a surrogate pair', Buffer.from([0x61, 0xed, 0xa0, 0x80]), 1],
  ['a character that is cut off', Buffer.from([0x61, 0xf0, 0x9f, 0x98]), 1],
])('other bytes are refused with the offset of the first wrong one: %s', (_what, bytes, offset) => {
  expect(() => decodeText(bytes)).toThrow(`it is not UTF-8: the byte at offset ${offset} is wrong`)
  expect(() => decodeText(bytes, 100)).toThrow(`offset ${offset + 100} `)
})

test.each(['\ufeff{"a": 1}', '{"a": 1}'])('UTF-16 is named: %j', (text) => {
  const bytes = Buffer.from(text, 'utf16le')
  for (const one of [bytes, Buffer.from(bytes).swap16()]) expect(() => decodeText(one)).toThrow('UTF-16')
})
