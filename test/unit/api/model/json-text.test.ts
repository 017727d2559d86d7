import { expect, test } from 'vitest'
import { compactJson, memberText } from '../../../../src/api/model/json-text.ts'

test.each([
  ['{}', undefined],
  ['{"a":1}', undefined],
  ['{"data":1}', '1'],
  ['{ "data" : -1.50e+400 }', '-1.50e+400'],
  ['{"data": {"data": {}} , "x": {"data": 2}}', '{"data": {}}'],
  ['{"x": {"data": 2}, "y": ["data", {"data": 3}], "z": "data"}', undefined],
  ['{"data":1,"data":[ 1 , "]" ],"x":"\\"data\\":2"}', '[ 1 , "]" ]'],
  ['\n{"d\\u0061ta":"\\\\\\"}","b":null}\t', '"\\\\\\"}"'],
  ['{"data":[],"data":""}', '""'],
])('the member data of %j is %j', (json, expected) => { expect(memberText(json, 'data')).toBe(expected) })

test.each([
  ['{ "b" : 1 ,\r\n"a":\t2.0 }', '{"b":1,"a":2.0}', 1],
  ['{"2":1,"10":12345678901234567890,"2":-0}', '{"2":1,"10":12345678901234567890,"2":-0}', 1],
  ['{"\\u0061\\/":"a b\\u00e9\\n\\u0000\\ud800 \\\\"}', '{"a/":"a bé\\n\\u0000\\ud800 \\\\"}', 1],
  ['[[ ],{"__proto__":[true , false,null]},"[["]', '[[],{"__proto__":[true,false,null]},"[["]', 3],
  [' "x" ', '"x"', 0],
  ['{}', '{}', 1],
])('%j is %j', (json, text, levels) => { expect(compactJson(json)).toEqual({ text, levels }) })

/** Values of every kind, nested in each other, with names and texts that look like punctuation. */
function* values(levels: number): Generator {
  yield* [null, true, 0, -1.5e-7, '', '"', '\\', '\\"', '},{"data":', 'é\u0000\ud800\n', [], {}]
  if (levels === 0) return
  for (const value of values(levels - 1)) {
    yield* [[value], [value, value], { '"': value }, { '': value, data: [value], 'a,b': 1 }, { 9: value, '\\': value }]
  }
}

test('any JSON becomes what JSON.stringify writes, and any member is found', () => {
  for (const value of values(2)) {
    for (const name of ['data', '\\"', '{', '']) {
      const object = { [`${name} `]: 1, [name]: value, after: [value] }
      for (const space of [undefined, ' ', '\t']) {
        const json = JSON.stringify(object, undefined, space)
        expect(compactJson(json).text).toBe(JSON.stringify(object))
        expect(compactJson(memberText(json, name)!).text).toBe(JSON.stringify(value))
      }
    }
  }
})

test('text in which each character is an escape, and deep text, are read without recursion', () => {
  const escaped = `"${'\\u0061'.repeat(1_000_000)}"`
  expect(compactJson(`{"data":${escaped}}`).text).toBe(`{"data":"${'a'.repeat(1_000_000)}"}`)
  const deep = `${'['.repeat(1_000_000)}${']'.repeat(1_000_000)}`
  expect(memberText(`{"data":${deep}}`, 'data')).toBe(deep)
  expect(compactJson(deep).levels).toBe(1_000_000)
})
