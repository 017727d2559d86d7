/**
 * The share of a caller in the connections for requests. All API clients of an account have one share, and each user
 * has one. A read holds a turn until its response is sent, or begins to be streamed (list-stream.ts). A change holds one only while its right is checked, since it
 * then waits in the queue of its account (changes/account-changes.ts).
 */
import type { FastifyRequest } from 'fastify'
import { READS } from './audit.ts'
import type { FairQueue, FairQueueLimits, Leave } from './fair-queue.ts'
import { refuse } from '../model/refusal.ts'
import type { ApiServer } from './server.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Ends the turn of the request in the share of its caller. */
    leaveShare: Leave | undefined
    /** Waits for another turn, for a part of a response that has begun. */
    enterShare: () => Promise<Leave>
  }
}

/**
 * A quarter of the connections for requests, so that four callers with endless requests leave the others theirs in
 * turn.
 */
export const READ_SHARE: FairQueueLimits = { atOnce: 4, waitingMax: 1_024, timeoutMs: 10_000 }

/** Adds the hooks. They need `request.identity`, and come before what queries the database for a request. */
export function addReadShare(server: ApiServer, queue: FairQueue): void {
  server.decorateRequest('leaveShare', undefined)
  server.decorateRequest('enterShare', async function (this: FastifyRequest) {
    const { identity, method } = this
    const key = identity.kind === 'user' ? identity.userId : identity.accountId
    const leave = await queue.enter({ key, caller: identity.clientId, cost: 1, isUrgent: !READS.includes(method) })
    if (leave === undefined)
      throw refuse('service_unavailable', 'other requests of this account or user take too long: try again')
    return leave
  })
  server.addHook('onRequest', async (request) => {
    request.leaveShare = await request.enterShare()
  })
  server.addHook('preParsing', async (request) => {
    // follows the checks of every route
    if (!READS.includes(request.method)) request.leaveShare?.()
    return Promise.resolve(undefined)
  })
  server.addHook('onSend', (request, _reply, _payload, done) => {
    // runs for every response, also if its client has gone
    request.leaveShare?.()
    done()
  })
}
