/**
 * The compute interface (docs/compute.md). Hypervisors fetch the actions of their servers, report the outcomes, begin
 * and end live migrations, and seal user-data.
 */
import type { FastifyRequest } from 'fastify'
import { sql } from 'kysely'
import Type, { type Static } from 'typebox'
import type { Log } from '../../runtime/log-codes.ts'
import { buildAudit, type WriteAudit } from '../http/audit.ts'
import type { AccountChanges } from '../changes/account-changes.ts'
import { giveOutActions, reportOutcome } from '../changes/action-queue.ts'
import {
  beginLiveMigration,
  cancelLiveMigration,
  endLiveMigration,
  findPlacement,
  sealUserData,
  type Placement,
} from '../changes/server-placement.ts'
import type { ActionOutcome } from '../model/server-actions.ts'
import { formatOptionalTime } from '../model/time.ts'
import { notFound } from '../model/refusal.ts'
import { buildServer, type ApiServer, type ApiServerSettings } from '../http/server.ts'
import { mayActFor, namesOfCaller } from './caller.ts'
import type { Waiters } from '../../limits/waiters.ts'
import type { Db } from '../database/transaction.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /**
     * The first name of the client certificate. It is read at the start of the request, because a closed connection has
     * no certificate.
     */
    callerName: string | undefined
  }
}

/**
 * Dependencies of the compute interface. `retrySeconds`: after this time without an outcome, an action is given out
 * again. `pollMs`: how often a waiting request looks for actions whose retry is due.
 */
export interface ComputeParts {
  readonly db: Db
  readonly accounts: AccountChanges
  readonly waiters: Waiters
  readonly retrySeconds: number
  readonly pollMs: number
  readonly count: (outcome: ActionOutcome) => void
  readonly onUnreadable: ApiServerSettings['onUnreadable']
  readonly onShed: ApiServerSettings['onShed']
  readonly databaseReport: ApiServerSettings['databaseReport']
  readonly audit: WriteAudit
  readonly log: Log
}

const MAX_WAIT_SECONDS = 60

/** As formatTime. */
const formatted = (time: string) => sql`to_char(${sql.ref(time)} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')`
/**
 * An action, with its server as a hypervisor needs it (docs/compute.md). `image`: the snapshot that is made or deleted.
 */
const ACTION = sql<object>`json_build_object(
  'id', action.id, 'action', action.kind, 'requested_at', ${formatted('action.requested_at')}, 'image', action.image_id,
  'console', case when action.console_token is not null and servers.console_token_expires is not null then
    json_build_object('token', action.console_token, 'expires', ${formatted('servers.console_token_expires')}) end,
  'server', json_build_object(
    'id', servers.id, 'revision', servers.revision, 'image', servers.image_id,
    'server_type', json_build_object('id', server_types.id, 'handle', handle, 'cores', cores, 'ram', ram,
      'disk_size', disk_size),
    'disk_encrypted', disk_encrypted, 'compatibility_mode', compatibility_mode,
    'interfaces', coalesce((
      select json_agg(json_build_object('id', id, 'mac_address', mac_address, 'ipv4_address', ipv4_address,
        'prefix_length', ipv4_prefix_length, 'ipv6_address', ipv6_address, 'ipv6_prefix', ipv6_prefix)
        order by created_at, id)
      from interfaces where interfaces.server_id = servers.id), '[]')))`
const Report = Type.Object({
  outcome: Type.Enum(['succeeded', 'failed']),
  fault: Type.Optional(Type.String({ maxLength: 1000 })),
})
const OfHypervisor = Type.Object({ hypervisor: Type.String() })
const OfServer = Type.Object({ id: Type.String() })

/** Builds the server. Closing it ends the requests that wait. */
export function buildComputeServer(parts: ComputeParts, tls: ApiServerSettings['tls']): ApiServer {
  const { waiters, onUnreadable, onShed, databaseReport, audit, log } = parts
  const server = buildServer({ tls, trustedProxies: [], onUnreadable, onShed, databaseReport, log })
  server.addHook('preClose', (done) => {
    waiters.close()
    done()
  })
  server.decorateRequest('callerName', undefined)
  server.addHook('onRequest', (request, _reply, done) => {
    request.callerName = namesOfCaller(request.raw.socket)[0]
    done()
  })
  server.addHook(
    'onSend',
    buildAudit(audit, ({ params, callerName }) => {
      const { hypervisor = callerName, action } = params as { readonly hypervisor?: string; readonly action?: string }
      return { hypervisor, action }
    }),
  )
  addActionRoutes(server, parts)
  addPlacementRoutes(server, parts)
  return server
}

function addActionRoutes(server: ApiServer, parts: ComputeParts): void {
  const { db, accounts, waiters, retrySeconds, pollMs, count, log } = parts
  const checkHypervisor = async (request: FastifyRequest): Promise<void> => {
    const { hypervisor } = request.params as Static<typeof OfHypervisor>
    const isKnown =
      mayActFor(request.raw.socket, hypervisor) &&
      (await db.selectFrom('hypervisors').select('name').where('name', '=', hypervisor).executeTakeFirst()) !==
        undefined
    if (!isKnown) throw notFound(`the hypervisor ${hypervisor}`)
  }

  server.get(
    '/hypervisors/:hypervisor/actions',
    {
      preHandler: checkHypervisor,
      exposeHeadRoute: false, // it would give out actions that nobody reads
      schema: {
        params: OfHypervisor,
        querystring: Type.Object({
          wait: Type.Optional(
            Type.String({ pattern: '^[0-9]{1,2}$', hint: 'a number of seconds of one or two digits' }),
          ),
        }),
      },
    },
    async ({ params: { hypervisor }, query, raw: { socket } }) => {
      const waitMs = Math.min(Number(query.wait ?? 0), MAX_WAIT_SECONDS) * 1000
      // An action that is sent on a closed connection would wait until it is given out again.
      const actions = await waiters.until(hypervisor, socket, { waitMs, pollMs }, async () => {
        const ready = await giveOutActions(db, hypervisor, retrySeconds, ACTION)
        return ready.length > 0 ? ready : undefined
      })
      return actions ?? []
    },
  )

  server.post(
    '/hypervisors/:hypervisor/actions/:action/outcome',
    {
      preHandler: checkHypervisor,
      schema: {
        params: Type.Object({
          ...OfHypervisor.properties,
          action: Type.String({ pattern: '^[0-9]{1,15}$', hint: 'the id of an action' }),
        }),
        body: Report,
      },
    },
    async ({ params, body, id: requestId }, reply) => {
      const finished = await reportOutcome(db, accounts, params.hypervisor, Number(params.action), {
        outcome: body.outcome,
        fault: body.fault ?? null,
      })
      const { id, serverId, kind, outcome, fault, isRepeated } = finished
      reply.respondedId = serverId
      reply.changedNothing = isRepeated
      if (!isRepeated) {
        count(outcome)
        if (outcome === 'failed')
          log.warn(
            {
              code: 'action-failed',
              action: kind,
              id,
              server: serverId,
              hypervisor: params.hypervisor,
              fault,
              request_id: requestId,
            },
            'the hypervisor could not carry out an action',
          )
      }
      return { id, server: serverId, action: kind, outcome, fault }
    },
  )
}

function addPlacementRoutes(server: ApiServer, parts: ComputeParts): void {
  const mayActForOf =
    ({ raw: { socket } }: Pick<FastifyRequest, 'raw'>) =>
    (hypervisor: string) =>
      mayActFor(socket, hypervisor)
  const schema = { params: OfServer }
  server.get('/servers/:id', { schema }, async (request) =>
    formatPlacement(await findPlacement(parts.db, request.params.id, mayActForOf(request))),
  )
  server.post(
    '/servers/:id/migration',
    { schema: { ...schema, body: Type.Object({ to: Type.String() }) } },
    async (request) =>
      formatPlacement(await beginLiveMigration(parts, request.params.id, request.body.to, mayActForOf(request))),
  )
  const change = (method: 'POST' | 'DELETE', url: string, apply: typeof sealUserData) => {
    server.route({
      method,
      url,
      schema,
      handler: async (request) => formatPlacement(await apply(parts, request.params.id, mayActForOf(request))),
    })
  }
  change('POST', '/servers/:id/migration/end', endLiveMigration)
  change('DELETE', '/servers/:id/migration', cancelLiveMigration)
  change('POST', '/servers/:id/seal', sealUserData)
}

function formatPlacement(placement: Placement) {
  return { ...placement, sealed_at: formatOptionalTime(placement.sealed_at) }
}
