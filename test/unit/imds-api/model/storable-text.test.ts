import { expect, test } from 'vitest'
import { STORABLE_KEYWORD, withStorableText } from '../../../../src/imds-api/model/storable-text.ts'

test('every string with a place is checked, and keys and values of any name are not', () => {
  const schema = {
    type: 'object',
    properties: {
      a: { anyOf: [{ type: 'string' }, { type: 'null' }] },
      b: { type: 'array', items: { type: 'string' } },
      tags: { type: 'object', patternProperties: { x: { type: 'string' } } },
    },
  }
  expect(withStorableText(schema)).toEqual({
    type: 'object',
    properties: {
      a: { anyOf: [{ type: 'string', storable: true }, { type: 'null' }] },
      b: { type: 'array', items: { type: 'string', storable: true } },
      tags: schema.properties.tags,
    },
  })
})

test('U+0000 and half of a surrogate pair cannot be stored', () => {
  expect(['', 'a\n', '😀'].map((text) => STORABLE_KEYWORD.validate(true, text))).toEqual([true, true, true])
  expect(['a\0', '\ud800', '\udc00a'].map((text) => STORABLE_KEYWORD.validate(true, text))).toEqual([
    false,
    false,
    false,
  ])
})
