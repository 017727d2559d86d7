import { expect, test } from 'vitest'
import { requestIdOf } from '../../../../src/imds-api/http/request-id.ts'

const given = (id: string) => requestIdOf({ headers: { 'x-request-id': id } })

test('a request keeps the id that its client gives', () => {
  for (const id of ['a', 'Root=1-67891233-abcdef012345678912345678', '00-4bf92f/3577:b3~4d_a6.x+y@z', 'x'.repeat(128)])
    expect(given(id)).toBe(id)
})

test('an id that is too long, or could break a line of a log, is replaced', () => {
  for (const id of ['', 'x'.repeat(129), 'a b', 'a, b', 'a"', 'a\n', '{a}', 'é', '\u001b[31m'])
    expect(given(id)).toMatch(/^[0-9a-f-]{36}$/)
})

test('requests without an id get different ones', () => {
  const ids = Array.from({ length: 100 }, () => requestIdOf({ headers: {} }))
  expect(new Set(ids).size).toBe(100)
})
