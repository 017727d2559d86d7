/**
 * The share of an account in the connections for requests. A user has a share too: for the check of the access to an
 * account, and for resources of several accounts. A read holds a turn until its response is sent, or begins to
 * be streamed (list-stream.ts). A change holds a turn only while its right is checked; then it waits in the queue of
 * its account (changes/account-changes.ts).
 *
 * Under overload, reads that have waited long are refused, so that those which are answered have not. The bound is here
 * and not in @fastify/under-pressure: that refuses the requests of all callers, also of those who send few.
 */
import type { FastifyRequest, onSendHookHandler, preParsingHookHandler } from 'fastify'
import { SAFE_METHODS } from './audit.ts'
import { FairQueue, type FairQueueLimits, type Leave } from '../../limits/fair-queue.ts'
import { shed } from '../model/refusal.ts'

declare module 'fastify' {
  interface FastifyRequest {
    share: ShareTurn
  }
}

/**
 * The waiting reads of an account: as many as it may have waits (resources/kit/waits.ts), since each wait begins with
 * one.
 */
const MAX_WAITING = 1_024
const TIMEOUT_MS = 10_000
/** A read waits for the sum of both at most while there are more than can be answered. */
const [WAIT_MS, OVERLOAD_MS] = [100, 150]

/**
 * The shares, given the connections for requests. An account has a quarter of them for reads. All together have three
 * quarters, so that changes and token requests do not wait for reads. One of these quarters is reserved for accounts
 * with no read running.
 */
export function readShare(connections: number): Required<FairQueueLimits> {
  const part = (share: number) => Math.max(1, Math.floor(connections * share))
  return {
    atOnce: part(1 / 4),
    maxWaiting: MAX_WAITING,
    timeoutMs: TIMEOUT_MS,
    all: { atOnce: part(3 / 4), shared: part(1 / 2), waitMs: WAIT_MS, overloadMs: OVERLOAD_MS },
  }
}
/** Of the checks of the rights to changes, which are short. */
const CHECK_SHARE: FairQueueLimits = { atOnce: 1, maxWaiting: 1_024, timeoutMs: TIMEOUT_MS }

/** The turn of a request in the share of its owner. */
export class ShareTurn {
  readonly #request: FastifyRequest
  readonly #queue: FairQueue
  #owner: string | undefined
  #leave: Leave | undefined

  constructor(request: FastifyRequest, queue: FairQueue) {
    this.#request = request
    this.#queue = queue
  }

  /** Waits for a turn in the share of the owner, in place of the present turn. */
  async enter(): Promise<void> {
    const { owner } = this.#request
    if (this.#owner === owner) return
    this.leave()
    this.#owner = owner
    this.#leave = await this.#wait(false)
  }

  leave(): void {
    this.#leave?.()
  }

  /** Waits for another turn: for a part of a response that has begun, or a request that waits. */
  async again(): Promise<Leave> {
    return this.#wait(true)
  }

  async #wait(isBegun: boolean): Promise<Leave> {
    const { caller, method, owner } = this.#request
    const leave = await this.#queue.enter({ key: owner, caller: caller.id, isBegun })
    if (typeof leave === 'function') return leave
    throw shed(
      SAFE_METHODS.includes(method) ? 'reads' : 'changes',
      leave === 'all'
        ? 'imds-api has too many requests at present: try again'
        : 'other requests of this account or user take too long: try again',
    )
  }
}

/** Builds the hook that has a request wait for a turn in the share of its user, or of the account of its API client. */
export function buildEnterShare(connections: number): (request: FastifyRequest) => Promise<void> {
  const [reads, checks] = [new FairQueue(readShare(connections)), new FairQueue(CHECK_SHARE)]
  return async (request) => {
    request.share = new ShareTurn(request, SAFE_METHODS.includes(request.method) ? reads : checks)
    await request.share.enter()
  }
}

/** Ends the turn of a change: its right is checked. */
export const leaveShareOfChange: preParsingHookHandler = (request, _reply, payload, done) => {
  if (!SAFE_METHODS.includes(request.method)) request.share.leave()
  done(null, payload)
}

/** Ends the turn of a read, also if its client has gone. A request that was refused before has none. */
export const leaveShare: onSendHookHandler = (request, _reply, _payload, done) => {
  ;(request.share as ShareTurn | undefined)?.leave()
  done()
}
