import { expect, test } from 'vitest'
import { BodyBudget, type BodyBudgetLimits } from '../../../../src/imds-api/http/body-budget.ts'

const refused = { name: 'service_unavailable' }

/** A budget at a time, and bodies whose refusals are kept. */
function aBudget(limits: BodyBudgetLimits) {
  const clock = { nowMs: 0 }
  const budget = new BodyBudget(limits, () => clock.nowMs)
  const cut: string[] = []
  const begin = (owner: string, name = owner) => budget.begin(owner, () => cut.push(name))
  return { clock, budget, cut, begin }
}

test('an owner gets its share, and others get theirs; what is released can be taken again', () => {
  const { budget, begin } = aBudget({ owner: 10, long: 100, all: 100 })
  const [first, second] = [begin('a'), begin('a')]
  expect(budget.take(first, 6, false)).toBeUndefined()
  expect(budget.take(second, 5, false)).toMatchObject({
    ...refused,
    details: [
      { message: 'the bodies of your other requests are too long: together they may have 10 bytes; try again' },
    ],
  })
  expect(budget.take(second, 4, false)).toBeUndefined()
  expect(budget.take(begin('b'), 10, false)).toBeUndefined()
  budget.release(first)
  expect(budget.take(second, 6, false)).toBeUndefined()
})

test('all owners together get the bytes of long bodies, and beyond them short bodies get the rest', () => {
  const { budget, begin } = aBudget({ owner: 10, long: 25, all: 30 })
  const [a, b] = [begin('a'), begin('b')]
  for (const body of [a, b]) {
    expect(budget.take(body, 10, true)).toBeUndefined()
    body.isWhole = true
  }
  expect(budget.take(begin('c'), 6, true)).toMatchObject({
    ...refused,
    details: [{ message: 'other requests have too long bodies at present: try again' }],
  })
  const c = begin('c')
  expect(budget.take(c, 10, false)).toBeUndefined()
  c.isWhole = true
  expect(budget.take(begin('d'), 1, false)).toMatchObject(refused)
  budget.release(a)
  expect(budget.take(begin('d'), 5, true)).toBeUndefined()
})

test('the unfinished bodies of many owners make room for one that has less, the longest idle one first', () => {
  const { clock, budget, cut, begin } = aBudget({ owner: 10, long: 40, all: 40 })
  for (const owner of ['a', 'b', 'c', 'd'])
    for (let i = 0; i < 5; i++) {
      clock.nowMs += 1
      expect(budget.take(begin(owner, `${owner}${i}`), 2, false)).toBeUndefined()
    }
  const late = begin('e')
  expect(budget.take(late, 4, false)).toBeUndefined()
  expect(cut).toEqual(['a0', 'b0'])
  expect(budget.take(late, 6, false), 'no more than the others have').toMatchObject(refused)
})

test('an idle body makes room for any other, and one that arrives does not', () => {
  const { clock, budget, cut, begin } = aBudget({ owner: 10, long: 10, all: 10 })
  const [idle, arriving] = [begin('a', 'idle'), begin('b', 'arriving')]
  for (const body of [idle, arriving]) expect(budget.take(body, 4, false)).toBeUndefined()
  clock.nowMs = 999
  expect(budget.take(arriving, 1, false)).toBeUndefined()
  const long = begin('c')
  expect(budget.take(long, 5, false)).toMatchObject(refused)
  clock.nowMs = 1_000
  expect(budget.take(long, 5, false)).toBeUndefined()
  expect(cut).toEqual(['idle'])
  expect(budget.take(begin('d'), 5, false)).toMatchObject(refused)
})

test('tasks run one after another in turns of their own, also after one that fails', async () => {
  const budget = new BodyBudget({ owner: 1, long: 1, all: 1 }, () => 0)
  const steps: string[] = []
  const run = (name: string, fails = false) =>
    budget.inTurn('a', async () => {
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

test('long bodies of one owner are parsed in turn with those of another', async () => {
  const budget = new BodyBudget({ owner: 1, long: 1, all: 1 }, () => 0)
  const order: string[] = []
  const run = (owner: string, name: string) =>
    budget.inTurn(owner, () => {
      order.push(name)
      return Promise.resolve()
    })
  await Promise.all([run('a', 'a1'), run('a', 'a2'), run('a', 'a3'), run('b', 'b1')])
  expect(order).toEqual(['a1', 'a2', 'b1', 'a3'])
})
