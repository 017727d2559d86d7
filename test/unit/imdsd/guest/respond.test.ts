import type { IncomingHttpHeaders } from 'node:http'
import { expect, test } from 'vitest'
import { isLast } from '../../../../src/imdsd/guest/respond.ts'
import { aGuestServer } from '../../../support/fixtures/guest-server.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

test.each<[string, IncomingHttpHeaders, Parameters<typeof isLast>[1], boolean]>([
  ['no body', {}, 'served', false],
  ['a length of 0', { 'content-length': '0' }, 'not-found', false],
  ['a length', { 'content-length': '5' }, 'served', true],
  ['two zeros, which others read as one length', { 'content-length': '00' }, 'served', true],
  ['an encoding', { 'transfer-encoding': 'chunked' }, 'method-not-allowed', true],
  ['another protocol', { upgrade: 'h2c' }, 'served', true],
  ['no certain end', {}, 'malformed-request', true],
])('a request with %s is the last of its connection: %o, outcome %s: %s', (_what, headers, outcome, last) => {
  expect(isLast(headers, outcome)).toBe(last)
})

test('at level debug each request has one line: instance, route, status, duration and reason', async () => {
  const guest = aGuestServer({ level: 'debug' })
  guest.put(anInstance())
  await guest.ask('/latest/meta-data/public-ipv4')
  await guest.ask('/latest/nothing')
  expect(guest.log).toMatchObject([
    { instance: 'srv-abcde', route: '/{version}/meta-data', status: 200, reason: 'served' },
    { instance: 'srv-abcde', route: 'unknown', status: 404, reason: 'not-found' },
  ])
  expect(JSON.stringify(guest.log)).not.toContain('198.51.100.7')
})
