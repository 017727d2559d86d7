/** What the operations of the OpenAPI document share: parameters, headers, and the form of every error. */
import { FIELD_CODES, REFUSAL_NAMES } from '../model/refusal.ts'
import type { Schema } from './openapi-schemas.ts'
import { REQUEST_ID } from './request-id.ts'

const TEXT = { type: 'string' }

/** The parameters that operations have by their method and path. */
export const PARAMETERS = {
  Account: {
    name: 'account_id',
    in: 'query',
    required: false,
    schema: TEXT,
    description: "The account of a user's request. An API client may leave it out.",
  },
  IfNoneMatch: header(
    'If-None-Match',
    'Entity tags that the client has. If the resource has one of them, the response is 304 without a body.',
  ),
  IfMatch: header(
    'If-Match',
    'Entity tags. If the resource has none of them, nothing is changed, and the response is 412.',
  ),
  IdempotencyKey: header(
    'Idempotency-Key',
    'The change is made once: for 24 hours a repeat of the request gets the response of the first one, with ' +
      'Idempotent-Replayed: true. Another request with the key gets 422, and a repeat while the first one runs 409.',
    { minLength: 1, maxLength: 512, examples: ['"8e03978e-40d5-43dd-bc93-6894a57f9324"'] },
  ),
}
export type ParameterName = keyof typeof PARAMETERS

/** An optional header. `keywords`: of the schema of its text. */
function header(name: string, description: string, keywords: object = {}): object {
  return { name, in: 'header', required: false, schema: { ...TEXT, ...keywords }, description }
}

/** Headers that few successful responses have. */
export const HEADERS = {
  ETag: {
    description: 'The entity tag of the resource: a digest of its full form.',
    schema: { ...TEXT, examples: ['"Kk3UVqg5rhd6I1w0UEzXnA"'] },
  },
  Link: { description: 'Another resource, and its relation to this one (RFC 8288).', schema: TEXT },
}
export type HeaderName = keyof typeof HEADERS

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
const ERROR: Schema = {
  type: 'object',
  title: 'Error',
  required: ['error_name', 'errors', 'details', 'request_id'],
  properties: {
    error_name: { type: 'string', enum: REFUSAL_NAMES, description: 'For programs.' },
    errors: { type: 'array', items: TEXT, minItems: 1, description: 'For people.' },
    details: {
      type: 'array',
      minItems: 1,
      description: 'The same as errors, in the same order, for programs.',
      items: DETAIL,
    },
    request_id: { type: 'string', description: `As in ${REQUEST_ID}.` },
    error: { type: 'string', description: 'Of a token request, or a token: as OAuth 2.0 names it (RFC 6749, 5.2).' },
    error_description: { type: 'string', description: 'With it: the same as the first of errors.' },
  },
}

/** The responses without the form of a resource, by their names in the document. */
export const RESPONSES = {
  NotModified: {
    description: 'The client has the present form.',
    headers: { ETag: { $ref: '#/components/headers/ETag' } },
  },
  Error: {
    description: 'An error. A 401 has WWW-Authenticate too, a 429 and a 503 have Retry-After.',
    content: { 'application/json': { schema: ERROR } },
  },
}
