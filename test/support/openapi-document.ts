/** The OpenAPI document of a server, as tests read it. */
import type { ApiServer } from '../../src/imds-api/http/server.ts'

/** The document with the components in the place of their references. `T`: the parts that a test reads. */
export async function readDocument<T>(server: ApiServer): Promise<T> {
  const document = (await server.inject('/1.0/openapi.json')).json<object>()
  return resolveReferences(document, document) as T
}

/** A part of a document, with the components in the place of their references. */
export function resolveReferences(document: object, value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) return value.map((element) => resolveReferences(document, element))
  const { $ref: reference } = value as { readonly $ref?: string }
  if (reference !== undefined) return resolveReferences(document, referred(document, reference))
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, resolveReferences(document, member)]))
}

/** What a reference such as `#/components/schemas/Server` is to. */
export function referred(document: object, reference: string): unknown {
  const names = reference.split('/').slice(1)
  return names.reduce<unknown>((value, name) => (value as Readonly<Record<string, unknown>>)[name], document)
}
