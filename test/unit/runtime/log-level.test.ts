import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { buildLog } from '../../../src/runtime/log.ts'
import { AdjustableLevel, formatLevel, type LogLevel } from '../../../src/runtime/log-level.ts'

const NOW = Date.parse('2026-11-23T10:00:00Z')
beforeEach(() => vi.useFakeTimers({ now: NOW }))
afterEach(() => vi.useRealTimers())

/** A log with its lines, and what sets its level. */
function aLog(configured: LogLevel) {
  const lines: { level: string; msg: string; logLevel?: string; until?: string }[] = []
  const log = buildLog(configured, {
    write: (line: string) => lines.push(JSON.parse(line) as (typeof lines)[number]),
  })
  return { log, lines, level: new AdjustableLevel(log, configured) }
}

test('a level lasts for its time, and then the configured one is back by itself', async () => {
  const { log, lines, level } = aLog('info')
  expect(level.set('debug', 600)).toEqual({ level: 'debug', configured: 'info', until: '2026-11-23T10:10:00.000Z' })
  log.debug('shown')
  await vi.advanceTimersByTimeAsync(599_000)
  expect(level.state.level).toBe('debug')
  await vi.advanceTimersByTimeAsync(1_000)
  expect(level.state).toEqual({ level: 'info', configured: 'info' })
  log.debug('not shown')
  expect(lines.map(({ msg, logLevel, until }) => [msg, logLevel, until])).toEqual([
    ['an operator changed the level of the log', 'debug', '2026-11-23T10:10:00.000Z'],
    ['shown', undefined, undefined],
    ['the log has its configured level again', 'info', undefined],
  ])
})

test('a later change replaces the time of an earlier one, and the configured level ends it', async () => {
  const { level } = aLog('info')
  level.set('debug', 600)
  level.set('warn', 1_200)
  await vi.advanceTimersByTimeAsync(700_000)
  expect(level.state.level).toBe('warn')
  expect(level.set('info', 600)).toEqual({ level: 'info', configured: 'info' })
  level.set('debug', 600)
  await vi.advanceTimersByTimeAsync(599_000)
  expect(level.state.level).toBe('debug')
})

test('the lines about a change are shown whichever of both levels is the quieter one', async () => {
  const { lines, level } = aLog('warn')
  level.set('debug', 60)
  await vi.advanceTimersByTimeAsync(60_000)
  expect(lines.map(({ level: name }) => name)).toEqual(['info', 'info'])
  const other = aLog('info')
  other.level.set('error', 60)
  await vi.advanceTimersByTimeAsync(60_000)
  expect(other.lines).toHaveLength(2)
})

test('a level is shown with the time that is left, and with what follows', () => {
  expect(formatLevel({ level: 'info', configured: 'info' }, NOW)).toBe('info')
  const until = new Date(NOW + 599_500).toISOString()
  expect(formatLevel({ level: 'debug', configured: 'info', until }, NOW)).toBe('debug for 10 min more, then info')
})
