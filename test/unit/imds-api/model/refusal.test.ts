import { expect, test } from 'vitest'
import {
  bodyOf as bodyOfRequest,
  fieldFault,
  notFound,
  noSuch,
  noSuchIn,
  refuse,
  Refusal,
} from '../../../../src/imds-api/model/refusal.ts'

const bodyOf = (refusal: Refusal) => bodyOfRequest(refusal, 'req-1')
const errorsOf = (refusal: Refusal) => bodyOf(refusal).errors

test('a refusal names every fault, for people and programs', () => {
  expect(
    bodyOf(refuse('unprocessable_entity', 'a', fieldFault('servers.0', 'missing', 'servers.0 is missing'))),
  ).toEqual({
    error_name: 'unprocessable_entity',
    errors: ['a', 'servers.0 is missing'],
    details: [
      { field: null, code: 'unprocessable_entity', message: 'a' },
      { field: 'servers.0', code: 'missing', message: 'servers.0 is missing' },
    ],
    request_id: 'req-1',
  })
  expect(bodyOf(notFound('the server x'))).toEqual({
    error_name: 'resource_not_found',
    errors: ['the server x does not exist'],
    details: [{ field: null, code: 'resource_not_found', message: 'the server x does not exist' }],
    request_id: 'req-1',
  })
})

test('a long text is cut in its middle, so that an answer is not as long as the request', () => {
  expect(errorsOf(notFound(`the image ${'x'.repeat(281)}`))).toEqual([
    `the image ${'x'.repeat(281)} does not exist`.slice(0, 200) + '...' + `${'x'.repeat(82)} does not exist`,
  ])
  expect(errorsOf(notFound(`the image ${'x'.repeat(200_000)}`))[0]).toHaveLength(300)
  expect(errorsOf(notFound(`the image ${'x'.repeat(275)}`))).toEqual([`the image ${'x'.repeat(275)} does not exist`])
  expect(errorsOf(notFound('😀'.repeat(200)))[0]!.isWellFormed()).toBe(true)
})

test('of many faults the first 100 are named', () => {
  const faults = (count: number) => Array.from({ length: count }, (_, i) => `fault ${i}`)
  expect(errorsOf(new Refusal('unprocessable_entity', faults(101)))).toEqual(faults(101))
  expect(errorsOf(new Refusal('unprocessable_entity', faults(300_000)))).toEqual([...faults(100), 'and more'])
})

test('an id of another kind is named by its prefix alone, and for other ids the list is named', () => {
  expect(bodyOf(noSuch('server', 'cip-abcde')).details).toEqual([
    {
      field: null,
      code: 'wrong_kind',
      message: 'the server cip-abcde does not exist: cip-abcde is the id of a cloud IP',
    },
  ])
  expect(errorsOf(noSuch('cloud IP', 'img-abcdef'))).toEqual([
    'the cloud IP img-abcdef does not exist: img-abcdef is the id of an image',
  ])
  for (const id of ['srv-abcde', 'cip-abc', 'cip-ABCDE', 'xxx-abcde', 'cip', '', '__proto__', 'toString']) {
    expect(bodyOf(noSuch('server', id)).details).toEqual([
      { field: null, code: 'resource_not_found', message: `the server ${id} does not exist` },
    ])
  }
  expect([
    noSuchIn('image', 'image', 'debian-13', '/1.0/images'),
    noSuchIn('image', 'image', 'typ-abcde', '/1.0/images'),
  ]).toEqual([
    { field: 'image', code: 'does_not_exist', message: 'image: debian-13 does not exist: GET /1.0/images lists them' },
    {
      field: 'image',
      code: 'wrong_kind',
      message: 'image: typ-abcde does not exist: typ-abcde is the id of a server type',
    },
  ])
})

test('the text of a request is bounded and escaped, in messages and in fields', () => {
  const hostile = `\u001b[31m\n\u202e${'\u0007'.repeat(200_000)}`
  const { field, message } = refuse('unprocessable_entity', fieldFault(hostile, 'malformed', `${hostile} is wrong`))
    .details[0]
  for (const text of [field!, message]) {
    expect(text.length).toBeLessThanOrEqual(300)
    expect(text).toMatch(/^\\u001b\[31m\\u000a\\u202e\\u0007[ -~]+$/)
  }
})
