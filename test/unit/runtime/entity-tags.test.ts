import { expect, test } from 'vitest'
import { entityTagOf, namesStrongly, namesWeakly } from '../../../src/runtime/entity-tags.ts'

test('bodies that differ have different strong tags', () => {
  const tags = ['', '{}', '{ }', 'é'].map(entityTagOf)
  for (const tag of tags) expect(tag).toMatch(/^"[\w-]{22}"$/)
  expect(new Set(tags).size).toBe(4)
})

test('If-None-Match compares weakly, If-Match strongly; both may have a list, or name any tag by *', () => {
  for (const header of ['"a"', '"b", "a"', '"b","a" ,"c"', ' * ']) {
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([true, true])
  }
  expect([namesWeakly('W/"a"', '"a"'), namesStrongly('W/"a"', '"a"')]).toEqual([true, false])
  for (const header of ['', 'a', '"A"', '"aa"', '"b"', '"*"', 'w/"a"'])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([false, false])
})
