import { pino } from 'pino'
import { expect, test, vi } from 'vitest'
import { awaitContent } from '../../../../src/imdsd/guest/pending.ts'

const CONTENT = { body: 'x', headers: [] }

async function settled(content: Promise<typeof CONTENT | undefined>, giveUp?: () => void) {
  const log: string[] = []
  const result = await awaitContent(
    { kind: 'pending', route: '/{version}/dynamic', content, ttlSeconds: 7, cost: 0, ...(giveUp && { giveUp }) },
    pino({}, { write: (line: string) => log.push(line) }),
  )
  return { result, log }
}

test('the content is served once it is made, and a path without any is not found', async () => {
  const about = { route: '/{version}/dynamic', ttlSeconds: 7 }
  expect((await settled(Promise.resolve(CONTENT))).result).toEqual({ kind: 'served', content: CONTENT, ...about })
  expect((await settled(Promise.resolve(undefined))).result).toEqual({
    kind: 'refused',
    refusal: 'not-found',
    ...about,
  })
})

test('a failure is logged, and the guest gets 503', async () => {
  const { result, log } = await settled(Promise.reject(new Error('no thread')))
  expect(result).toMatchObject({ kind: 'refused', refusal: 'not-signed', ttlSeconds: 7 })
  expect(log.join()).toMatch(/no thread.*signing failed; the guest gets 503/)
})

test('a guest waits a second at most for a signature, and then gets 503 and gives up its turn', async () => {
  vi.useFakeTimers()
  const giveUp = vi.fn<() => void>()
  const waiting = settled(new Promise(() => undefined), giveUp)
  await vi.advanceTimersByTimeAsync(999)
  expect(giveUp).not.toHaveBeenCalled()
  await vi.advanceTimersByTimeAsync(1)
  vi.useRealTimers()
  expect(await waiting).toMatchObject({ result: { refusal: 'not-signed' }, log: [] })
  expect(giveUp).toHaveBeenCalledOnce()
})
