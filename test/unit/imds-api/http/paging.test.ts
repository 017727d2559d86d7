import { expect, test } from 'vitest'
import { MAX_CURSOR_LENGTH, MAX_FILTERS, parseListQuery, type ListRules } from '../../../../src/imds-api/http/paging.ts'
import { MAX_VALUE_LENGTH } from '../../../../src/imds-api/http/query.ts'
import { Refusal } from '../../../../src/imds-api/model/refusal.ts'

const RULES: ListRules = {
  path: '/servers',
  order: ['number', 'string'],
  filters: { name: {}, status: { values: ['active', 'inactive'] }, server_group: { idOf: 'grp' } },
  hasTags: true,
}
const PLACE = [1_767_225_600_123_456, 'srv-6ilgo'] as const
const parse = (query: Readonly<Record<string, unknown>>, rules = RULES) => parseListQuery(query, rules)

/** The parameters in the Link of a query. */
function linked(query: Readonly<Record<string, unknown>>, rules = RULES): Readonly<Record<string, string>> {
  const [, parameters] = /^<\?(.*)>; rel="next"$/.exec(parse(query, rules).linkTo(PLACE)) ?? []
  return Object.fromEntries(new URLSearchParams(parameters))
}

/** The fields and codes of a refusal. */
function faultsOf(query: Readonly<Record<string, unknown>>): string[] {
  try {
    parse(query)
    return []
  } catch (error) {
    const { name, details } = error as Refusal
    expect(name).toBe('bad_request')
    return details.map(({ field, code }) => `${String(field)}: ${code}`)
  }
}

test('a Link has the parameters of its page, and a cursor that means the same place', () => {
  const query = { account_id: 'acc-1', limit: '2', name: 'a&b="<>\r\n', 'tag.Role': 'front', other: 'x' }
  const next = linked(query)
  const { other: _other, ...known } = query
  expect(next).toEqual({ ...known, after: next['after'] })
  expect(parse(next)).toMatchObject({ limit: 2, after: PLACE })
  expect(parse(next).filters).toEqual([
    ['name', query.name],
    ['tag.Role', 'front'],
  ])
  expect(parse(query).linkTo(PLACE)).toMatch(/^<\?[\w.%&=+*-]+>; rel="next"$/)
})

test('a cursor of another list, or of other filters, is refused; limit may change', () => {
  const { after = '' } = linked({ limit: '2', name: 'web' })
  expect(faultsOf({ after, name: 'web', limit: '5' })).toEqual([])
  expect(faultsOf({ after, name: 'db' })).toEqual(['after: malformed'])
  expect(faultsOf({ after })).toEqual(['after: malformed'])
  expect(faultsOf({ after: linked({ name: 'web' }, { ...RULES, path: '/images' })['after'], name: 'web' })).toEqual([
    'after: malformed',
  ])
})

test('a cursor that no Link has had is refused', () => {
  const { after = '' } = linked({})
  const [digest] = JSON.parse(Buffer.from(after, 'base64url').toString()) as [string]
  const encoded = (...values: unknown[]) => Buffer.from(JSON.stringify(values)).toString('base64url')
  for (const garbage of [
    '',
    'x',
    encoded(),
    encoded(digest),
    encoded(digest, 1),
    encoded(digest, 1, 'a', 'b'),
    encoded(digest, '1', 'a'),
    encoded(digest, 1, 2),
    encoded(digest, 1.5, 'a'),
    encoded(digest, 2 ** 60, 'a'),
    encoded(digest, 1, 'a\0'),
    encoded(digest, 1, '\ud800'),
    encoded('', 1, 'a'),
    Buffer.from('{"length":3}').toString('base64url'),
    'a'.repeat(MAX_CURSOR_LENGTH),
  ])
    expect(faultsOf({ after: garbage }), garbage).toEqual(['after: malformed'])
})

test('all wrong parameters are named at once', () => {
  for (const limit of ['0', '1001', '-1', '1e2', '', 'ten', '00001'])
    expect(faultsOf({ limit }), limit).toEqual(['limit: out_of_range'])
  expect(faultsOf({ limit: ['1', '2'], name: ['a', 'b'], after: 'x' })).toEqual([
    'limit: malformed',
    'name: malformed',
    'after: malformed',
  ])
  expect(faultsOf({ name: 'a\0' })).toEqual(['name: malformed'])
  expect(faultsOf({ 'tag.': 'a' })).toEqual(['tag.: malformed'])
  for (const status of ['nonsense', 'active,inactive', ''])
    expect(faultsOf({ status, server_group: status })).toEqual(['status: not_allowed', 'server_group: malformed'])
  expect(faultsOf({ 'tags[]': 'a', 'tag.a': 'b', 'tags[a]': 'b' })).toEqual(['tags[]: malformed', 'tags[a]: malformed'])
  expect(parse({ 'tag.Role': 'front' }, { ...RULES, hasTags: false }).filters).toEqual([])
})

test('the number of filters, and the length of each value, are bounded', () => {
  const tags = Object.fromEntries(Array.from({ length: MAX_FILTERS }, (_, i) => [`tag.${i}`, 'x']))
  expect(parse(tags).filters.length).toBe(MAX_FILTERS)
  expect(faultsOf({ ...tags, 'tag.more': 'x' })).toEqual(['tag.more: too_long'])
  for (const field of ['limit', 'name', 'tag.Role'])
    expect(faultsOf({ [field]: 'x'.repeat(MAX_VALUE_LENGTH + 1) })[0], field).toBe(`${field}: too_long`)
  expect(faultsOf({ after: 'x'.repeat(MAX_CURSOR_LENGTH + 1) })[0]).toBe('after: too_long')
})

test('a filter by a tag has two forms, which mean the same', () => {
  expect(parse({ 'tag.Role': 'a', 'tags[a.b[0]]': 'b' }).filters).toEqual([
    ['tag.Role', 'a'],
    ['tag.a.b[0]', 'b'],
  ])
  const { after = '', ...others } = linked({ 'tags[Role]': 'a' })
  expect(others).toEqual({ 'tags[Role]': 'a' })
  expect(parse({ 'tag.Role': 'a', after }).after).toEqual(PLACE)
})
