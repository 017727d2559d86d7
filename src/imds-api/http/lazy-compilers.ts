/**
 * Fastify's compilers of schemas, which compile each schema at its first use instead of at the start, which makes the
 * start faster. A schema that cannot be compiled fails at the first request of its route, so a test has to send a
 * request to each route.
 */
import ajvCompiler from '@fastify/ajv-compiler'
import serializerCompiler from '@fastify/fast-json-stringify-compiler'
import type { FastifyServerOptions } from 'fastify'
import { withStorableText } from '../model/storable-text.ts'

type Compilers = Required<NonNullable<NonNullable<FastifyServerOptions['schemaController']>['compilersFactory']>>
/** What both kinds of compilers make. Fastify reads `errors` after a validation. */
type Compiled = ((data: never) => unknown) & { errors?: unknown }
type Compile = (route: never) => Compiled
type Factory = (...settings: never[]) => Compile

/** For `schemaController.compilersFactory` of one server, whose Ajv has STORABLE_KEYWORD. */
export function buildLazyCompilers(): Compilers {
  return {
    buildValidator: checkingText(lazily(ajvCompiler() as Factory)) as Compilers['buildValidator'],
    buildSerializer: lazily(nullable(serializerCompiler() as Factory)) as Compilers['buildSerializer'],
  }
}

/** The same factory, for schemas whose strings PostgreSQL can store. */
function checkingText(factory: Factory): Factory {
  return (...settings) => {
    const compile = factory(...settings) as (route: { readonly schema: object }) => Compiled
    return (route: { readonly schema: object }) => compile({ ...route, schema: withStorableText(route.schema) })
  }
}

/** The same factory, for schemas without unions that have only null and one other schema. */
function nullable(factory: Factory): Factory {
  return (...settings) => {
    const compile = factory(...settings) as (route: { readonly schema: object }) => Compiled
    return (route: { readonly schema: object }) => compile({ ...route, schema: withNullable(route.schema) as object })
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
  const [one, ...more] = anyOf.filter(({ type }) => type !== 'null')
  if (one === undefined || more.length > 0 || anyOf.length !== 2) return { ...others, anyOf }
  return { ...one, ...others, nullable: true }
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
