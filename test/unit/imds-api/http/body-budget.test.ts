import { expect, test } from 'vitest'
import { BodyBudget } from '../../../../src/imds-api/http/body-budget.ts'

const refused = { name: 'service_unavailable' }

test('an owner gets its share, and others get theirs; what is released can be taken again', () => {
  const budget = new BodyBudget({ owner: 10, long: 100, all: 100 })
  expect(budget.take('a', 6, false)).toBeUndefined()
  expect(budget.take('a', 5, false)).toMatchObject({
    ...refused,
    details: [
      { message: 'the bodies of your other requests are too long: together they may have 10 bytes; try again' },
    ],
  })
  expect(budget.take('a', 4, false)).toBeUndefined()
  expect(budget.take('b', 10, false)).toBeUndefined()
  budget.release('a', 6)
  expect(budget.take('a', 6, false)).toBeUndefined()
})

test('all owners together get the bytes of long bodies, and beyond them short bodies get the rest', () => {
  const budget = new BodyBudget({ owner: 10, long: 25, all: 30 })
  for (const owner of ['a', 'b']) expect(budget.take(owner, 10, true)).toBeUndefined()
  expect(budget.take('c', 6, true)).toMatchObject({
    ...refused,
    details: [{ message: 'other requests have too long bodies at present: try again' }],
  })
  expect(budget.take('c', 10, false)).toBeUndefined()
  expect(budget.take('d', 1, false)).toMatchObject(refused)
  budget.release('a', 10)
  expect(budget.take('d', 5, true)).toBeUndefined()
})

test('tasks run one after another in turns of their own, also after one that fails', async () => {
  const budget = new BodyBudget({ owner: 1, long: 1, all: 1 })
  const steps: string[] = []
  const run = (name: string, fails = false) =>
    budget.inTurn(async () => {
      steps.push(`${name} begins`)
      await Promise.resolve()
      steps.push(`${name} ends`)
      setImmediate(() => steps.push('another request'))
      if (fails) throw new Error(name)
      return name
    })
  const [a, b, c] = [run('a'), run('b', true), run('c')]
  expect(await a).toBe('a')
  await expect(b).rejects.toThrow('b')
  expect(await c).toBe('c')
  expect(steps).toEqual([
    'a begins',
    'a ends',
    'another request',
    'b begins',
    'b ends',
    'another request',
    'c begins',
    'c ends',
  ])
})
