/**
 * `Prefer: handling=strict` (RFC 7240): unknown parameters are refused and named. Without it they are ignored, as the
 * API demands, except in the query of a list: there, a misspelled filter would return all rows.
 */
import type { FastifyRequest, onRequestHookHandler, preHandlerHookHandler } from 'fastify'
import type { JsonSchema } from '../model/json-schema.ts'
import { fieldFault, type Detail, Refusal } from '../model/refusal.ts'
import { takesAccount } from './openapi.ts'

/** Parameters that published clients send with every list. */
const IGNORED = ['account_id', 'nested']

declare module 'fastify' {
  interface FastifyRequest {
    /** True if the request has the preference, and its route respects it. */
    isStrict: boolean
  }
}

export const readPreference: onRequestHookHandler = (request, reply, done) => {
  request.isStrict = prefersStrict(String(request.headers['prefer'] ?? ''))
  if (request.isStrict) void reply.header('Preference-Applied', 'handling=strict')
  done()
}

/** Refuses the unknown parameters of a request that is strict, or for a list. */
export const refuseUnknownParameters: preHandlerHookHandler = (request, _reply, done) => {
  const faults = unknownParameters(request)
  if (faults.length === 0) done()
  else done(new Refusal(request.isStrict ? 'unprocessable_entity' : 'bad_request', faults))
}

/** True for a header Prefer with `handling=strict`. If a preference is repeated, the first one counts (RFC 7240, 2). */
export function prefersStrict(header: string): boolean {
  const [, value] = /(?:^|,)\s*handling\s*=\s*"?([^\s",;]*)/i.exec(header) ?? []
  return value?.toLowerCase() === 'strict'
}

/** The faults of a request that is strict, or for a list: its unknown parameters, first those of the query. */
function unknownParameters({ isStrict, query, body, routeOptions: { schema, url = '' } }: FastifyRequest): Detail[] {
  const unknown = (where: string) => (name: string) =>
    fieldFault(name, 'unknown_parameter', `${name} is not a parameter of the ${where}`)
  const { properties = {}, patternProperties = {}, additionalProperties } = (schema?.querystring ?? {}) as JsonSchema
  // the query of a list has no additional properties
  if (!(isStrict || additionalProperties === false) || schema?.hide === true) return []
  // an object has a parameter for each of its fields, which a pattern names
  const names = Object.keys(properties).filter((name) => properties[name]!.type !== 'object')
  const known = [...names, ...(isStrict ? (takesAccount(url) ? ['account_id'] : []) : IGNORED)]
  const isKnown = (name: string) =>
    known.includes(name) || Object.keys(patternProperties).some((pattern) => new RegExp(pattern, 's').test(name))
  const inQuery = Object.keys(query as object)
    .filter((name) => !isKnown(name))
    .map(unknown('query'))
  if (!isStrict) return inQuery
  return [
    ...inQuery,
    ...(schema?.body === undefined ? Object.keys(body as object) : unknownNames(schema.body as JsonSchema, body)).map(
      unknown('body'),
    ),
  ]
}

/**
 * The places of names in a value that its schema does not have, such as `servers.0.colour`. An object whose schema has
 * no properties may have any.
 */
export function unknownNames({ properties = {}, items, anyOf }: JsonSchema, value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  if (anyOf !== undefined) {
    const ofType = anyOf.filter(
      ({ type }) => type === undefined || type === (Array.isArray(value) ? 'array' : 'object'),
    )
    return ofType.map((one) => unknownNames(one, value)).sort((a, b) => a.length - b.length)[0] ?? []
  }
  const below = (name: string, schema: JsonSchema, member: unknown) =>
    unknownNames(schema, member).map((inner) => `${name}.${inner}`)
  if (Array.isArray(value))
    return items === undefined ? [] : value.flatMap((element, i) => below(String(i), items, element))
  if (Object.keys(properties).length === 0) return []
  return Object.entries(value).flatMap(([name, member]) =>
    Object.hasOwn(properties, name) ? below(name, properties[name]!, member) : [name],
  )
}
