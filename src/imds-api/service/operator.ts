/** The operators' listener of imds-api: the status page at /, /metrics, /livez, /readyz and /conditions. */
import { fastify, type FastifyInstance } from 'fastify'
import type { Registry } from 'prom-client'
import { guardAccess } from '../../pages/access.ts'
import { sendPage } from '../../pages/send.ts'
import type { Question } from '../../pages/search.ts'
import type { FoundCondition } from '../../conditions/condition.ts'
import { NO_SCHEMA_COMPILERS, refuseOtherVersionsOfOperators } from '../../runtime/http.ts'
import { VERSION } from '../../runtime/installation.ts'
import type { Database } from '../database/open.ts'
import { findWithoutRegion, type Publishing } from '../conditions/table.ts'

export interface ApiOperatorParts {
  readonly database: Pick<Database, 'pool'>
  readonly publisher: Publishing
  /** True once this process has begun to stop. */
  readonly isStopping: () => boolean
  /** The status page; undefined: too many of its readers wait already. */
  readonly page: (question: Question) => Promise<string | undefined>
  readonly conditions: () => Promise<readonly FoundCondition[]>
  readonly registry: Registry
  /** Undefined: the listener needs none. */
  readonly password: string | undefined
  /** Milliseconds of a monotonic clock. */
  readonly now: () => number
}

/**
 * Builds the server. /readyz is 503 while a condition makes imds-api not ready, and once the process stops; it names a
 * store that cannot be used or has lost changes, without which requests are served all the same.
 */
export function buildOperatorServer(parts: ApiOperatorParts): FastifyInstance {
  const { database, publisher, isStopping, page, conditions, registry, password, now } = parts
  const server = fastify({ logger: false, schemaController: NO_SCHEMA_COMPILERS })
  refuseOtherVersionsOfOperators(server.server)
  guardAccess(server, { password, probes: ['/livez', '/readyz'], counts: ['/metrics'], now })
  server.get('/', (request, reply) => sendPage(request, reply, page))
  server.get('/livez', () => ({ live: true }))
  server.get('/readyz', async (_request, reply) => {
    const databaseProblem = await database.pool.query('select 1').then(
      () => undefined,
      (error: unknown) => (error as Error).message,
    )
    const unready = findWithoutRegion(databaseProblem, publisher).filter((one) => one.unready)
    const ready = unready.length === 0 && !isStopping()
    return reply.code(ready ? 200 : 503).send({
      ready,
      stopping: isStopping(),
      database: unready.length === 0 ? 'reachable' : unready.map(({ text }) => text).join('; '),
      publishing: publisher.problem?.reason ?? 'working',
      ...(publisher.isStoreBehind && { storeBehind: true }),
    })
  })
  server.get('/conditions', async (): Promise<ServiceConditions> => {
    return { version: VERSION, conditions: await conditions() }
  })
  server.get('/metrics', async (_request, reply) => reply.type(registry.contentType).send(await registry.metrics()))
  return server
}

export interface ServiceConditions {
  readonly version: string
  readonly conditions: readonly FoundCondition[]
}
