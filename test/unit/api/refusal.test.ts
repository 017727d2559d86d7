import { expect, test } from 'vitest'
import { bodyOf, isRefusal, notFound, refuse, statusOf, type RefusalName } from '../../../src/api/refusal.ts'

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
