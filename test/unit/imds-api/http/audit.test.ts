import { closeSync, openSync } from 'node:fs'
import { setImmediate as turn } from 'node:timers/promises'
import { expect, onTestFinished, test } from 'vitest'
import { auditTo } from '../../../../src/imds-api/http/audit.ts'
import { aPipe } from '../../../support/programs/pipe.ts'

test('while nobody reads standard error, 8 MiB of audit lines wait; further ones are dropped and counted', async () => {
  const { fd, read } = aPipe()
  const output = auditTo(fd, () => {
    throw new Error('a line that waits has not failed')
  })
  const lines = Array.from({ length: 10_000 }, (_, i) => `${String(i).padStart(999, 'x')}\n`)
  for (const line of lines) output.write(line)
  let [text, last] = ['', '']
  while (!last.includes('lost')) {
    const chunk = read()
    last = (last + chunk).slice(-1_000)
    text += chunk
    await turn()
  }
  const kept = 8_452 // 64 in the pipe, whose pages have room for four, and 8 MiB in the buffer
  expect(text.slice(0, kept * 1_000) === lines.slice(0, kept).join('')).toBe(true) // toBe would print 8 MiB
  expect(JSON.parse(text.slice(kept * 1_000))).toMatchObject({
    level: 'error',
    lines: lines.length - kept,
    msg: expect.stringContaining('audit lines were lost') as string,
  })
})

test('an audit line that standard error does not take is reported', () => {
  const fd = openSync('/dev/full', 'w')
  onTestFinished(() => closeSync(fd))
  const reasons: string[] = []
  auditTo(fd, ({ message }) => reasons.push(message)).write('{}\n')
  expect(reasons).toEqual([expect.stringContaining('ENOSPC')])
})
