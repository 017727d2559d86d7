import { pino } from 'pino'
import { expect, test, vi } from 'vitest'
import type { WaitResults } from '../../../../src/imdsd/guest/exchange.ts'
import { awaitSignature } from '../../../../src/imdsd/guest/resolve.ts'

const TOKEN = { token: { body: 'x', headers: [] } }

/** Starts a wait. `results`: what it has ended with. */
function waiting(made: Promise<WaitResults>, giveUp?: () => void) {
  const [results, log]: [WaitResults[], string[]] = [[], []]
  const wait = awaitSignature(made, 20, giveUp)
  wait.start((result) => results.push(result), pino({}, { write: (line: string) => log.push(line) }))
  return { wait, results, log }
}

test('a request waits until its signature is made', async () => {
  const { wait, results, log } = waiting(Promise.resolve(TOKEN))
  await Promise.resolve()
  expect([wait.cost, results, log]).toEqual([20, [TOKEN], []])
})

test('a failure is logged', async () => {
  const { results, log } = waiting(Promise.reject(new Error('no thread')))
  await vi.waitFor(() => expect(results).toEqual([{ signature: 'failed' }]))
  expect(log.join()).toMatch(/no thread.*signing failed; the guest gets 503/)
})

test('a guest waits a second at most for a signature, and then gives up its turn', async () => {
  vi.useFakeTimers()
  const giveUp = vi.fn<() => void>()
  const made = Promise.withResolvers<WaitResults>()
  const { results, log } = waiting(made.promise, giveUp)
  vi.advanceTimersByTime(999)
  expect([results, giveUp.mock.calls]).toEqual([[], []])
  vi.advanceTimersByTime(1)
  vi.useRealTimers()
  made.reject(new Error('aborted'))
  await made.promise.catch(() => undefined)
  expect([results, giveUp.mock.calls, log]).toEqual([[{ signature: 'failed' }], [[]], []])
})
