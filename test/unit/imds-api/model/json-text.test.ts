import { expect, test } from 'vitest'
import { boundsFault, compactJson, jsonFault, memberTexts } from '../../../../src/imds-api/model/json-text.ts'
import { TurnBudget } from '../../../../src/limits/turn-budget.ts'

const budget = new TurnBudget()
const memberText = async (json: string, name: string) => (await memberTexts(json, budget)).get(name)
const compact = (json: string) => compactJson(json, budget)
const fault = (json: string) => jsonFault(json, 100, budget)

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
])('the member data of %j is %j', async (json, expected) => expect(await memberText(json, 'data')).toBe(expected))

test.each([
  ['{ "b" : 1 ,\r\n"a":\t2.0 }', '{"b":1,"a":2.0}'],
  ['{"2":1,"10":12345678901234567890,"2":-0}', '{"2":1,"10":12345678901234567890,"2":-0}'],
  ['{"\\u0061\\/":"a b\\u00e9\\n\\u0000\\ud800 \\\\"}', '{"a/":"a bé\\n\\u0000\\ud800 \\\\"}'],
  ['[[ ],{"__proto__":[true , false,null]},"[["]', '[[],{"__proto__":[true,false,null]},"[["]'],
  [' "x" ', '"x"'],
])('%j is %j', async (json, text) => expect(await compact(json)).toBe(text))

/** Values of every kind, nested in each other, with names and texts that look like punctuation. */
function* values(levels: number): Generator {
  yield* [null, true, 0, -1.5e-7, '', '"', '\\', '\\"', '},{"data":', 'é\u0000\ud800\n', [], {}]
  if (levels === 0) return
  for (const value of values(levels - 1)) {
    yield* [[value], [value, value], { '"': value }, { '': value, data: [value], 'a,b': 1 }, { 9: value, '\\': value }]
  }
}

test('any JSON becomes what JSON.stringify writes, is without fault, and any member is found', async () => {
  for (const value of values(2)) {
    for (const name of ['data', '\\"', '{', '']) {
      const object = { [`${name} `]: 1, [name]: value, after: [value] }
      for (const space of [undefined, ' ', '\t']) {
        const json = JSON.stringify(object, undefined, space)
        expect(await fault(json)).toBeUndefined()
        expect(await compact(json)).toBe(JSON.stringify(object))
        expect(await compact((await memberText(json, name))!)).toBe(JSON.stringify(value))
      }
    }
  }
})

test.each([
  ['', 'it ends too early: it must have a value'],
  ['{"a":', 'it ends too early: it must have a value'],
  ['["', 'it must have a value or ] at position 1'],
  ['{"a":1,}', 'it must have a name at position 7'],
  ['[1,]', 'it must have a value at position 3'],
  ['[1}', 'it must have , or ] at position 2'],
  ['{]', 'it must have a name or } at position 1'],
  ['{"a" 1}', 'it must have : at position 5'],
  ['{a:1}', 'it must have a name or } at position 1'],
  ['[1]]', 'it must have the end at position 3'],
  ['{"a":1 "b":2}', 'it must have , or } at position 7'],
  [']', 'it must have a value at position 0'],
  ['{"a":{}', 'it ends too early: it must have , or }'],
])('%s is no JSON: %s', async (text, expected) => expect(await fault(text)).toBe(expected))

test('a text has a fault exactly if JSON.parse does not accept it', async () => {
  const pieces = [
    '{',
    '}',
    '[',
    ']',
    ',',
    ':',
    '"a"',
    '"\\u00e9"',
    '"\\x"',
    '"\n"',
    '"',
    '"\\',
    '1',
    '-0',
    '01',
    '1.',
    '-',
    '1e5',
    'tru',
    'null',
    'null1',
    '\u{feff}',
    '\u00a0',
    ' ',
    '+1',
    'NaN',
    '1"a"',
    '""1',
  ]
  const isAccepted = (text: string) => {
    try {
      JSON.parse(text)
      return true
    } catch {
      return false
    }
  }
  const texts = pieces.flatMap((one) => [
    one,
    ...pieces.flatMap((two) => [
      one + two,
      `[${one}${two}]`,
      `{${one}${two}}`,
      `{"a":${one}${two}}`,
      ...pieces.map((three) => `{${one}${two}${three}}`),
    ]),
  ])
  const wrong: string[] = []
  for (const text of texts) if (((await fault(text)) === undefined) !== isAccepted(text)) wrong.push(text)
  expect(wrong).toEqual([])
})

test('each bound is reached, and one more is its fault', async () => {
  const bounds = { levels: 3, tokens: 24, members: 3, innerMembers: 2 }
  const check = (json: string) => boundsFault(json, bounds, budget)
  for (const json of [
    '[[[]]]',
    '[1,2,3]',
    '{"a":[1,2],"b":{"c":1,"d":2}}',
    `"${'['.repeat(100)}"`,
    ']]]]]]',
    '[[],[],[]]',
  ])
    expect(await check(json), json).toBeUndefined()
  expect(await check('[[[[')).toBe('must have at most 3 levels of objects and arrays')
  expect(await check('[1,2,3,4]')).toBe('must have at most 3 elements in an array, or names in an object')
  expect(await check('{"a":{"a":1,"b":2,"c":3}}')).toBe(
    'must have at most 2 elements in an array, or names in an object',
  )
  expect(await check(' x,y'.repeat(7))).toBe('must have at most 3 elements in an array, or names in an object')
  expect(await check(':'.repeat(24))).toBeUndefined()
  expect(await check(':'.repeat(25))).toBe('must have at most 24 names, values and punctuation marks')
})

test('text in which each character is an escape, and deep text, are read without recursion', async () => {
  const escaped = `"${'\\u0061'.repeat(1_000_000)}"`
  expect(await compact(`{"data":${escaped}}`)).toBe(`{"data":"${'a'.repeat(1_000_000)}"}`)
  const deep = `${'['.repeat(1_000_000)}${']'.repeat(1_000_000)}`
  expect(await memberText(`{"data":${deep}}`, 'data')).toBe(deep)
  expect(await fault(deep)).toBe('it must have a value or ] at position 100')
})

test('other work runs while a long text is read', async () => {
  const long = `{"data":[${'{},'.repeat(300_000)}{}]}`
  for (const read of [
    () => compact(long),
    () => fault(long),
    () => memberTexts(long, budget),
    () => boundsFault(long, { levels: 9, tokens: 1e9, members: 9, innerMembers: 1e9 }, budget),
  ]) {
    let turns = 0
    const timer = setInterval(() => {
      turns++
    }, 0)
    await read()
    clearInterval(timer)
    expect(turns).toBeGreaterThan(0)
  }
})
