/**
 * The client of the operator API with a stub of fetch. test/daemon/launch-gate.test.ts and explain.test.ts have a real daemon.
 */
import { afterEach, describe, expect, test, vi } from 'vitest'
import { EXIT, type Failure } from '../../../src/runtime/failure.ts'
import { getExplanation, getFirewallDocument, getInstanceState, valueOf, type Answer } from '../../../src/operator/client.ts'

const BASE = 'http://127.0.0.1:9169'
const { signal } = new AbortController()
const STATE = { id: 'srv-a', revision: 7 }
const EXPLANATION = { network: 'red', address: 'fd00::2', answer: 'metadata', status: 200, because: 'it is srv-a\'s' }
const DOCUMENT = { version: 'a.1', link: 'tap', listeners: [], operator: { address: '127.0.0.1', port: 9169 }, limitedDscp: 11, guests: [] }

afterEach(() => { vi.restoreAllMocks() })

/** Answers every request; gives the URLs that were asked for. */
function answering(status: number, body: unknown): string[] {
  const urls: string[] = []
  vi.spyOn(globalThis, 'fetch').mockImplementation((url) => {
    urls.push(url instanceof URL ? url.href : 'not a URL')
    return Promise.resolve(new Response(typeof body === 'string' ? body : JSON.stringify(body), { status }))
  })
  return urls
}

test('an id and an address are escaped in the URL of a request', async () => {
  const urls = answering(200, STATE)
  await getInstanceState(BASE, 'a/../b?x', false, signal)
  await getInstanceState(BASE, 'srv-a', true, signal)
  await getExplanation(BASE, 'red', 'fd00::2&x=1', signal)
  expect(urls).toEqual([`${BASE}/instances/a%2F..%2Fb%3Fx`, `${BASE}/instances/srv-a?reason=`, `${BASE}/explain?address=fd00%3A%3A2%26x%3D1&network=red`])
})

test('the agent asks for what comes after its version, and reports it; without a report it asks for any', async () => {
  const urls = answering(200, DOCUMENT)
  expect(await getFirewallDocument(BASE, undefined, signal)).toEqual({ kind: 'answered', status: 200, value: DOCUMENT })
  await getFirewallDocument(BASE, { applied: 'a.1', refused: [{ instance: 'srv-a', interface: 'int-a', message: 'no' }] }, signal)
  const [plain, reporting] = urls.map((url) => new URL(url))
  expect(plain!.search).toBe('')
  expect(Object.fromEntries(reporting!.searchParams)).toEqual({ after: 'a.1', applied: 'a.1', refused: '[["srv-a","int-a","no"]]' })
})

describe('an answer is refused', () => {
  test.each<[string, number, unknown]>([
    ['with another status than those of a document', 503, STATE], ['with a document of another shape', 200, { id: 'srv-a' }], ['that is no JSON', 200, '<html>'], ['that is empty', 200, ''],
  ])('%s', async (_what, status, body) => {
    answering(status, body)
    expect(await getInstanceState(BASE, 'srv-a', false, signal)).toEqual({ kind: 'refused', status })
  })
})

test.each([200, 404, 409])('the launch gate answers with a document also with status %i', async (status) => {
  answering(status, STATE)
  expect(await getInstanceState(BASE, 'srv-a', false, signal)).toEqual({ kind: 'answered', status, value: STATE })
})

test('an explanation is checked when it arrives', async () => {
  answering(200, EXPLANATION)
  expect(await getExplanation(BASE, 'red', 'fd00::2', signal)).toEqual({ kind: 'answered', status: 200, value: EXPLANATION })
  answering(200, { ...EXPLANATION, status: 'x' })
  expect(await getExplanation(BASE, 'red', 'fd00::2', signal)).toEqual({ kind: 'refused', status: 200 })
})

test('a daemon that cannot be reached, or is too slow, is a value: the request never rejects', async () => {
  const fails = (error: Error) => { vi.spyOn(globalThis, 'fetch').mockRejectedValue(error) }
  fails(new TypeError('fetch failed', { cause: new Error('connect ECONNREFUSED 127.0.0.1:9169') }))
  expect(await getInstanceState(BASE, 'srv-a', false, signal)).toEqual({ kind: 'unreachable', reason: 'connect ECONNREFUSED 127.0.0.1:9169' })
  fails(new DOMException('The operation timed out', 'TimeoutError'))
  expect(await getInstanceState(BASE, 'srv-a', false, signal)).toEqual({ kind: 'timeout' })
  expect(await getInstanceState('nowhere', 'srv-a', false, signal)).toMatchObject({ kind: 'unreachable', reason: expect.stringContaining('Invalid URL') as string })
})

describe('the document of an answer', () => {
  test('is its value', () => { expect(valueOf({ kind: 'answered', status: 404, value: STATE }, 'x')).toBe(STATE) })
  test.each<[Answer<never>, string]>([
    [{ kind: 'refused', status: 500 }, 'the daemon at hv1:9169 answered with status 500'],
    [{ kind: 'refused', status: 200 }, 'the daemon at hv1:9169 answered with status 200 and a document that this version cannot read'],
    [{ kind: 'timeout' }, 'the daemon at hv1:9169 does not answer'],
    [{ kind: 'unreachable', reason: 'ECONNREFUSED' }, 'the daemon at hv1:9169 cannot be reached: ECONNREFUSED'],
  ])('of %o is a failure that names the daemon and its answer', (answer, message) => {
    let failure: Failure | undefined
    try {
      valueOf(answer, 'hv1:9169')
    } catch (error) {
      failure = error as Failure
    }
    expect([failure?.status, failure?.message]).toEqual([EXIT.unavailable, message])
  })
})
