/** The headers and errors of responses, as the OpenAPI document has them. */
import { STATUS_CODES } from 'node:http'
import { FIELD_CODES, REFUSAL_NAMES, statusOf, type RefusalName } from '../model/refusal.ts'
import type { Schema } from './openapi-schemas.ts'
import { REQUEST_ID, REQUEST_ID_PATTERN } from './request-id.ts'

const TEXT = { type: 'string' }

/** Headers of responses, by their names in the document. */
export const HEADERS = {
  [REQUEST_ID]: {
    description: 'The id of the request: the given one, or a new one.',
    required: true,
    schema: { type: 'string', pattern: REQUEST_ID_PATTERN },
  },
  'Cache-Control': { description: 'Whether caches may store the response.', schema: TEXT },
  Pragma: { description: 'The same as Cache-Control, for caches of HTTP/1.0.', schema: TEXT },
  'X-Oauth-Scopes': { description: 'The scopes of the access token.', schema: TEXT },
  ETag: {
    description: 'The entity tag of the resource: a digest of its full form.',
    schema: { type: 'string', examples: ['"Kk3UVqg5rhd6I1w0UEzXnA"'] },
  },
  Link: { description: 'Another resource, and its relation to this one (RFC 8288).', schema: TEXT },
  'Idempotent-Replayed': {
    description: 'This is the recorded response of an earlier request with the same Idempotency-Key.',
    schema: { type: 'string', const: 'true' },
  },
  'Idempotent-Omitted': {
    description: 'The fields of a recorded response that are null because secrets are not recorded.',
    schema: { type: 'string', examples: ['secret'] },
  },
  'WWW-Authenticate': { description: 'How requests are authorized, and what is wrong with the token.', schema: TEXT },
  'Retry-After': { description: 'When to try again, in seconds.', schema: { type: 'integer', minimum: 0 } },
  'RateLimit-Policy': {
    description: 'A limit: its name, how many requests (q) in how many seconds (w).',
    schema: { type: 'string', examples: ['"failures";q=10;w=600'] },
  },
  RateLimit: {
    description: 'What is left of the limit (r), and if nothing is, for how many seconds (t).',
    schema: { type: 'string', examples: ['"failures";r=9', '"failures";r=0;t=60'] },
  },
}
export type HeaderName = keyof typeof HEADERS
/** The headers with the rest of a rate limit. */
export const RATE_LIMIT: readonly HeaderName[] = ['RateLimit-Policy', 'RateLimit']
/** The headers that any response below /1.0 may have. */
export const COMMON: readonly HeaderName[] = ['Cache-Control', 'X-Oauth-Scopes']

/** The additional headers of refusals, by status. */
const HEADERS_OF_STATUS: Readonly<Record<number, readonly HeaderName[]>> = {
  401: ['WWW-Authenticate', ...RATE_LIMIT],
  403: ['WWW-Authenticate', 'Idempotent-Replayed'],
  404: ['Idempotent-Replayed'],
  409: ['Idempotent-Replayed', 'Retry-After'],
  412: ['Idempotent-Replayed', 'ETag'],
  422: ['Idempotent-Replayed'],
  429: ['Retry-After', ...RATE_LIMIT],
  503: ['Retry-After'],
}

export function headerReferences(names: readonly HeaderName[]): object {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
}

const DETAIL = {
  type: 'object',
  title: 'ErrorDetail',
  required: ['field', 'code', 'message'],
  properties: {
    field: {
      type: ['string', 'null'],
      description:
        'The place in the body, such as servers.0.server, or the name of a parameter. Null: the whole request.',
    },
    code: {
      type: 'string',
      enum: [...FIELD_CODES, ...REFUSAL_NAMES],
      description: 'What is wrong with the field. If no field is wrong: error_name.',
    },
    message: TEXT,
  },
}
/** The errors of OAuth (RFC 6749, 5.2), beside the fields of every error. */
const OAUTH = {
  error: { type: 'string', description: 'As OAuth 2.0 names it.' },
  error_description: { type: 'string', description: 'The same as the first of errors.' },
}

/** The schema of errors with these names. `isOfToken`: with the fields of OAuth. */
function errorSchema(title: string, names: readonly RefusalName[], isOfToken: boolean): Schema {
  return {
    type: 'object',
    title,
    required: [...(isOfToken ? Object.keys(OAUTH) : []), 'error_name', 'errors', 'details', 'request_id'],
    properties: {
      ...((isOfToken || names.includes('unauthorized')) && OAUTH),
      error_name: { type: 'string', enum: names, description: 'For programs.' },
      errors: { type: 'array', items: TEXT, minItems: 1, description: 'For people.' },
      details: {
        type: 'array',
        minItems: 1,
        description: 'The same as errors, in the same order, for programs.',
        items: DETAIL,
      },
      request_id: { type: 'string', description: `As in ${REQUEST_ID}.` },
    },
  }
}

/** An error of any status: of requests that no operation receives, too. */
export const ANY_ERROR = {
  description: 'An error',
  headers: headerReferences([REQUEST_ID, ...COMMON, 'Retry-After']),
  content: { 'application/json': { schema: errorSchema('Error', REFUSAL_NAMES, false) } },
}

/**
 * The response with an error of a status. `isOfToken`: of the token endpoint, whose errors have the fields of OAuth.
 * `otpHeaders`: the headers of its 401 that demand a one-time password.
 */
export function errorResponse(
  status: number,
  isOfToken: boolean,
  otpHeaders: readonly string[],
): { readonly name: string; readonly response: object } {
  const text = STATUS_CODES[status]!
  const name = `${isOfToken ? 'Token' : ''}${text.replaceAll(' ', '').replace(/Error$/, '')}`
  const names = REFUSAL_NAMES.filter((one) => statusOf(one) === status)
  const common = isOfToken ? (['Cache-Control', 'Pragma'] as const) : COMMON
  const ofCodes = isOfToken && status === 401 ? otpHeaders : []
  const ofFailures = isOfToken && status === 400 ? RATE_LIMIT : [] // a wrong assertion
  return {
    name,
    response: {
      description: text,
      headers: {
        ...headerReferences([REQUEST_ID, ...common, ...ofFailures, ...(HEADERS_OF_STATUS[status] ?? [])]),
        ...Object.fromEntries(ofCodes.map((header) => [header, CODE_REQUIRED])),
      },
      content: { 'application/json': { schema: errorSchema(`${name}Error`, names, isOfToken) } },
    },
  }
}

const CODE_REQUIRED = {
  description: 'The password is right, and a one-time password is missing or wrong.',
  schema: { type: 'string', const: 'required' },
}
