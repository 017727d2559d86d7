import { expect, test } from 'vitest'
import { buildPageTurns } from '../../../src/pages/page-turns.ts'

/** Turns with a clock and pauses that the test controls. */
function someTurns() {
  const clock = { ms: 0 }
  const pauses: { readonly ms: number; readonly end: () => void }[] = []
  const turns = buildPageTurns({
    now: () => clock.ms,
    pause: (ms) => new Promise<void>((resolve) => pauses.push({ ms, end: resolve })),
  })
  return { clock, pauses, turns }
}

const settled = () => new Promise((resolve) => setImmediate(resolve))

test('after a page, the next one waits nine times as long as that took, and a second at most', async () => {
  const { clock, pauses, turns } = someTurns()
  const build = (ms: number) => () => {
    clock.ms += ms
    return Promise.resolve(ms)
  }
  expect(await turns.take(build(20))).toBe(20)
  const second = turns.take(build(500))
  await settled()
  expect([clock.ms, pauses.map(({ ms }) => ms)]).toEqual([20, [180]])
  pauses[0]!.end()
  expect(await second).toBe(500)
  expect(pauses[1]!.ms).toBe(1_000)
})

test('a page that fails rejects, and the next one is built', async () => {
  const { pauses, turns } = someTurns()
  await expect(turns.take(() => Promise.reject(new Error('no page')))).rejects.toThrow('no page')
  pauses[0]!.end()
  expect(await turns.take(() => Promise.resolve('a page'))).toBe('a page')
})

test('beyond 32 that wait, no more pages are built', async () => {
  const { turns } = someTurns()
  let built = 0
  const takes = Array.from({ length: 100 }, () =>
    turns.take(() => {
      built += 1
      return Promise.resolve('a page')
    }),
  )
  const refused = takes.slice(33)
  expect(await Promise.all(refused)).toEqual(refused.map(() => undefined))
  expect(await takes[0]).toBe('a page')
  expect(built).toBe(1)
})
