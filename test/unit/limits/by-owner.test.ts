import { expect, test } from 'vitest'
import { ByOwner } from '../../../src/limits/by-owner.ts'

test('items are listed and counted by their owner, the oldest first, until they are removed', () => {
  const open = new ByOwner<string>()
  for (const item of ['a1', 'a2', 'b1']) open.add(item.charAt(0), item)
  expect([open.of('a'), open.all(), open.owners]).toEqual([
    ['a1', 'a2'],
    ['a1', 'a2', 'b1'],
    ['a', 'b'],
  ])
  for (const item of ['a1', 'b1', 'b1']) open.remove(item.charAt(0), item)
  open.remove('c', 'c1')
  expect([open.size, open.countOf('a'), open.countOf('b'), open.owners]).toEqual([1, 1, 0, ['a']])
})
