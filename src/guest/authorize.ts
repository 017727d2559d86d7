/**
 * What does a request come to, once it is known who asks?
 *
 * The order is the contract's: who may ask at all, whether it came through somebody else's hands (D5), what is asked, with which token
 * (D1 to D4), and only then what is there. The token is looked at after the path was brought into its one form, so that no alias of a
 * path goes round it. Pure but for what it counts.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { Socket } from 'node:net'
import type { Route, Target } from '../metadata/target.ts'
import { VERSION_LIST, type Content } from '../metadata/tree.ts'
import { TTL_HEADER, type Refusal } from './respond.ts'
import { refusalOf, type Found, type Guest } from './identify.ts'
import type { Outcome, RequestMeter } from './meter.ts'
import { parseTtl, type Tokens } from './token.ts'

/**
 * What becomes of a request that says that it was forwarded (`X-Forwarded-For`, `Forwarded`): 403 for every one; only for those that bring
 * or ask for a token, which is EC2's rule; or it is counted and no more.
 */
export const FORWARDED_RULES = ['refuse', 'refuse-tokens', 'count'] as const

/** What holds for every guest of a listener. */
export interface Rules {
  readonly tokens: Pick<Tokens, 'mint' | 'verify'>
  readonly forwarded: typeof FORWARDED_RULES[number]
  /** Limits how far what is sent on a connection from now on travels (hop-limit.ts); false where it cannot. */
  readonly limitHops: (connection: Socket) => boolean
}

/** A request, and who it is from. */
export interface Asked {
  readonly network: string
  readonly address: string
  readonly found: Found
  readonly method: string
  readonly target: Target | 'malformed'
  readonly headers: IncomingHttpHeaders
  readonly httpVersion: string
  readonly connection: Socket
}

/** For which kind of path, how it ends, the content where it is served, and the seconds that its token has where it brought one. */
export interface Decision { readonly route: Route, readonly content: Content | null, readonly outcome: Outcome, readonly ttlSeconds: number | null }

/**
 * Whether a request is the last of its connection: where its end is not certain, where Node loses what follows it in its packet (an upgrade),
 * and where it has a body, which is discarded without being parsed.
 */
export function isLast(headers: IncomingHttpHeaders, outcome: Outcome): boolean {
  return outcome === 'malformed-request' || headers.upgrade !== undefined || headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'
}

/** What Node's codes mean where no request could be read. */
export const REFUSED_UNREAD: Readonly<Record<string, Refusal | undefined>> = {
  HPE_HEADER_OVERFLOW: 'headers-too-large',
  ERR_HTTP_REQUEST_TIMEOUT: 'request-timeout',
}

const TOKEN_HEADER = 'x-aws-ec2-metadata-token'
const TTL_HEADER_READ = TTL_HEADER.toLowerCase()

const TOKEN_OPTIONS: Content = { body: '', headers: ['Allow', 'OPTIONS, PUT', 'Content-Type', 'text/plain', 'Content-Length', '0'] }

/** Decides. */
export function decide(asked: Asked, rules: Rules, meter: Pick<RequestMeter, 'session' | 'forwarded'>): Decision {
  const { network, address, found, method, target, headers } = asked
  const refusal = refusalOf(found, address)
  if (refusal !== null) return refused(refusal, 'unknown')
  const guest = found as Guest
  if (headers['transfer-encoding'] !== undefined && !isFramed(headers['transfer-encoding'], asked.httpVersion)) return refused('malformed-request', 'unknown')
  if (headers['x-forwarded-for'] !== undefined || headers.forwarded !== undefined) {
    meter.forwarded()
    if (isForwardedRefused(rules, headers, target)) return refused('forwarded', target === 'malformed' ? 'unknown' : target.route)
  }
  if (target === 'malformed') return refused('malformed-target', 'unknown')
  const { route, version, path } = target
  if (route === '/latest/api/token') return session(asked, guest, rules)
  if (route === '/{version}/api/token' && method === 'PUT') return refused('dated-token-path', route)

  const token = headers[TOKEN_HEADER]
  let ttlSeconds: number | null = null
  if (typeof token === 'string' && token !== '') { // an empty one is what a script sends that got none
    ttlSeconds = rules.tokens.verify(token, network, guest.instance.id)
    meter.session(ttlSeconds === null ? 'refused' : 'token')
    if (ttlSeconds === null) return refused('token-invalid', route)
  } else {
    meter.session(guest.instance.options.httpTokens === 'required' ? 'refused' : 'none')
    if (guest.instance.options.httpTokens === 'required') return refused('token-required', route)
  }
  if (route === 'unknown' || route === '/{version}/api/token') return refused('not-found', route, ttlSeconds)
  if (method !== 'GET' && method !== 'HEAD') return refused('method-not-allowed', route, ttlSeconds)
  const content = route === '/' ? VERSION_LIST : guest.resolve(version, path)
  return content === undefined ? refused('not-found', route, ttlSeconds) : { route, content, outcome: 'served', ttlSeconds }
}

/** Where a body ends must be no matter of opinion: `chunked` comes last, and HTTP/1.0 knows no encodings (RFC 9112, 6.1). */
function isFramed(transferEncoding: string, httpVersion: string): boolean {
  return httpVersion === '1.1' && /(?:^|,)[ \t]*chunked$/i.test(transferEncoding)
}

function refused(outcome: Refusal, route: Route, ttlSeconds: number | null = null): Decision {
  return { route, content: null, outcome, ttlSeconds }
}

function isForwardedRefused({ forwarded }: Rules, headers: IncomingHttpHeaders, target: Target | 'malformed'): boolean {
  if (forwarded !== 'refuse-tokens') return forwarded === 'refuse'
  return headers[TOKEN_HEADER] !== undefined || (target !== 'malformed' && target.route === '/latest/api/token')
}

/** The token path: only a PUT with a life of 1 to 21600 seconds gets one (contract D1, D2), and no answer to a PUT travels past the hop limit (D6). */
function session({ network, method, headers, connection }: Asked, guest: Guest, { tokens, limitHops }: Rules): Decision {
  const route = '/latest/api/token'
  if (method === 'OPTIONS') return { route, content: TOKEN_OPTIONS, outcome: 'served', ttlSeconds: null }
  if (method !== 'PUT') return refused('token-method', route)
  if (!limitHops(connection)) return refused('hop-limit-failed', route)
  const asked = headers[TTL_HEADER_READ]
  const ttlSeconds = parseTtl(typeof asked === 'string' ? asked : undefined)
  if (ttlSeconds === null) return refused('bad-token-ttl', route)
  const body = tokens.mint(network, guest.instance.id, ttlSeconds)
  return { route, content: { body, headers: ['Content-Type', 'text/plain', 'Content-Length', String(body.length)] }, outcome: 'served', ttlSeconds }
}
