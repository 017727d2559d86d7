import { closeSync, fstatSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { expect, onTestFinished, test, vi } from 'vitest'
import { buildLogOutput, isJournal } from '../../../src/runtime/log-output.ts'
import { aPipe } from '../../support/programs/pipe.ts'
import { temporaryDirectory } from '../../support/fixtures/temporary-directory.ts'

/** An output into a pipe that nobody reads, and a function that reads what is in the pipe. */
function anUnreadOutput() {
  const { fd, read } = aPipe()
  return { output: buildLogOutput(fd, (count) => `lost ${count}\n`), read }
}

test('while nobody reads, 1 MiB of lines waits; further lines are dropped and counted', async () => {
  const { output, read } = anUnreadOutput()
  const lines = Array.from({ length: 3_000 }, (_, i) => `${String(i).padStart(999, 'x')}\n`)
  for (const line of lines) output.write(line)
  let text = ''
  while (!text.endsWith('lost 1888\n')) {
    text += read()
    await turn()
  }
  const kept = 1_112 // 64 KiB in the pipe and 1 MiB in the buffer
  expect(text).toBe(`${lines.slice(0, kept).join('')}lost 1888\n`)
  output.write('again\n')
  expect(read()).toBe('again\n')
})

test('a flush ends although nobody reads', () => {
  const { output, read } = anUnreadOutput()
  output.write('x'.repeat(100_000))
  output.flushSync()
  expect(read()).toHaveLength(1 << 16)
})

test('a line that cannot be written is dropped, and takes no room of those that wait', () => {
  const fd = openSync('/dev/full', 'w')
  onTestFinished(() => closeSync(fd))
  const formatLost = vi.fn(() => 'lost')
  const output = buildLogOutput(fd, formatLost)
  for (let i = 0; i < 3_000; i++) output.write('x'.repeat(1_000))
  expect(() => output.flushSync()).not.toThrow()
  expect(formatLost).not.toHaveBeenCalled()
})

test('the journal reads a file descriptor whose device and inode JOURNAL_STREAM names', () => {
  const directory = temporaryDirectory()
  const fd = openSync(join(directory, 'log'), 'w')
  onTestFinished(() => closeSync(fd))
  const { dev, ino } = fstatSync(fd)
  expect([`${dev}:${ino}`, `${dev}:${ino + 1}`, '', undefined].map((value) => isJournal(value, fd))).toEqual([
    true,
    false,
    false,
    false,
  ])
  expect(readFileSync(join(directory, 'log'), 'utf8')).toBe('')
})
