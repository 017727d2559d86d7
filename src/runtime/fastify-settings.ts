/** Settings that the Fastify servers of the daemon share. */

/**
 * For servers whose routes have no schemas: keeps Fastify from loading its schema compilers, which would take memory
 * and 20 ms of every start.
 */
export const NO_SCHEMA_COMPILERS = {
  compilersFactory: { buildValidator: failToCompile, buildSerializer: failToCompile },
}

function failToCompile(): never {
  throw new Error('no route has a schema')
}
