import { expect, test, vi } from 'vitest'
import { entityTagOf } from '../../../src/metadata/content.ts'
import { namesStrongly, namesWeakly } from '../../../src/runtime/entity-tags.ts'

test('bodies that differ have different strong tags', () => {
  const tags = ['', '{}', '{ }', 'é'].map(entityTagOf)
  for (const tag of tags) expect(tag).toMatch(/^"[\w-]{22}"$/)
  expect(new Set(tags).size).toBe(4)
})

test('If-None-Match compares weakly, If-Match strongly; both may have a list, or name any tag by *', () => {
  for (const header of ['"a"', '"b", "a"', '"b","a" ,"c"', 'x"a", "a"', ' * ']) {
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([true, true])
  }
  expect([namesWeakly('W/"a"', '"a"'), namesStrongly('W/"a"', '"a"')]).toEqual([true, false])
  for (const header of ['', 'a', '"A"', '"aa"', '"b"', '"*"', 'w/"a"', '"b"a"', '"a" "b"', '"a";"a"'])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([false, false])
})

test('A9: in a list of any length, only elements that contain the tag are read', () => {
  const spies = (['split', 'trim'] as const).map((name) => vi.spyOn(String.prototype, name))
  const commas = ','.repeat(15_000)
  const found = [`${commas}"a"${commas}`, `${commas}"b"${commas}`, `${commas}W/"a"`].map((header) => [
    namesWeakly(header, '"a"'),
    namesStrongly(header, '"a"'),
  ])
  const calls = spies.reduce((sum, spy) => sum + spy.mock.calls.length, 0)
  vi.restoreAllMocks()
  expect(found).toEqual([
    [true, true],
    [false, false],
    [true, false],
  ])
  expect(calls).toBeLessThan(20)
})
