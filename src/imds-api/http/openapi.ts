/**
 * Completes the OpenAPI document that the routes have made: components for what operations share, and the parameters,
 * headers and errors that operations have by their method and path.
 */
import { STATUS_CODES } from 'node:http'
import { memberPathOf, showsMember } from './entity-tags.ts'
import { Components, type Schema } from './openapi-schemas.ts'
import { HEADERS, PARAMETERS, RESPONSES, type HeaderName, type ParameterName } from './openapi-shared.ts'

declare module 'fastify' {
  /** What the document says of a route, and its path and method do not. */
  interface FastifySchema {
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
  readonly requestBody?: Body
  readonly responses?: Readonly<Record<string, Body>>
  readonly 'x-headers'?: readonly HeaderName[]
  readonly 'x-body'?: Schema
}
interface Parameter {
  readonly name: string
  readonly in: string
  readonly schema: Schema
}
interface Body {
  readonly description?: string
  readonly content?: Readonly<Record<string, { readonly schema: Schema }>>
}

/** The paths whose requests need no account. */
const WITHOUT_ACCOUNT = '/1.0/user/collaborations'
const ERROR = { $ref: '#/components/responses/Error' }

/** Completes the document that the routes have made. */
export function completeOpenApi<T extends object>(made: T): T {
  const { paths = {}, components } = made as Document
  const schemas = new Components()
  const completed = mapEach(paths, (operations, path) =>
    mapEach(operations, (operation, method) => completeOperation(path, method, operation, schemas)),
  )
  const responses = mapEach<Body>(RESPONSES, (response) => withComponents(response, schemas))
  return {
    ...made,
    paths: completed,
    components: { ...components, schemas: schemas.schemas, responses, parameters: PARAMETERS, headers: HEADERS },
  }
}

function mapEach<V>(values: Readonly<Record<string, V>>, change: (value: V, name: string) => object): object {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, change(value, name)]))
}

function completeOperation(
  path: string,
  method: string,
  { 'x-headers': headers = [], 'x-body': body, ...operation }: Operation,
  schemas: Components,
): object {
  const { parameters: given = [], requestBody, responses = {} } = operation
  const isRead = method === 'get' && showsMember(path) // it has an entity tag
  const names = [...(isRead ? (['ETag'] as const) : []), ...headers]
  const references = names.map((name) => [name, { $ref: `#/components/headers/${name}` }] as const)
  const success = Object.entries(responses).map(([status, response]) => [
    status,
    {
      ...withComponents(response, schemas),
      description: STATUS_CODES[status],
      ...(references.length > 0 && { headers: Object.fromEntries(references) }),
    },
  ])
  const parameters = [
    ...given.map(asDeepObject),
    ...parametersOf(path, method, isRead).map((name) => ({ $ref: `#/components/parameters/${name}` })),
  ]
  return {
    ...operation,
    ...(parameters.length > 0 && { parameters }),
    ...(requestBody !== undefined && { requestBody: completeBody(requestBody, body, schemas) }),
    responses: {
      ...(Object.fromEntries(success) as object),
      ...(isRead && { 304: { $ref: '#/components/responses/NotModified' } }),
      ...{ '4XX': ERROR, '5XX': ERROR },
    },
  }
}

/** An object in a query has a parameter for each of its fields, such as `tags[Role]`. */
function asDeepObject(parameter: Parameter): object {
  const isObject = parameter.in === 'query' && parameter.schema['type'] === 'object'
  return isObject ? { ...parameter, style: 'deepObject', explode: true } : parameter
}

function parametersOf(path: string, method: string, isRead: boolean): readonly ParameterName[] {
  if (!path.startsWith('/1.0/')) return []
  const isChange = method !== 'get'
  return [
    ...(path.startsWith(WITHOUT_ACCOUNT) ? [] : (['Account'] as const)),
    ...(isRead ? (['IfNoneMatch'] as const) : []),
    ...(isChange && memberPathOf(path) !== undefined ? (['IfMatch'] as const) : []),
    ...(isChange ? (['IdempotencyKey'] as const) : []),
  ]
}

/** A body whose fields are all optional may be empty. */
function completeBody(body: Body, documented: Schema | undefined, schemas: Components): object {
  const required =
    documented !== undefined || Object.values(body.content ?? {}).some(({ schema }) => schema['required'] !== undefined)
  return { required, ...withComponents(body, schemas, documented) }
}

/** `documented`: in place of the schema of each content. */
function withComponents({ content, ...others }: Body, schemas: Components, documented?: Schema): Body {
  if (content === undefined) return others
  const referring = Object.entries(content).map(([type, { schema, ...media }]) => [
    type,
    { schema: schemas.refer(documented ?? schema), ...media },
  ])
  return { ...others, content: Object.fromEntries(referring) as NonNullable<Body['content']> }
}
