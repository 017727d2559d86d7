/** One request and its response, which each step of a request passes to the next. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Route, Target } from '../../metadata/target.ts'
import type { Content } from '../../metadata/content.ts'
import type { BodySource } from './body.ts'
import type { FoundGuest } from './identify.ts'
import type { RequestOutcome } from './meter.ts'
import type { RefusalReason } from './refusals.ts'

/** A request whose peer is identified. */
export interface Exchange {
  /** The network of the listener. */
  readonly network: string
  /** The address of the peer; empty if the connection is gone. */
  readonly address: string
  readonly found: FoundGuest
  readonly request: Pick<IncomingMessage, 'method' | 'headers' | 'rawHeaders' | 'httpVersion' | 'socket'>
  /** Where its body is read from. */
  readonly body: BodySource
  /** The target as it is in the request line. */
  readonly rawTarget: string
  readonly response: ServerResponse
  /** When the headers had been read, in ms of a monotonic clock. */
  readonly startedMs: number
}

/**
 * A request that gets no content. `ttlSeconds`: the remaining lifetime of its session token; undefined if it has no
 * token.
 */
export interface RefusedRequest {
  readonly kind: 'refused'
  readonly route: Route
  readonly refusal: RefusalReason
  readonly ttlSeconds: number | undefined
}

/** A request that gets content. */
export interface ServedRequest {
  readonly kind: 'served'
  readonly route: Route
  readonly content: Content
  readonly ttlSeconds: number | undefined
}

export type RequestResult = ServedRequest | RefusedRequest

/**
 * A request whose content is being made. `content` resolves with undefined if there is none. `cost`: the extra requests
 * that it costs the guest's share. `giveUp` ends its wait for a turn; call it when the content is no longer needed.
 */
export interface PendingRequest {
  readonly kind: 'pending'
  readonly route: Route
  readonly content: Promise<Content | undefined>
  readonly ttlSeconds: number | undefined
  readonly cost: number
  readonly giveUp?: () => void
}

export function refused(refusal: RefusalReason, route: Route, ttlSeconds?: number): RefusedRequest {
  return { kind: 'refused', route, refusal, ttlSeconds }
}

/** How a request ended, for counts and traces. */
export function outcomeOf(result: RequestResult): RequestOutcome {
  return result.kind === 'served' ? 'served' : result.refusal
}

/** For a request whose guest has lost its address since: it never gets the value of another instance. */
export const ADDRESS_LOST = refused('unknown-peer', 'unknown')

/** The result of a request, with its target, if that could be parsed. */
export interface Resolution {
  readonly target: Target | undefined
  readonly result: RequestResult | PendingRequest
}

/**
 * Steps that run again for a request that has waited: for its body, a signature or a change. They count nothing, since
 * the request was counted when it arrived.
 */
export interface Steps {
  /** Finds the instance of the peer. */
  readonly findAgain: (exchange: Exchange) => FoundGuest
  /** Authorizes only. Undefined: not refused. */
  readonly authorizeAgain: (exchange: Exchange) => RefusedRequest | undefined
  /** Authorizes and resolves. */
  readonly resolveAgain: (exchange: Exchange) => Resolution
  /** Responds, and notes the request in the boot trace of its guest. `target`: undefined if it could not be parsed. */
  readonly send: (exchange: Exchange, target: Target | undefined, result: RequestResult) => void
}
