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
    buildSerializer: lazily(serializerCompiler()) as Compilers['buildSerializer'],
  }
}

/** The same factory, for schemas whose strings PostgreSQL can store. */
function checkingText(factory: Factory): Factory {
  return (...settings) => {
    const compile = factory(...settings) as (route: { readonly schema: object }) => Compiled
    return (route: { readonly schema: object }) => compile({ ...route, schema: withStorableText(route.schema) })
  }
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
