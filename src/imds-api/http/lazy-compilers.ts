/**
 * Fastify's compilers of schemas, which compile each schema at its first use instead of at the start, which makes the
 * start faster. A schema that cannot be compiled fails at the first request of its route, so a test has to send a
 * request to each route.
 */
import ajvCompiler from '@fastify/ajv-compiler'
import serializerCompiler from '@fastify/fast-json-stringify-compiler'
import type { FastifyServerOptions } from 'fastify'
import { FORMATS } from '../model/formats.ts'
import { STORABLE_KEYWORD, withStorableText } from '../model/storable-text.ts'
import type { FormFault } from './faults.ts'

type Compilers = Required<NonNullable<NonNullable<FastifyServerOptions['schemaController']>['compilersFactory']>>
/** What both kinds of compilers make. Fastify reads `errors` after a validation. */
type Compiled = ((data: never) => unknown) & { errors?: unknown }
type Compile = (route: never) => Compiled
type Factory = (...settings: never[]) => Compile

/**
 * Options of Ajv. Of the keywords that JSON Schema does not have, `hint` is of the record's schema (metadata/schema.ts),
 * parts of which the schemas of requests use.
 */
export const AJV_OPTIONS = {
  allErrors: true,
  verbose: true,
  coerceTypes: false,
  removeAdditional: false,
  useDefaults: false,
  keywords: ['hint', STORABLE_KEYWORD],
  formats: Object.fromEntries(Object.entries(FORMATS).map(([name, { isValid }]) => [name, isValid])),
}

/** Strings must be such that PostgreSQL can store. */
function buildValidator(): Factory {
  return changing(lazily(ajvCompiler() as Factory), withStorableText)
}

/** Builds the check of a value that is not of a request: it returns the faults. */
export function buildCheck(schema: object): (value: unknown) => readonly FormFault[] {
  const build = buildValidator() as (...settings: unknown[]) => (route: object) => Compiled
  const validate = build({}, { customOptions: AJV_OPTIONS })({ schema })
  return (value) => (validate(value as never) === true ? [] : (validate.errors as readonly FormFault[]))
}

/** For `schemaController.compilersFactory` of one server, whose Ajv has AJV_OPTIONS. */
export function buildLazyCompilers(): Compilers {
  return {
    buildValidator: buildValidator() as Compilers['buildValidator'],
    buildSerializer: lazily(changing(serializerCompiler() as Factory, withNullable)) as Compilers['buildSerializer'],
  }
}

/** The same factory, for schemas that are changed first. */
function changing(factory: Factory, change: (schema: object) => unknown): Factory {
  return (...settings) => {
    const compile = factory(...settings) as (route: { readonly schema: unknown }) => Compiled
    return (route: { readonly schema: object }) => compile({ ...route, schema: change(route.schema) })
  }
}

/**
 * The same schema, with `nullable` in the place of a union with null. For a union, the serializer compiles Ajv's checks
 * of all that it contains, which takes most of its time, and runs them for each response.
 */
export function withNullable(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(withNullable)
  if (typeof schema !== 'object' || schema === null) return schema
  const { anyOf, ...others } = Object.fromEntries(
    Object.entries(schema).map(([key, value]) => [key, withNullable(value)] as const),
  ) as { readonly anyOf?: readonly { readonly type?: unknown }[] }
  if (anyOf === undefined) return others
  const [first, ...alternatives] = anyOf.filter(({ type }) => type !== 'null')
  if (first === undefined || alternatives.length > 0 || anyOf.length !== 2) return { ...others, anyOf }
  return { ...first, ...others, nullable: true }
}

/** The same factory, but what it makes is compiled at its first call. */
export function lazily(factory: Factory): Factory {
  return (...settings) => {
    let compile: Compile | undefined
    return (route) => {
      let compiled: Compiled | undefined
      const use: Compiled = (data) => {
        compile ??= factory(...settings)
        compiled ??= compile(route)
        const result = compiled(data)
        use.errors = compiled.errors
        return result
      }
      return use
    }
  }
}
