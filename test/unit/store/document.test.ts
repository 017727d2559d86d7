import { describe, expect, test } from 'vitest'
import { formatOf, parseDocument, RECORD_ENDINGS, type Format } from '../../../src/store/document.ts'

test('the ending of a file says its format', () => {
  expect(RECORD_ENDINGS.map((ending) => formatOf(`srv-a${ending}`))).toEqual(['JSON', 'YAML', 'YAML'])
})

describe.each<[Format, string]>([
  ['JSON', '{"id": "srv-a", "tags": {"n": 1}}'],
  ['YAML', 'id: srv-a\ntags: {n: 1}\n'],
])('%s', (format, text) => {
  test('is parsed to the same value', async () => {
    expect(await parseDocument(text, format)).toEqual({ ok: true, value: { id: 'srv-a', tags: { n: 1 } } })
  })
})

test.each<[Format, string]>([
  ['JSON', ''],
  ['JSON', '{"a": 1,}'],
  ['JSON', 'id: srv-a'],
  ['JSON', '{}{}'],
  ['YAML', 'a: b: c'],
  ['YAML', '"open'],
  ['YAML', 'a: 1\na: 2'],
  ['YAML', '--- 1\n--- 2\n'],
])('%s that is malformed is a fault on one line, never an exception: %j', async (format, text) => {
  const parsed = await parseDocument(text, format)
  expect(parsed).toMatchObject({ ok: false, faults: [{ message: expect.stringMatching(/^.+$/) as string }] })
})

test('a fault of YAML says its line', async () => {
  expect(await parseDocument('id: srv-a\ntags:\n  a: b: c\n', 'YAML')).toMatchObject({
    ok: false,
    faults: [{ line: 3 }],
  })
})

test('a document of YAML cannot grow without bound by references to itself', async () => {
  const bomb = [
    'a: &a [x,x,x,x,x,x,x,x,x,x]',
    ...'bcdefghi'
      .split('')
      .map((name, i) => `${name}: &${name} [${Array.from({ length: 10 }, () => `*${'abcdefgh'[i]!}`).join()}]`),
  ].join('\n')
  expect(await parseDocument(bomb, 'YAML')).toMatchObject({
    ok: false,
    faults: [{ message: expect.stringMatching(/alias/i) as string }],
  })
})

test('a tag of YAML makes no object of a JavaScript class, and no key changes a prototype', async () => {
  expect(await parseDocument('a: !!js/function "x"\n', 'YAML')).toEqual({ ok: true, value: { a: 'x' } })
  for (const [text, format] of [
    ['{"__proto__": {"x": 1}}', 'JSON'],
    ['__proto__: {x: 1}\n', 'YAML'],
  ] as const) {
    await parseDocument(text, format)
    expect(({} as Record<string, unknown>)['x'] === undefined).toBe(true)
  }
})
