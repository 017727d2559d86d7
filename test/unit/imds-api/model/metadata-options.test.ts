import { expect, test } from 'vitest'
import { completeOptions, recordOptions, tagsFault } from '../../../../src/imds-api/model/metadata-options.ts'
import { parse } from '../../../../src/metadata/record.ts'
import { anInstance } from '../../../support/fixtures/instance.ts'

const DEFAULTS = {
  http_endpoint: 'enabled',
  http_tokens: 'optional',
  http_put_response_hop_limit: 1,
  http_protocol_ipv6: 'disabled',
  instance_metadata_tags: 'disabled',
  openstack: 'disabled',
  reports: 'disabled',
} as const

test('given options replace present ones, which replace the defaults of the record', () => {
  expect(completeOptions({}, {})).toEqual(DEFAULTS)
  expect(completeOptions({ http_tokens: 'required' }, {})).toEqual({ ...DEFAULTS, http_tokens: 'required' })
  expect(completeOptions({ http_tokens: 'optional' }, { http_tokens: 'required', http_endpoint: 'disabled' })).toEqual({
    ...DEFAULTS,
    http_endpoint: 'disabled',
  })
})

test('what is no option is left out', () => {
  expect(completeOptions(JSON.parse('{"http_tokens":"required","more":1}') as object, {})).toEqual({
    ...DEFAULTS,
    http_tokens: 'required',
  })
})

test('a record has the options by its own names', () => {
  expect(
    recordOptions({
      http_endpoint: 'disabled',
      http_tokens: 'required',
      http_put_response_hop_limit: 64,
      http_protocol_ipv6: 'enabled',
      instance_metadata_tags: 'enabled',
      openstack: 'disabled',
      reports: 'enabled',
    }),
  ).toEqual({
    httpEndpoint: 'disabled',
    httpTokens: 'required',
    httpPutResponseHopLimit: 64,
    httpProtocolIpv6: 'enabled',
    instanceMetadataTags: 'enabled',
    reports: 'enabled',
  })
})

test('tags that a record would lose or no path can name are refused', () => {
  expect(tagsFault({ '': 'x' })?.message).toMatch(/^tags must have keys of at least one character/)
  for (const tags of [{}, { Name: '' }, { 'any text é😀': 'a\nb' }, { 'a/b': '\0' }, { constructor: '1' }]) {
    expect(tagsFault(tags)).toBeUndefined()
    const parsed = parse({ ...anInstance(), tags })
    expect(parsed.ok && parsed.value.tags).toEqual(tags)
  }
  for (const tags of [{ 'a\nb': '1' }, { 'a\u2028': '1' }]) {
    expect(tagsFault(tags)?.message).toBe('tags must have keys of at least one character, without line breaks')
    const parsed = parse({ ...anInstance(), tags })
    expect(parsed.ok && parsed.value.tags).toEqual({})
  }
  expect(tagsFault({ a: '\ud800' })?.message).toBe('tags must not have half of a surrogate pair')
  expect(tagsFault({ '\udc00': 'a' })?.message).toBe('tags must not have half of a surrogate pair')
})
