/**
 * What the OpenAPI document says of every operation: its errors, the account of a user's request, the headers that all
 * requests and responses may have, and bodies that may be empty.
 */
import { FIELD_CODES, REFUSAL_NAMES } from '../model/refusal.ts'
import type { Scope } from '../model/scopes.ts'
import { memberPathOf } from './entity-tags.ts'
import { REQUEST_ID, REQUEST_ID_PATTERN } from './request-id.ts'

/** The parts of an OpenAPI document that are read here. */
interface Document {
  readonly paths?: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components?: { readonly schemas?: object }
}
interface Operation {
  readonly parameters?: readonly object[]
  readonly requestBody?: RequestBody
  readonly responses?: Readonly<Record<string, { readonly headers?: object }>>
}
interface RequestBody {
  readonly required?: boolean
  readonly content: Readonly<Record<string, { readonly schema: { readonly required?: readonly string[] } }>>
}

const ERROR = {
  type: 'object',
  title: 'Error',
  required: ['error_name', 'errors', 'details', 'request_id'],
  properties: {
    error_name: { type: 'string', description: 'For programs.' },
    errors: { type: 'array', items: { type: 'string' }, minItems: 1, description: 'For people.' },
    details: {
      type: 'array',
      minItems: 1,
      description: 'The same as errors, in the same order, for programs.',
      items: {
        type: 'object',
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
          message: { type: 'string' },
        },
      },
    },
    request_id: { type: 'string', description: `As in ${REQUEST_ID}.` },
  },
}
/** Headers of responses, by their names in the document. */
const HEADERS = {
  [REQUEST_ID]: {
    description: 'The id of the request: the given one, or a new one.',
    required: true,
    schema: { type: 'string', pattern: REQUEST_ID_PATTERN },
  },
  ETag: {
    description: 'The entity tag of the resource: a digest of its full form.',
    schema: { type: 'string', examples: ['"Kk3UVqg5rhd6I1w0UEzXnA"'] },
  },
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
const REFUSED = {
  description: 'An error',
  headers: headerReferences('ETag', 'Retry-After', 'RateLimit-Policy', 'RateLimit'),
  content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
}
const ACCOUNT = {
  name: 'account_id',
  in: 'query',
  required: false,
  schema: { type: 'string' },
  description: "The account of a user's request. An API client may leave it out.",
}
const PREFER = {
  name: 'Prefer',
  in: 'header',
  required: false,
  schema: { type: 'string', examples: ['handling=strict'] },
  description:
    'With handling=strict, unknown parameters are refused (422) and named, ' +
    'and the response has Preference-Applied: handling=strict. Otherwise they are ignored.',
}
const GIVEN_ID = {
  name: REQUEST_ID,
  in: 'header',
  required: false,
  schema: { type: 'string', pattern: REQUEST_ID_PATTERN },
  description: 'An id for the request, which the response and the log have too. Any other text is replaced.',
}
const IF_NONE_MATCH = {
  name: 'If-None-Match',
  in: 'header',
  required: false,
  schema: { type: 'string' },
  description: 'Entity tags that the client has. If the resource has one of them, the response is 304 without a body.',
}
const IF_MATCH = {
  name: 'If-Match',
  in: 'header',
  required: false,
  schema: { type: 'string' },
  description: 'Entity tags. If the resource has none of them, nothing is changed, and the response is 412.',
}
const UNCHANGED = { description: 'The client has the present form', headers: headerReferences('ETag') }
const IDEMPOTENCY_KEY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  schema: { type: 'string', minLength: 1, maxLength: 512, examples: ['"8e03978e-40d5-43dd-bc93-6894a57f9324"'] },
  description:
    'The change is made once: for 24 hours a repeat of the request gets the response of the first one, with ' +
    'Idempotent-Replayed: true. Another request with the key gets 422, and a repeat while the first one runs 409.',
}
const SCOPES: Readonly<Record<Scope, string>> = {
  infrastructure: 'Every operation below /1.0.',
  orbit: 'The object store of a region, which is not part of this API.',
}
const TOKEN_ENDPOINT = { tokenUrl: '/token', scopes: SCOPES }
/**
 * Where requests go, and how they are authorized. The URLs are relative, so the pages and clients that load the
 * document send their requests to where it comes from.
 */
export const ACCESS = {
  servers: [{ url: '/' }],
  components: {
    securitySchemes: {
      oauth2: {
        type: 'oauth2' as const,
        description: 'The id and secret of an API client; or of an application, and the password of a user.',
        flows: { clientCredentials: TOKEN_ENDPOINT, password: { ...TOKEN_ENDPOINT, refreshUrl: '/token' } },
      },
      token: { type: 'http' as const, scheme: 'bearer', description: 'An access token of /token.' },
      client: {
        type: 'http' as const,
        scheme: 'basic',
        description: 'The id and secret of an API client or application.',
      },
    },
  },
  security: [{ oauth2: ['infrastructure' satisfies Scope] }, { token: [] }],
}
/** The paths whose requests need no account. */
const WITHOUT_ACCOUNT = '/1.0/user/collaborations'

/** True for a path whose requests may name an account. */
export function takesAccount(path: string): boolean {
  return path.startsWith('/1.0/') && !path.startsWith(WITHOUT_ACCOUNT)
}

/** Completes the document that the routes have made. */
export function completeOpenApi<T extends object>(made: T): T {
  const { paths = {}, components } = made as Document
  const completed = Object.entries(paths).map(([path, operations]) => [
    path,
    Object.fromEntries(
      Object.entries(operations).map(([method, operation]) => [method, completeOperation(path, method, operation)]),
    ),
  ])
  return {
    ...made,
    paths: Object.fromEntries(completed) as object,
    components: { ...components, schemas: { ...components?.schemas, Error: ERROR }, headers: HEADERS },
  }
}

function completeOperation(path: string, method: string, operation: Operation): Operation {
  const { parameters = [], requestBody, responses } = operation
  const isRead = method === 'get' && memberPathOf(path) === path
  const isChange = method !== 'get' && memberPathOf(path) !== undefined
  const described = Object.entries({ ...responses, ...(isRead && { 304: UNCHANGED }), default: REFUSED }).map(
    ([status, response]) => [
      status,
      {
        ...response,
        headers: {
          ...response.headers,
          ...headerReferences(REQUEST_ID, ...(isRead && status === '200' ? (['ETag'] as const) : [])),
        },
      },
    ],
  )
  return {
    ...operation,
    responses: Object.fromEntries(described) as NonNullable<Operation['responses']>,
    ...(path.startsWith('/1.0/') && {
      parameters: [
        ...parameters,
        ...(takesAccount(path) ? [ACCOUNT] : []),
        PREFER,
        GIVEN_ID,
        ...(isRead ? [IF_NONE_MATCH] : isChange ? [IF_MATCH] : []),
        ...(method === 'get' ? [] : [IDEMPOTENCY_KEY]),
      ],
    }),
    ...(requestBody !== undefined && { requestBody: { ...requestBody, required: hasRequiredField(requestBody) } }),
  }
}

function headerReferences(...names: (keyof typeof HEADERS)[]): object {
  return Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]))
}

/** False for a body of which every field is optional: it may be empty. */
function hasRequiredField({ content }: RequestBody): boolean {
  return Object.values(content).some(({ schema: { required = [] } }) => required.length > 0)
}
