import { readdirSync, readFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { formatListed, listOf } from '../../../src/conditions/condition.ts'
import { EVENTS } from '../../../src/conditions/events.ts'
import { API_EVENTS } from '../../../src/imds-api/conditions/events.ts'
import { MEANINGS } from '../../../src/imdsctl/explain-code.ts'
import { DAEMON_EVENTS } from '../../../src/imdsd/conditions/events.ts'

const SRC = new URL('../../../src/', import.meta.url).pathname

test('of many things the first ten are named', () => {
  const all = Array.from({ length: 12 }, (_, n) => n)
  expect(formatListed(listOf(12, all, String), 'things')).toBe('things (12): 0; 1; 2; 3; 4; 5; 6; 7; 8; 9; ...')
  expect(formatListed(listOf(0, all, String), 'things')).toBeUndefined()
})

test('each code of a log line has a row, and each row of an event has a log line', () => {
  const isTable = (name: string) => name.includes('conditions/') || name.includes('doctor/')
  const files = readdirSync(SRC, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))
  const read = (some: readonly string[]) => some.map((name) => readFileSync(`${SRC}${name}`, 'utf8')).join()
  const logged = read(files.filter((name) => !isTable(name)))
  const used = [...logged.matchAll(/\bcode: '([a-z]+(?:-[a-z]+)+)'/g)].map(([, code]) => code!)
  expect(used.length).toBeGreaterThan(30)
  expect(used.filter((code) => !MEANINGS.has(code))).toEqual([])
  const events = [...EVENTS, ...DAEMON_EVENTS, ...API_EVENTS]
  expect(events.map(({ code }) => code).filter((code) => !logged.includes(`'${code}'`))).toEqual([])
})
