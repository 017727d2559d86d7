import { describe, expect, test } from 'vitest'
import { isOrdinary, REFUSALS, refusalText, responseOf, statusOf } from '../../../../src/imdsd/guest/refusals.ts'
import { parseAnswer } from '../../../support/fixtures/socket.ts'

const headersOf = (list: readonly string[]) =>
  Object.fromEntries(list.flatMap((name, i) => (i % 2 === 0 ? [[name.toLowerCase(), list[i + 1]!]] : [])))

describe.each(REFUSALS)('%s', (refusal) => {
  const { status, headers, body, headersWithoutBody } = responseOf(refusal)

  test('A7: has the XHTML page if its status is 400, 401, 404 or 503, and else no body', () => {
    const hasPage = [400, 401, 404, 503].includes(status)
    expect(body === '').toBe(!hasPage)
    if (hasPage) expect(body).toContain(`<h1>${status} - `)
    expect(headersOf(headers)).toMatchObject({
      'content-type': hasPage ? 'text/html' : 'text/plain',
      'content-length': String(Buffer.byteLength(body)),
    })
  })

  test('A7: asks the guest to try again in a second if its status is 503, in a minute if it is 429', () => {
    for (const list of [headers, headersWithoutBody])
      expect(headersOf(list)['retry-after']).toBe(status === 503 ? '1' : status === 429 ? '60' : undefined)
  })

  test('has the same headers without a body, for a length of 0', () => {
    expect(headersOf(headersWithoutBody)).toEqual({
      ...headersOf(headers),
      'content-type': 'text/plain',
      'content-length': '0',
    })
  })

  test('as text is the last response of its connection, with the same status, headers and body', () => {
    const answer = parseAnswer(refusalText(refusal))
    expect(answer.text).toMatch(/^HTTP\/1\.1 \d{3} [A-Z][A-Za-z ]+\r\n/)
    expect(answer).toMatchObject({ status, body, headers: { ...headersOf(headers), connection: 'close' } })
    expect(Number.isNaN(Date.parse(answer.headers['date']!))).toBe(false)
  })
})

test('a refusal has a status that clients of EC2 know, unless it is of a report; 500 is for a bug', () => {
  const others = REFUSALS.filter((refusal) => !refusal.includes('report'))
  expect(new Set(others.map(statusOf))).toEqual(new Set([400, 401, 403, 404, 405, 500, 503]))
  expect(REFUSALS.filter((refusal) => statusOf(refusal) === 500)).toEqual(['internal-error'])
})

test('a 405 names the methods that its path allows', () => {
  const allowed = REFUSALS.filter((refusal) => statusOf(refusal) === 405).map(
    (refusal) => headersOf(responseOf(refusal).headers)['allow'],
  )
  expect(allowed).toEqual(['GET, HEAD', 'OPTIONS, PUT', 'PUT', 'POST'])
})

test('what a guest does in normal operation is not worth a warning; an attack, a fault or a limit is', () => {
  expect(REFUSALS.filter(isOrdinary)).toEqual([
    'bad-report',
    'not-found',
    'endpoint-disabled',
    'ipv6-disabled',
    'method-not-allowed',
    'token-method',
    'report-method',
    'phone-home-method',
    'report-too-large',
    'internal-error',
  ])
})
