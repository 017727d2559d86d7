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
    // strings that PostgreSQL can store
    buildValidator: changing(lazily(ajvCompiler() as Factory), withStorableText) as Compilers['buildValidator'],
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
