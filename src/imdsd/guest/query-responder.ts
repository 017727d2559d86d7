/**
 * Responds to a request with a query: a subtree (`recursive`, contract H2) costs the guest's share by its size, and a
 * request that waits for a change (`wait`, H1) is held until its value changes.
 */
import type { Log } from '../../runtime/log-codes.ts'
import type { Target } from '../../metadata/target.ts'
import type { ConnectionGuard } from './connection-guard.ts'
import {
  ADDRESS_LOST,
  refused,
  type Exchange,
  type PendingRequest,
  type ServedRequest,
  type Steps,
} from './exchange.ts'
import type { HeldRequests, Wake } from './held-requests.ts'
import { guestOf, idOf, type Guest } from './identify.ts'
import { awaitAndRecheck } from './pending.ts'

/** How many paths of a subtree cost as much as a request. */
const PATHS_PER_REQUEST = 16

type QueryTarget = Target & { readonly query: NonNullable<Target['query']> }

interface QueryResponderParts {
  readonly steps: Steps
  readonly guard: ConnectionGuard
  readonly held: HeldRequests
  readonly log: Log
}

/** Responds to a request with a query, or holds it. */
export type RespondToQuery = (exchange: Exchange, target: QueryTarget, result: ServedRequest) => void

export function buildQueryResponder({ steps, guard, held, log }: QueryResponderParts): RespondToQuery {
  /** Runs the steps of a held request again. False: its value is the same, and it stays held. */
  const check = (before: Exchange, guest: Guest, etag: string, wake: Wake): boolean => {
    const found = steps.findAgain(before)
    const exchange = { ...before, found, startedMs: performance.now() }
    if (wake === 'stop') exchange.response.shouldKeepAlive = false
    const current = guestOf(found)
    if (current?.instance.id !== guest.instance.id) {
      steps.send(exchange, undefined, ADDRESS_LOST)
      return true
    }
    const { target, result } = steps.resolveAgain(exchange)
    if (result.kind === 'pending') return checkPending(exchange, target, result, wake)
    if (result.kind === 'served' && target !== undefined && wake === 'changed') {
      if (!current.has(target.version, target.path))
        steps.send(exchange, target, refused('not-found', result.route, result.ttlSeconds))
      else if (result.content.etag === etag) return false
      else steps.send(exchange, target, result)
    } else steps.send(exchange, target, result)
    return true
  }
  /** Like `check`, for a value that is being made after the change: it is checked once it is made. */
  const checkPending = (
    exchange: Exchange,
    target: Target | undefined,
    pending: PendingRequest,
    wake: Wake,
  ): boolean => {
    if (wake === 'changed') {
      const recheck = () => held.check(idOf(exchange.found) ?? '')
      pending.content.then(recheck, () => undefined) // after a failure, the next change or the timeout checks again
      return false
    }
    void awaitAndRecheck(exchange, pending, steps, log).then((result) => steps.send(exchange, target, result))
    return true
  }
  return (exchange, target, result) => {
    const guest = guestOf(exchange.found)!
    const { query } = target
    if (query.recursive) guard.charge(exchange, guest.paths / PATHS_PER_REQUEST)
    const { etag } = result.content
    const { lastEtag = etag?.slice(1, -1), timeoutMs = 0 } = query.wait ?? {}
    if (query.wait === undefined || etag === undefined || etag !== `"${lastEtag ?? ''}"` || held.isStopping)
      steps.send(exchange, target, result)
    else if (!held.mayHold(guest.instance.id))
      steps.send(exchange, target, refused('too-many-waiting', result.route, result.ttlSeconds))
    else {
      // one second more than is left of the token, so that the timeout finds it expired
      const leftMs = result.ttlSeconds === undefined ? Infinity : (result.ttlSeconds + 1) * 1000
      held.hold(guest.instance.id, exchange, Math.min(timeoutMs, leftMs), (wake) => check(exchange, guest, etag, wake))
      // its value was made before a change, such as a signature that took a while
      if (guestOf(steps.findAgain(exchange)) !== guest) held.check(guest.instance.id)
    }
  }
}
