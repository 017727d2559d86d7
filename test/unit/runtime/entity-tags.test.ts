import { expect, test } from 'vitest'
import { entityTagOf, namesStrongly, namesWeakly } from '../../../src/runtime/entity-tags.ts'

test('bodies that differ have different strong tags', () => {
  const tags = ['', '{}', '{ }', 'é'].map(entityTagOf)
  for (const tag of tags) expect(tag).toMatch(/^"[\w-]{22}"$/)
  expect(new Set(tags).size).toBe(4)
})

test('a tag is found in a list of thousands, and not as a part of another element', () => {
  const commas = ','.repeat(15_000)
  for (const header of [`${commas}"a"`, `"a"${commas}`, `x"a", W/"b" ,\t"a"\t,`])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([true, true])
  for (const header of [commas, 'x"a"', '"a"x', 'W/ "a"', '"a" "a"', '"b"a"'])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([false, false])
})

test('If-None-Match compares weakly, If-Match strongly; both may have a list, or name any tag by *', () => {
  for (const header of ['"a"', '"b", "a"', '"b","a" ,"c"', ' * ']) {
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([true, true])
  }
  expect([namesWeakly('W/"a"', '"a"'), namesStrongly('W/"a"', '"a"')]).toEqual([true, false])
  for (const header of ['', 'a', '"A"', '"aa"', '"b"', '"*"', 'w/"a"'])
    expect([namesWeakly(header, '"a"'), namesStrongly(header, '"a"')]).toEqual([false, false])
})
