/**
 * Completes the OpenAPI document that the routes have made: components for what operations share, and what all
 * operations have by their method and path, such as headers and errors.
 */
import { STATUS_CODES } from 'node:http'
import { statusOf, type RefusalName } from '../model/refusal.ts'
import { memberPathOf, showsMember } from './entity-tags.ts'
import { header, PARAMETERS, type ParameterName } from './openapi-parameters.ts'
import { ANY_ERROR, COMMON, errorResponse, HEADERS, headerReferences, RATE_LIMIT } from './openapi-responses.ts'
import type { HeaderName } from './openapi-responses.ts'
import { Components, type Schema } from './openapi-schemas.ts'
import { REQUEST_ID } from './request-id.ts'

declare module 'fastify' {
  /** What the document says of a route, and its path and method do not. */
  interface FastifySchema {
    /** Refusals that few routes have. */
    'x-refusals'?: readonly RefusalName[]
    /** Headers of the response, beside those of all routes. */
    'x-headers'?: readonly HeaderName[]
    /** The body, if the route checks more of it than the schema that Fastify uses. */
    'x-body'?: object
  }
}

/** The parts of an OpenAPI document that are read here. */
interface Document {
  readonly paths?: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components?: { readonly schemas?: object }
}
interface Operation {
  readonly parameters?: readonly Parameter[]
  readonly requestBody?: RequestBody
  readonly responses?: Readonly<Record<string, Response>>
  readonly 'x-refusals'?: readonly RefusalName[]
  readonly 'x-headers'?: readonly HeaderName[]
  readonly 'x-body'?: Schema
}
interface Parameter {
  readonly name: string
  readonly in: string
  readonly schema: Schema
}
interface RequestBody {
  readonly content: Content
}
interface Response {
  readonly content?: Content
}
type Content = Readonly<Record<string, { readonly schema: Schema }>>

/** The paths whose requests need no account. */
const WITHOUT_ACCOUNT = '/1.0/user/collaborations'

/** True for a path whose requests may name an account. */
export function takesAccount(path: string): boolean {
  return path.startsWith('/1.0/') && !path.startsWith(WITHOUT_ACCOUNT)
}

/**
 * Completes the document that the routes have made. `otpHeaders`: those of the token endpoint that have a one-time
 * password, and of its response that demand one.
 */
export function completeOpenApi<T extends object>(made: T, otpHeaders: readonly string[]): T {
  const { paths = {}, components } = made as Document
  const parts: DocumentParts = { schemas: new Components(), errors: new Map(), otpHeaders }
  const completed = Object.entries(paths).map(([path, operations]) => [
    path,
    Object.fromEntries(
      Object.entries(operations).map(([method, operation]) => [
        method,
        completeOperation(path, method, operation, parts),
      ]),
    ),
  ])
  const responses = Object.fromEntries(parts.errors)
  return {
    ...made,
    paths: Object.fromEntries(completed) as object,
    components: { ...components, schemas: parts.schemas.schemas, responses, parameters: PARAMETERS, headers: HEADERS },
  }
}

/** What the operations of a document share. `errors`: the responses by name. */
interface DocumentParts {
  readonly schemas: Components
  readonly errors: Map<string, object>
  readonly otpHeaders: readonly string[]
}

function completeOperation(
  path: string,
  method: string,
  { 'x-refusals': refusals = [], 'x-headers': headers = [], 'x-body': body, ...operation }: Operation,
  { schemas, errors, otpHeaders }: DocumentParts,
): object {
  const { requestBody, responses } = operation
  const given = operation.parameters ?? []
  const parameters = given.map(asDeepObject)
  const isOfToken = path === '/token'
  const refer = ([status, response]: readonly [string, object]) => {
    errors.set(status, withComponents(response, schemas))
    return { $ref: `#/components/responses/${status}` }
  }
  const success = Object.entries(responses ?? {}).map(([status, response]) => [
    status,
    {
      ...withComponents(response, schemas),
      description: STATUS_CODES[status],
      headers: headerReferences([...successHeaders(path, method, refusals), ...headers]),
    },
  ])
  const refused = errorStatuses(path, method, refusals).map((status) => {
    const { name, response } = errorResponse(status, isOfToken, otpHeaders)
    return [status, refer([name, response])]
  })
  return {
    ...operation,
    ...(path.startsWith('/1.0/') && {
      parameters: [
        ...parameters,
        ...parametersOf(path, method).map((name) => ({ $ref: `#/components/parameters/${name}` })),
      ],
    }),
    ...(isOfToken && { parameters: [...parameters, ...otpHeaders.map((name) => header(name, OF_OTP_HEADER))] }),
    ...(requestBody !== undefined && { requestBody: completeBody(requestBody, body, schemas) }),
    responses: Object.fromEntries([
      ...success,
      ...(isRead(path, method) ? [[304, refer(['NotModified', NOT_MODIFIED])]] : []),
      ...refused,
      ['default', refer(['Error', ANY_ERROR])],
    ]) as object,
  }
}

/** An object in a query has a parameter for each of its fields, such as `tags[Role]`. */
function asDeepObject(parameter: Parameter): object {
  const isObject = parameter.in === 'query' && parameter.schema['type'] === 'object'
  return isObject ? { ...parameter, style: 'deepObject', explode: true } : parameter
}

const NOT_MODIFIED = {
  description: 'The client has the present form.',
  headers: headerReferences([REQUEST_ID, ...COMMON, 'ETag']),
}

const OF_OTP_HEADER = 'A one-time password, for the grant password of a user with two-factor authentication.'

/** True for the GET of a member, which has an entity tag. */
function isRead(path: string, method: string): boolean {
  return method === 'get' && showsMember(path)
}

function parametersOf(path: string, method: string): readonly ParameterName[] {
  const isChange = method !== 'get'
  return [
    ...(takesAccount(path) ? (['Account'] as const) : []),
    'RequestId',
    ...(isRead(path, method) ? (['IfNoneMatch'] as const) : []),
    ...(isChange && memberPathOf(path) !== undefined ? (['IfMatch'] as const) : []),
    ...(isChange ? (['IdempotencyKey'] as const) : []),
  ]
}

function successHeaders(path: string, method: string, refusals: readonly RefusalName[]): readonly HeaderName[] {
  if (path === '/token') return [REQUEST_ID, 'Cache-Control', 'Pragma', 'X-Oauth-Scopes']
  if (!path.startsWith('/1.0/')) return [REQUEST_ID, 'Cache-Control']
  return [
    REQUEST_ID,
    ...COMMON,
    ...(isRead(path, method) ? (['ETag'] as const) : []),
    ...(method === 'get' ? [] : (['Idempotent-Replayed', 'Idempotent-Omitted'] as const)),
    ...(refusals.includes('too_many_requests') ? RATE_LIMIT : []),
  ]
}

function errorStatuses(path: string, method: string, refusals: readonly RefusalName[]): readonly number[] {
  const special = refusals.map(statusOf)
  const statuses =
    path === '/token'
      ? [400, 401, 429, 500, 503]
      : path.startsWith('/1.0/')
        ? [
            ...[400, 401, 403, 422, 500, 503],
            ...(takesAccount(path) || path.includes('{') ? [404] : []),
            ...(method === 'get' ? [] : [409, 413, 415]),
            ...(method === 'get' || memberPathOf(path) === undefined ? [] : [412]),
          ]
        : [400, 404, 500, 503]
  return [...new Set([...statuses, ...special])].sort((a, b) => a - b)
}

/** A body whose fields are all optional may be empty. */
function completeBody(body: RequestBody, documented: Schema | undefined, schemas: Components): object {
  const isRequired =
    documented !== undefined || Object.values(body.content).some(({ schema }) => schema['required'] !== undefined)
  return { required: isRequired, content: mapSchemas(body, (schema) => schemas.refer(documented ?? schema)).content }
}

function withComponents(response: Response, schemas: Components): Response {
  return mapSchemas(response, (schema) => schemas.refer(schema))
}

function mapSchemas<T extends Response>(response: T, change: (schema: Schema) => Schema): T {
  if (response.content === undefined) return response
  const content = Object.entries(response.content).map(([type, { schema, ...media }]) => [
    type,
    { schema: change(schema), ...media },
  ])
  return { ...response, content: Object.fromEntries(content) as Content }
}
