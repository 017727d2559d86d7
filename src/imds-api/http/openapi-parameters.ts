/** The parameters that operations have by their method and path, as the OpenAPI document has them. */
import { REQUEST_ID, REQUEST_ID_PATTERN } from './request-id.ts'

export const PARAMETERS = {
  Account: {
    name: 'account_id',
    in: 'query',
    required: false,
    schema: { type: 'string' },
    description: "The account of a user's request. An API client may leave it out.",
  },
  Prefer: {
    name: 'Prefer',
    in: 'header',
    required: false,
    schema: { type: 'string', examples: ['handling=strict'] },
    description:
      'With handling=strict, unknown parameters are refused (422) and named, ' +
      'and the response has Preference-Applied: handling=strict. Otherwise they are ignored, except in the query of a list (400).',
  },
  RequestId: {
    name: REQUEST_ID,
    in: 'header',
    required: false,
    schema: { type: 'string', pattern: REQUEST_ID_PATTERN },
    description: 'An id for the request, which the response and the log have too. Any other text is replaced.',
  },
  IfNoneMatch: {
    name: 'If-None-Match',
    in: 'header',
    required: false,
    schema: { type: 'string' },
    description:
      'Entity tags that the client has. If the resource has one of them, the response is 304 without a body.',
  },
  IfMatch: {
    name: 'If-Match',
    in: 'header',
    required: false,
    schema: { type: 'string' },
    description: 'Entity tags. If the resource has none of them, nothing is changed, and the response is 412.',
  },
  IdempotencyKey: {
    name: 'Idempotency-Key',
    in: 'header',
    required: false,
    schema: { type: 'string', minLength: 1, maxLength: 512, examples: ['"8e03978e-40d5-43dd-bc93-6894a57f9324"'] },
    description:
      'The change is made once: for 24 hours a repeat of the request gets the response of the first one, with ' +
      'Idempotent-Replayed: true. Another request with the key gets 422, and a repeat while the first one runs 409.',
  },
}
export type ParameterName = keyof typeof PARAMETERS
