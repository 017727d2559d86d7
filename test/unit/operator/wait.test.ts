/**
 * The wait for the launch gate with a stub of fetch. test/redis/launch-gate.test.ts has a real daemon.
 */
import { afterEach, expect, test, vi } from 'vitest'
import { waitForInstance } from '../../../src/operator/wait.ts'

afterEach(() => { vi.restoreAllMocks() })

const REFUSED = new TypeError('fetch failed', { cause: new Error('ECONNREFUSED') })
type Reply = readonly [status: number, document: object] | Error

/** Waits for revision 7, with the replies of the daemon in turn, and then the last one again and again; `reason` answers the question for one. */
async function waited(replies: readonly Reply[], { timeoutMs = 60_000, reason = [404, {}] as Reply } = {}) {
  let asked = 0
  let askedReason = 0
  vi.spyOn(globalThis, 'fetch').mockImplementation((url) => {
    const withReason = (url as URL).searchParams.has('reason')
    if (withReason) askedReason += 1
    const reply = withReason ? reason : replies[Math.min(asked++, replies.length - 1)]!
    return reply instanceof Error ? Promise.reject(reply) : Promise.resolve(new Response(JSON.stringify({ id: 'srv-a', ...reply[1] }), { status: reply[0] }))
  })
  const result = await waitForInstance({ operator: 'http://127.0.0.1:9169', id: 'srv-a', revision: 7, timeoutMs })
  return { result, asked, askedReason }
}

test('the wait ends as soon as guests get the revision, or a later one', async () => {
  expect(await waited([[200, { revision: 7 }]])).toEqual({ result: { kind: 'answers', revision: 7 }, asked: 1, askedReason: 0 })
  expect(await waited([[200, { revision: 9 }]])).toMatchObject({ result: { kind: 'answers', revision: 9 } })
})

test('until then it asks again, whatever the daemon answers', async () => {
  const replies: Reply[] = [REFUSED, [503, {}], [404, { revision: null }], [200, { revision: 6 }], [409, { revision: 7, reason: 'the firewall has not admitted the guest yet' }], [200, { revision: 7 }]]
  expect(await waited(replies)).toEqual({ result: { kind: 'answers', revision: 7 }, asked: 6, askedReason: 0 })
})

test('a revision whose guest can never start ends the wait at once; an earlier one does not', async () => {
  expect(await waited([[409, { revision: 7, reason: 'no link', final: true }]])).toMatchObject({ result: { kind: 'impossible', revision: 7, reason: 'no link' }, asked: 1 })
  expect(await waited([[409, { revision: 6, reason: 'no link', final: true }], [200, { revision: 7 }]])).toMatchObject({ result: { kind: 'answers' }, asked: 2 })
})

test.each<[string, Reply, object]>([
  ['an old revision is served', [200, { revision: 6 }], { revision: 6, reason: 'it serves revision 6' }],
  ['the daemon does not know the instance', [404, { revision: null }], { revision: undefined, reason: 'it does not know the instance' }],
  ['the guest is held', [409, { revision: 7, reason: 'no firewall' }], { revision: undefined, reason: 'no firewall' }],
  ['the daemon fails', [500, {}], { revision: undefined, reason: 'it answered with status 500' }],
  ['the daemon is down', REFUSED, { revision: undefined, reason: 'it cannot be reached: ECONNREFUSED' }],
])('when the time is over and %s, the result says so', async (_what, reply, result) => {
  expect((await waited([reply], { timeoutMs: 1, reason: [500, {}] })).result).toEqual({ kind: 'timeout', ...result })
})

test('when the time is over the daemon is asked for its reason, once since it may ask the store', async () => {
  const { result, askedReason } = await waited([[404, { revision: null }]], { timeoutMs: 1, reason: [404, { revision: null, reason: 'the store has no record of srv-a' }] })
  expect([result, askedReason]).toEqual([{ kind: 'timeout', revision: undefined, reason: 'the store has no record of srv-a' }, 1])
  const held = await waited([[200, { revision: 6 }]], { timeoutMs: 1, reason: [200, { revision: 6, reason: 'its record is faulty' }] })
  expect(held.result).toEqual({ kind: 'timeout', revision: 6, reason: 'it has revision 6; its record is faulty' })
})
