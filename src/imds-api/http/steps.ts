/**
 * The steps of a request, in order: the only place that registers them for the API. Each is a hook of Fastify, which
 * runs all `onRequest`, then all `preParsing`, and so on. Within a phase, hooks of the server run before those of a
 * plugin.
 *
 * Before the steps, connections.ts bounds the connections and begins one request of each, and unreadable.ts refuses
 * what is not HTTP. The first step finds the address of the client, and addresses take turns. A step that refuses a
 * request throws a Refusal: server.ts makes the response, and the steps from `onSend` on follow.
 *
 * Requests to other paths than /1.0 have the steps of the server, and those of their plugin: auth/token-endpoint.ts,
 * and docs-pages.ts. The compute interface is another server with steps of its own (compute/server.ts).
 */
import type { FastifyInstance, FastifyReply, FastifyRequest, onResponseHookHandler } from 'fastify'
import { LoopTurns } from '../../limits/loop-turns.ts'
import { sourceOf } from '../../metadata/address.ts'
import { noteRespondedId, type buildAudit } from './audit.ts'
import { BODY_BUDGET_LIMITS, BodyBudget } from './body-budget.ts'
import { addBodyParser, dropMalformedType, releaseBody, setMissingBody } from './body.ts'
import { addEntityTag } from './entity-tags.ts'
import { checkHead, forbidCaching } from './head.ts'
import { readIdempotencyKey } from './idempotency.ts'
import { leaveShare, leaveShareOfChange } from './read-share.ts'

type Step = (request: FastifyRequest, reply: FastifyReply) => Promise<void>
/** The steps of the API that need more than the request. */
export interface ApiSteps {
  readonly authenticate: Step
  readonly enterShare: Step
  readonly chooseAccount: Step
  readonly audit: ReturnType<typeof buildAudit>
}

export function addServerSteps(
  server: FastifyInstance,
  addressOf: (request: Pick<FastifyRequest['raw'], 'socket' | 'headers'>) => string,
): void {
  server.decorateRequest('address', '')
  server.decorateRequest('owner', '')
  const turns = new LoopTurns()
  server.addHook('onRequest', (request, reply, done) => {
    request.address = addressOf(request.raw)
    request.owner = sourceOf(request.address)
    turns.enter(request.owner, () => {
      if (request.raw.socket.destroyed) reply.hijack()
      else done()
    })
  })
  server.addHook('onRequest', checkHead)
  server.addHook('onRequest', dropMalformedType)
  addBodyParser(server, new BodyBudget(BODY_BUDGET_LIMITS, () => performance.now()))
  server.addHook('preValidation', setMissingBody)
  server.addHook('preSerialization', noteRespondedId)
  server.addHook('onSend', releaseBody)
}

/** Adds the steps of the requests below /1.0. Call it before the routes are added. */
export function addApiSteps(api: FastifyInstance, steps: ApiSteps): void {
  api.decorateRequest('keyed', undefined)
  api.addHook('onRequest', forbidCaching)
  api.addHook('onRequest', steps.authenticate) // request.caller
  api.addHook('onRequest', readIdempotencyKey) // request.keyed
  api.addHook('onRequest', steps.enterShare) // request.share
  api.addHook('onRequest', steps.chooseAccount) // request.accounts
  api.addHook('preParsing', leaveShareOfChange)
  // body.ts parses the body (request.heldBody), and Fastify validates it
  // the handler: a change waits for its turn, and its token, access and condition are checked in its transaction
  api.addHook('onSend', leaveShare)
  api.addHook('onSend', steps.audit)
  api.addHook('onRoute', addEntityTag) // the last onSend, of the GET of a member
}

/** Adds the last step of all requests to a server. */
export function addResponseCount(server: FastifyInstance, count: onResponseHookHandler): void {
  server.addHook('onResponse', count)
}
