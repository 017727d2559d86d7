import { describe, expect, test } from 'vitest'
import {
  formatOf,
  formatRecordWithUserData,
  parseDocument,
  parseRecordWithUserData,
  RECORD_ENDINGS,
  type Format,
} from '../../../src/store/document.ts'

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

test.each([
  ['references', (of: string) => of],
  ['merge keys', (of: string) => `{<<: ${of}}`],
])('a document of YAML cannot grow without bound by %s', async (_, list) => {
  const bomb = [
    'a: &a {x: 1}',
    ...'bcdefghi'
      .split('')
      .map((name, i) => `${name}: &${name} ${list(`[${Array(10).fill(`*${'abcdefgh'[i]!}`).join()}]`)}`),
  ].join('\n')
  expect(await parseDocument(bomb, 'YAML')).toMatchObject({
    ok: false,
    faults: [{ message: expect.stringMatching(/alias/i) as string }],
  })
})

test.each([
  ['!vault', 'Unresolved tag: !vault'],
  ['!include', 'Unresolved tag: !include'],
  ['!!js/function', 'Unresolved tag: tag:yaml.org,2002:js/function'],
  ['!!binary', 'Unresolved tag: tag:yaml.org,2002:binary'],
])('the tag %s is a fault that names it and its line, and a cause that quotes nothing', async (tag, message) => {
  expect(await parseDocument(`id: srv-a\na: ${tag} x\n`, 'YAML')).toEqual({
    ok: false,
    faults: [{ message, cause: 'it has a YAML tag that nothing resolves', line: 2 }],
  })
})

test('a text for another version of YAML is read as 1.2, and an unknown directive is a fault', async () => {
  expect(await parseDocument('%YAML 1.1\n---\na: yes\n', 'YAML')).toEqual({ ok: true, value: { a: 'yes' } })
  expect(await parseDocument('%OTHER x\n---\na: yes\n', 'YAML')).toMatchObject({ ok: false, faults: [{ line: 1 }] })
})

test('merge keys are merged, one or several, and the keys of a map itself win', async () => {
  const text = 'one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nboth: {<<: [*one, *two], a: 3}\n'
  expect(await parseDocument(text, 'YAML')).toMatchObject({ value: { both: { a: 3, b: 1, c: 2 } } })
  expect(await parseDocument('a: {<<: text}\n', 'YAML')).toMatchObject({ ok: false })
})

test('no key changes a prototype', async () => {
  for (const [text, format] of [
    ['{"__proto__": {"x": 1}}', 'JSON'],
    ['__proto__: {x: 1}\n', 'YAML'],
    ['a: &a {__proto__: {x: 1}}\nb: {<<: *a}\n', 'YAML'],
  ] as const) {
    await parseDocument(text, format)
    expect(({} as Record<string, unknown>)['x'] === undefined).toBe(true)
  }
})

test('a record is read back with the user-data with which it was written', () => {
  const document = { id: 'srv-a' }
  for (const userData of [undefined, Buffer.alloc(0), Buffer.from([0, 255])])
    expect(parseRecordWithUserData(JSON.parse(formatRecordWithUserData(document, userData)))).toEqual({
      ok: true,
      value: { document, userData: userData ?? 'none' },
    })
  expect(parseRecordWithUserData(document)).toEqual({ ok: true, value: { document, userData: undefined } })
})
