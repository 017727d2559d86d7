import { expect, test } from 'vitest'
import { ClockWatch } from '../../../src/imdsd/clock.ts'
import { collectLog } from '../../support/fixtures/collected-log.ts'

const DAY_MS = 86_400_000

function aClock() {
  const now = { wall: 1_800_000_000_000, steady: 5_000 }
  const log: object[] = []
  let setBacks = 0
  const clock = new ClockWatch({
    wall: () => now.wall,
    steady: () => now.steady,
    setBacks: {
      inc: () => {
        setBacks++
      },
    },
    log: collectLog(() => log),
  })
  return { now, log, clock, setBacks: () => setBacks }
}

test('a clock set back by a day is counted and logged once', () => {
  const { now, log, clock, setBacks } = aClock()
  now.wall -= DAY_MS
  clock.check()
  clock.check()
  expect(setBacks()).toBe(1)
  expect(log).toMatchObject([{ seconds: 86_400, msg: expect.stringContaining('the clock was set back') as string }])
})

test('normal time, small corrections and a clock set forward are not logged', () => {
  const { now, log, clock } = aClock()
  for (const [wall, steady] of [
    [60_000, 60_000],
    [30_000, 60_000],
    [DAY_MS, 0],
  ] as const) {
    now.wall += wall
    now.steady += steady
    clock.check()
  }
  expect(log).toEqual([])
})

test('a timestamp in the future means that the clock was set back before the start', () => {
  const { clock, setBacks } = aClock()
  clock.reportSetBack(-DAY_MS)
  clock.reportSetBack(1_000)
  expect(setBacks()).toBe(0)
  clock.reportSetBack(DAY_MS)
  expect(setBacks()).toBe(1)
})
