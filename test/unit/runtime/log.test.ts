import { expect, test } from 'vitest'
import { buildLog } from '../../../src/runtime/log.ts'

test('invariant 9: values that look like secrets are redacted wherever a log line has them', () => {
  const lines: string[] = []
  const log = buildLog('info', {
    write: (line: string) => lines.push(line),
  })
  log.info(
    {
      password: 'SECRET',
      settings: { password: 'SECRET' },
      instance: { userData: 'SECRET', publicKeys: ['SECRET'] },
      document: { x: 'SECRET' },
      err: { command: 'SECRET' },
    },
    'x',
  )
  expect(lines).toHaveLength(1)
  expect(lines[0]).not.toContain('SECRET')
  expect(JSON.parse(lines[0]!)).toMatchObject({ level: 'info', msg: 'x' })
})

test('a line has no character that a terminal acts on, and its JSON has the same texts', () => {
  const lines: string[] = []
  const hostile = 'a\u001b[2Jb\u009b31m\u007f\u202ec'
  buildLog('info', {
    write: (line: string) => lines.push(line),
  }).info({ id: hostile, [hostile]: 1 }, hostile)
  expect(lines[0]).toContain('a\\u001b[2Jb\\u009b31m\\u007f\\u202ec')
  expect(lines[0]).not.toMatch(/[\u001b\u007f-\u009f\u202e]/) // eslint-disable-line no-control-regex
  expect(JSON.parse(lines[0]!)).toMatchObject({ msg: hostile, id: hostile, [hostile]: 1 })
})

test('a line below the log level is not written', () => {
  const lines: string[] = []
  buildLog('warn', {
    write: (line: string) => lines.push(line),
  }).info('x')
  expect(lines).toEqual([])
})
