import { expect, test } from 'vitest'
import { bodyOf, isRefusal, notFound, refuse, refuseAll, statusOf, type RefusalName } from '../../../src/api/refusal.ts'

test.each<[RefusalName, number]>([
  ['bad_request', 400], ['unauthorized', 401], ['forbidden', 403], ['account_limit_reached', 403], ['account_not_active', 403], ['account_not_verified', 403], ['insufficient_scope', 403], ['resource_not_found', 404], ['method_not_allowed', 405],
  ['request_timeout', 408], ['header_fields_too_large', 431], ['resource_conflict', 409], ['payload_too_large', 413], ['unsupported_media_type', 415], ['unprocessable_entity', 422], ['too_many_requests', 429], ['internal_server_error', 500], ['not_implemented', 501],
  ['insufficient_capacity', 503], ['service_unavailable', 503],
])('%s is %d', (name, status) => { expect(statusOf(name)).toBe(status) })

test('a refusal names every fault, and isRefusal distinguishes it from a result', () => {
  expect(bodyOf(refuse('unprocessable_entity', 'a', 'b'))).toEqual({ error_name: 'unprocessable_entity', errors: ['a', 'b'] })
  expect(bodyOf(notFound('the server x'))).toEqual({ error_name: 'resource_not_found', errors: ['the server x does not exist'] })
  expect([notFound('x'), undefined, null, 'refused', { kind: 'other' }, {}].map(isRefusal)).toEqual([true, false, false, false, false, false])
})

test('a long text is cut in its middle, so that an answer is not as long as the request', () => {
  expect(notFound(`the image ${'x'.repeat(281)}`).errors).toEqual([`the image ${'x'.repeat(281)} does not exist`.slice(0, 200) + '...' + `${'x'.repeat(82)} does not exist`])
  expect(notFound(`the image ${'x'.repeat(200_000)}`).errors[0]).toHaveLength(300)
  expect(notFound(`the image ${'x'.repeat(275)}`).errors).toEqual([`the image ${'x'.repeat(275)} does not exist`])
  expect(notFound('😀'.repeat(200)).errors[0].isWellFormed()).toBe(true)
})

test('of many faults the first 100 are named', () => {
  const faults = (count: number) => Array.from({ length: count }, (_, i) => `fault ${String(i)}`)
  expect(refuseAll('unprocessable_entity', faults(101)).errors).toEqual(faults(101))
  expect(refuseAll('unprocessable_entity', faults(300_000)).errors).toEqual([...faults(100), 'and more'])
})
