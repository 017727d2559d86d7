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
  RequestId: header(
    REQUEST_ID,
    'An id for the request, which the response and the log have too. Any other text is replaced.',
    { pattern: REQUEST_ID_PATTERN },
  ),
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
export function header(name: string, description: string, keywords: object = {}): object {
  return { name, in: 'header', required: false, schema: { type: 'string', ...keywords }, description }
}
