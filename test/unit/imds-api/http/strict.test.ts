import Type from 'typebox'
import { expect, test } from 'vitest'
import { prefersStrict, unknownNames } from '../../../../src/imds-api/http/strict.ts'

test.each([
  ['handling=strict', true],
  ['HANDLING = Strict', true],
  ['handling="strict"', true],
  ['respond-async, wait=10, handling=strict; x=1', true],
  ['handling=strict, handling=lenient', true],
  ['handling=lenient, handling=strict', false],
  ['', false],
  ['handling', false],
  ['handling=strictly', false],
  ['x-handling=strict', false],
  ['handling=', false],
])('Prefer: %s: strict is %s', (header, isStrict) => expect(prefersStrict(header)).toBe(isStrict))

const Schema = Type.Object({
  name: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  list: Type.Optional(Type.Array(Type.Union([Type.String(), Type.Object({ id: Type.String() })]))),
  inner: Type.Optional(Type.Object({ a: Type.Optional(Type.Integer()) })),
  any: Type.Optional(Type.Object({})),
  tags: Type.Optional(Type.Record(Type.String(), Type.String())),
})

test.each([
  [{ name: null, list: ['a', { id: 'b' }], inner: { a: 1 }, any: { x: { y: [1] } }, tags: { x: 'y' } }, []],
  [{ colour: 1, name: 'x', id: { x: 1 } }, ['colour', 'id']],
  [{ list: ['a', { id: 'b', name: 'x' }, { colour: 1 }] }, ['list.1.name', 'list.2.colour']],
  [{ inner: { a: { deep: 1 }, b: 2 } }, ['inner.b']],
  [JSON.parse('{"__proto__":1,"constructor":2}'), ['__proto__', 'constructor']],
  [{ list: { x: 1 }, inner: [{ x: 1 }], tags: [1], any: 2 }, []],
  [[{ x: 1 }], []],
  ['text', []],
  [1, []],
] as [unknown, string[]][])('the unknown names of %j are %j', (value, names) => {
  expect(unknownNames(Schema as object, value)).toEqual(names)
})
