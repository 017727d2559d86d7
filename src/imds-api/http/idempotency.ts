/**
 * The header Idempotency-Key on requests that change something: records their responses, and sends a recorded response
 * again (changes/keyed-change.ts stores them). Without the header, none of this runs.
 *
 * Secrets and user_data are not recorded.
 */
import { createHash, type Hash } from 'node:crypto'
import type { FastifyReply, FastifyRequest, onRequestHookHandler } from 'fastify'
import { KEY_RULE, parseIdempotencyKey } from '../model/idempotency-key.ts'
import { fieldFault, refuse, type Refusal } from '../model/refusal.ts'
import { SAFE_METHODS } from './audit.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Set for a change with the header Idempotency-Key. */
    keyed: KeyedRequest | undefined
  }
}

export interface KeyedRequest {
  readonly key: string
  /** The hash of method, path and, once it has arrived, body. */
  readonly hash: Hash
  /** Makes the recorded response to a change with this result. */
  readonly respond: (result: unknown) => RecordedResponse
}

/** The kinds of responses to requests with a key. */
export const KEYED_RESULTS = ['new', 'replayed'] as const
export type KeyedResult = (typeof KEYED_RESULTS)[number]

const REPLAYED = 'Idempotent-Replayed'

/** The kind of a response; undefined: its request has no key. */
export function keyedResultOf(request: FastifyRequest, reply: FastifyReply): KeyedResult | undefined {
  if (request.keyed === undefined) return undefined
  return reply.hasHeader(REPLAYED) ? 'replayed' : 'new'
}

/** A response without its secrets. `omitted`: their fields, which are null in the body. */
export interface RecordedResponse {
  readonly status: number
  readonly body: string
  readonly link: string | null
  readonly omitted: readonly string[]
  /** The server whose `user_data` is omitted. */
  readonly serverId: string | null
}

/** Thrown instead of making a change again: rolls the transaction back, and becomes the recorded response. */
export class Replay extends Error {
  readonly recorded: Omit<RecordedResponse, 'serverId'> | Refusal

  constructor(recorded: Replay['recorded']) {
    super('the recorded response of an earlier request')
    this.recorded = recorded
  }
}

/** The fields that are text in one response only. */
const SECRETS = ['secret', 'library_ftp_password', 'console_token']

export const readIdempotencyKey: onRequestHookHandler = (request, reply, done) => {
  const header = request.headers['idempotency-key']
  if (header === undefined || SAFE_METHODS.includes(request.method)) {
    done()
    return
  }
  const key = parseIdempotencyKey(String(header))
  if (key === undefined) {
    done(refuse('bad_request', fieldFault('Idempotency-Key', 'malformed', `Idempotency-Key must be ${KEY_RULE}`)))
    return
  }
  request.keyed = {
    key,
    hash: createHash('sha256').update(`${request.method} ${request.url}\n`),
    respond: (result) => record(request, reply, result),
  }
  done()
}

function record(request: FastifyRequest, reply: FastifyReply, result: unknown): RecordedResponse {
  const status = Number(Object.keys(request.routeOptions.schema?.response as object)[0]) // of success: a change has one
  const link = reply.getHeader('Link')
  const common = { status, link: link === undefined ? null : String(link) }
  const member = result as Readonly<Record<string, unknown>>
  const hasUserData = member['resource_type'] === 'server' && typeof member['user_data'] === 'string'
  const omitted = [...SECRETS, ...(hasUserData ? ['user_data'] : [])].filter((name) => typeof member[name] === 'string')
  const recorded = { ...member, ...Object.fromEntries(omitted.map((name) => [name, null])) }
  const body = reply.code(status).serialize(recorded) as string
  return { ...common, body, omitted, serverId: hasUserData ? (member['id'] as string) : null }
}

/** Sends a recorded response. `sendRefusal`: sends a recorded refusal. */
export function sendReplay(
  reply: FastifyReply,
  { recorded }: Replay,
  sendRefusal: (reply: FastifyReply, refusal: Refusal) => FastifyReply,
): FastifyReply {
  reply.changedNothing = true
  void reply.header(REPLAYED, 'true')
  if (recorded instanceof Error) return sendRefusal(reply, recorded)
  const { status, body, link, omitted } = recorded
  reply.respondedId = (JSON.parse(body) as { readonly id?: string }).id
  if (omitted.length > 0) void reply.header('Idempotent-Omitted', omitted.join(', '))
  if (link !== null) void reply.header('Link', link)
  return reply.code(status).type('application/json; charset=utf-8').send(body)
}
