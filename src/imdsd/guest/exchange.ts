/** One request and its response, which each step of a request passes to the next. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Route, Target } from '../../metadata/target.ts'
import type { Content } from '../../metadata/content.ts'
import type { Log } from '../../runtime/log-codes.ts'
import type { Body, BodySource } from './body.ts'
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
  /** When the headers had been read, or when a wait for a change ended, in ms of a monotonic clock. */
  readonly startedMs: number
  /** What the request has waited for. */
  readonly had: WaitResults
}

/** The value that a request waits to change (H1), until a time of a monotonic clock. `hasEnded`: it waits no longer. */
export interface AwaitedChange {
  readonly etag: string
  readonly untilMs: number
  readonly hasEnded: boolean
}

/** What a request has waited for, each with its result. */
export interface WaitResults {
  /** Its address was looked up in the store. */
  readonly lookup?: true
  /** A signature is made, and the tree has it; or it failed or took too long. */
  readonly signature?: 'made' | 'failed'
  /** An identity token. */
  readonly token?: Content
  readonly body?: Exclude<Body, { kind: 'gone' }>
  readonly change?: AwaitedChange
  /** Its steps have run before, so it was counted; and whether its instance has been replaced in the view since. */
  readonly steps?: 'same-record' | 'other-record'
}

export const WAITED_FOR_NOTHING: WaitResults = {}

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
 * A request that has to wait. `start` begins the wait, and calls `done` once with its result, unless the connection
 * closes; its steps run again then. `cost`: the extra requests that it costs the guest's share.
 */
export interface Wait {
  readonly kind: 'wait'
  readonly cost?: number
  readonly start: (done: (result: WaitResults) => void, log: Log) => void
}

export function refused(refusal: RefusalReason, route: Route, ttlSeconds?: number): RefusedRequest {
  return { kind: 'refused', route, refusal, ttlSeconds }
}

/** How a request ended, for counts and the table of requests. */
export function outcomeOf(result: RequestResult): RequestOutcome {
  return result.kind === 'served' ? 'served' : result.refusal
}

/** The result when the address has another owner than when the request came. */
export const ADDRESS_LOST = refused('unknown-peer', 'unknown')

/** The result of the steps, with the target, if that could be parsed. */
export interface Resolution {
  readonly target: Target | undefined
  readonly result: RequestResult | Wait
}
