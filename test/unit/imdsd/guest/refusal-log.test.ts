import { expect, test } from 'vitest'
import { RefusalLog } from '../../../../src/imdsd/guest/refusal-log.ts'
import { collectLog } from '../../../support/fixtures/collected-log.ts'

function aRefusalLog() {
  const log: Record<string, unknown>[] = []
  const clock = { ms: 0 }
  return {
    log,
    clock,
    refusalLog: new RefusalLog(
      collectLog(() => log),
      () => clock.ms,
    ),
  }
}

test('repeated refusals of one address are logged once a minute, with the number left out', () => {
  const { log, clock, refusalLog } = aRefusalLog()
  for (let i = 0; i < 5; i++) refusalLog.logRefusal('default', '10.0.0.9', undefined, 'unknown-peer')
  clock.ms = 60_000
  refusalLog.logRefusal('default', '10.0.0.9', undefined, 'unknown-peer')
  expect(log).toMatchObject([{ address: '10.0.0.9', reason: 'unknown-peer', leftOut: 0 }, { leftOut: 4 }])
})

test('a flood of addresses causes a bounded number of log lines', () => {
  const { log, clock, refusalLog } = aRefusalLog()
  for (let i = 0; i < 100_000; i++)
    refusalLog.logRefusal('default', `10.${i >> 16}.${(i >> 8) & 255}.${i & 255}`, undefined, 'unknown-peer')
  expect(log.length).toBeLessThanOrEqual(257)
  clock.ms = 60_000
  refusalLog.logRefusal('default', '192.0.2.1', undefined, 'unknown-peer')
  expect(log.at(-1)).toMatchObject({ address: '192.0.2.1', leftOut: 0 })
})

test('what a forgotten peer left out is in the next line of another', () => {
  const { log, clock, refusalLog } = aRefusalLog()
  const refuse = (n: number) => {
    refusalLog.logRefusal('default', `10.0.${n >> 8}.${n & 255}`, undefined, 'unknown-peer')
  }
  for (let i = 0; i < 5; i++) refuse(0)
  for (let n = 1; n < 256; n++) refuse(n)
  clock.ms = 60_000
  for (const n of [256, 257]) refuse(n)
  expect(log.slice(-2)).toMatchObject([{ address: '10.0.1.0', leftOut: 0, leftOutOfOthers: 4 }, { leftOut: 0 }])
  expect(log.at(-1)).not.toHaveProperty('leftOutOfOthers')
})

test('a peer that changes its address does not use up the log lines of others', () => {
  const { log, refusalLog } = aRefusalLog()
  for (let i = 0; i < 10_000; i++) {
    refusalLog.logRefusal('default', `2001:db8::${i.toString(16)}`, undefined, 'unknown-peer')
    refusalLog.logRefusal('default', `2001:db8:0:1::${i.toString(16)}`, 'srv-abcde', 'over-share')
  }
  refusalLog.logRefusal('default', '192.0.2.1', undefined, 'unknown-peer')
  expect(log).toMatchObject([
    { address: '2001:db8::0' },
    { address: '2001:db8:0:1::0', instance: 'srv-abcde' },
    { address: '192.0.2.1', leftOut: 0 },
  ])
})
