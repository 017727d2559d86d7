/** Requests made from the OpenAPI document: an operation, its parameters, and a body that its schema allows. */
import { basic } from '../../support/programs/api.ts'
import { resolveReferences } from '../../support/openapi-document.ts'
import type { ApiHost } from './host.ts'
import type { Identity } from './population.ts'
import { TOKEN_APPLICATION, TOKEN_CLIENT } from './region.ts'
import type { ApiRequest } from './send.ts'
import { anId, KINDS, valueOf, type Schema, type Source } from './values.ts'

interface Parameter {
  readonly in: 'path' | 'query' | 'header'
  readonly name: string
  readonly required?: boolean
  readonly schema: Schema
}

/** An operation of the document. */
export interface Operation {
  readonly method: string
  readonly path: string
  readonly parameters: readonly Parameter[]
  /** The schema of its body for each media type; undefined: it has none. */
  readonly bodies: Readonly<Record<string, Schema>> | undefined
}

/** The operations of the document. */
export function operationsOf({ document }: Pick<ApiHost, 'document'>): readonly Operation[] {
  const { paths } = resolveReferences(document, document) as {
    paths: Record<
      string,
      Record<string, { parameters?: Parameter[]; requestBody?: { content: Record<string, { schema: Schema }> } }>
    >
  }
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { parameters = [], requestBody }]) => ({
      ...{ method: method.toUpperCase(), path, parameters },
      bodies:
        requestBody &&
        Object.fromEntries(Object.entries(requestBody.content).map(([type, { schema }]) => [type, schema])),
    })),
  )
}

/** A valid request of an operation. */
export function requestOf(operation: Operation, { token, isUser, account }: Identity, source: Source): ApiRequest {
  const { dice } = source
  const { method, path, parameters, bodies } = operation
  const isToken = path === '/token'
  const query = parameters.flatMap((parameter) => {
    const { name, required = false, schema } = parameter
    if (parameter.in !== 'query') return []
    if (name === 'account_id') {
      const isNamed = dice.chance(isUser ? 0.95 : 0.05)
      return isNamed ? [['account_id', dice.chance(0.95) ? (account?.id ?? '') : anId(source, ['acc'])]] : []
    }
    if (!required && !dice.chance(0.3)) return []
    if (name === 'tags')
      return [[dice.pick(['tag.Role', 'tags[Role]']), String(valueOf({ type: 'string' }, name, source))]]
    return [[name, String(valueOf(schema, name, source))]]
  })
  const [type, schema] = bodies === undefined ? [] : dice.pick(Object.entries(bodies))
  const value = schema && valueOf(schema, '', source)
  return {
    method: method === 'GET' && dice.chance(0.03) ? 'HEAD' : method,
    target:
      path.replace(
        /\/(\w+)\/\{\w+\}/g,
        (_all, collection: string) => `/${collection}/${anId(source, kindsOf(collection))}`,
      ) + (query.length === 0 ? '' : `?${new URLSearchParams(query).toString()}`),
    headers: {
      ...headersOf(operation, source),
      ...(token !== undefined && !isToken && { Authorization: `Bearer ${token}` }),
      ...(isToken && tokenHeaders(source)),
      ...(type !== undefined && { 'Content-Type': type }),
    },
    ...(value !== undefined && {
      body:
        type === 'application/json' ? jsonOf(value) : new URLSearchParams(value as Record<string, string>).toString(),
    }),
  }
}

/** JSON as bytes (dice.ts). */
export function jsonOf(value: unknown): string {
  return Buffer.from(JSON.stringify(value)).toString('latin1')
}

function kindsOf(collection: string): readonly string[] {
  const kinds = KINDS[collection] ?? (collection === 'oidc' ? ['acc'] : undefined)
  if (kinds === undefined) throw new Error(`KINDS has no prefix of the ids of ${collection}`)
  return kinds
}

/** Headers that most requests leave out. */
function headersOf({ method, path, parameters }: Operation, { dice, lane }: Source): Record<string, string> {
  const values: Readonly<Record<string, readonly string[]>> = {
    'Idempotency-Key': [`"${method} ${path}"`, `"${dice.below(1_000)}"`],
    'If-Match': ['*', '"Kk3UVqg5rhd6I1w0UEzXnA"', ...lane.tags],
    'If-None-Match': ['*', '"Kk3UVqg5rhd6I1w0UEzXnA"', ...lane.tags],
    'X-Request-Id': ['job-42'],
  }
  const given = parameters.filter((parameter) => parameter.in === 'header' && dice.chance(0.1))
  return Object.fromEntries(given.map(({ name }) => [name, dice.pick(values[name] ?? ['123456'])]))
}

/** The credentials of a token request, from one of many addresses, since failures of one are limited. */
function tokenHeaders({ dice }: Source): Record<string, string> {
  const id = dice.pick([TOKEN_CLIENT, TOKEN_APPLICATION, 'cli-zzzz9'])
  return {
    Authorization: dice.chance(0.9) ? basic(id) : basic(id, 'wrong'),
    'X-Forwarded-For': `192.0.2.${dice.below(256)}`,
  }
}
