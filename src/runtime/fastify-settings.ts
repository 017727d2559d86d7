/** Settings that our Fastify servers share. */

/** No route has a schema. Without this Fastify loads its own compilers, which takes 20 ms of every start, and memory. */
export const NO_SCHEMA_COMPILERS = { compilersFactory: { buildValidator: refuse, buildSerializer: refuse } }

function refuse(): never {
  throw new Error('no route has a schema')
}
