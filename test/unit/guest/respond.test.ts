import type { IncomingHttpHeaders } from 'node:http'
import { expect, test } from 'vitest'
import { isLast } from '../../../src/guest/respond.ts'

test.each<[string, IncomingHttpHeaders, Parameters<typeof isLast>[1], boolean]>([
  ['no body', {}, 'served', false], ['a length of 0', { 'content-length': '0' }, 'not-found', false], ['a length', { 'content-length': '5' }, 'served', true],
  ['two zeros, which others read as one length', { 'content-length': '00' }, 'served', true],
  ['an encoding', { 'transfer-encoding': 'chunked' }, 'method-not-allowed', true], ['another protocol', { upgrade: 'h2c' }, 'served', true], ['no certain end', {}, 'malformed-request', true],
])('a request with %s is the last of its connection: %o, outcome %s: %s', (_what, headers, outcome, last) => { expect(isLast(headers, outcome)).toBe(last) })
