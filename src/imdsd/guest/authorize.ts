/**
 * Decides whether a request may be resolved. The checks run in the order of the contract: the peer, the version of HTTP
 * (A5), the framing of the body, forwarding (D5), the target, and the session token (D1 to D4).
 *
 * The target is parsed into its canonical form before the token is checked, so that `//` or `%2e` cannot bypass the
 * check. authorize() has no side effect except the request counters.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { Socket } from 'node:net'
import type { parseTarget, Target } from '../../metadata/target.ts'
import { isAcceptedVersion } from '../../runtime/http.ts'
import { refused, type Exchange, type RefusedRequest } from './exchange.ts'
import { refusalOf, type Guest } from './identify.ts'
import type { RequestMeter } from './meter.ts'
import type { Tokens } from './token.ts'

/**
 * The rule for forwarded requests, which have `X-Forwarded-For` or `Forwarded`: all of them get 403; or only those that
 * have or request a session token, as on EC2; or they are only counted.
 */
export const FORWARDED_RULES = ['refuse', 'refuse-tokens', 'count'] as const

export interface Rules {
  readonly tokens: Pick<Tokens, 'mint' | 'verify'>
  readonly forwarded: (typeof FORWARDED_RULES)[number]
  /** Limits the hops of all further packets of a connection (hop-limit.ts). False if that fails. */
  readonly limitHops: (connection: Socket) => boolean
  /** Mints an identity token (contract H4). Undefined: there is no issuer. Rejects if `signal` aborts before its turn. */
  readonly mintToken:
    | ((instance: Guest['instance'], audience: string, signal: AbortSignal) => Promise<string>)
    | undefined
}

/**
 * A request that may be resolved. `ttlSeconds`: the remaining lifetime of its session token; undefined if it has no
 * token.
 */
export interface Authorized {
  readonly kind: 'authorized'
  readonly guest: Guest
  readonly target: Target
  readonly ttlSeconds: number | undefined
}

const TOKEN_HEADER = 'x-aws-ec2-metadata-token'

export function authorize(
  { network, address, found, request }: Pick<Exchange, 'network' | 'address' | 'found' | 'request'>,
  parsed: ReturnType<typeof parseTarget>,
  rules: Rules,
  meter: Pick<RequestMeter, 'countSession' | 'countForwarded'>,
): Authorized | RefusedRequest {
  const { method, headers, httpVersion } = request
  const refusal = refusalOf(found, address)
  // The first condition implies the second, which only narrows the type.
  if (refusal !== undefined || found.kind !== 'owned') return refused(refusal ?? 'unknown-peer', 'unknown')
  const guest = found.owner
  if (!isAcceptedVersion(httpVersion)) return refused('malformed-request', 'unknown')
  if (headers['transfer-encoding'] !== undefined && !isFramed(headers['transfer-encoding'], httpVersion))
    return refused('malformed-request', 'unknown')
  if (headers['x-forwarded-for'] !== undefined || headers.forwarded !== undefined) {
    meter.countForwarded()
    if (isForwardedRefused(rules, headers, parsed))
      return refused('forwarded', parsed.ok ? parsed.value.route : 'unknown')
  }
  if (!parsed.ok) return refused('malformed-target', 'unknown')
  const target = parsed.value
  if (target.route === '/latest/api/token') return { kind: 'authorized', guest, target, ttlSeconds: undefined }
  if (target.route === '/{version}/api/token' && method === 'PUT') return refused('dated-token-path', target.route)

  const token = headers[TOKEN_HEADER]
  if (typeof token === 'string' && token !== '') {
    const ttlSeconds = rules.tokens.verify(token, network, guest.instance.id)
    meter.countSession(ttlSeconds === undefined ? 'refused' : 'token')
    return ttlSeconds === undefined
      ? refused('token-invalid', target.route)
      : { kind: 'authorized', guest, target, ttlSeconds }
  }
  // A script that failed to get a token sends an empty one, which counts as no token.
  const isRequired = guest.instance.options.httpTokens === 'required'
  meter.countSession(isRequired ? 'refused' : 'none')
  return isRequired
    ? refused('token-required', target.route)
    : { kind: 'authorized', guest, target, ttlSeconds: undefined }
}

/** Whether the end of the body is certain: `chunked` is the last encoding, and HTTP/1.0 has none (RFC 9112, 6.1). */
function isFramed(transferEncoding: string, httpVersion: string): boolean {
  return httpVersion === '1.1' && /(?:^|,)[ \t]*chunked$/i.test(transferEncoding)
}

function isForwardedRefused(
  { forwarded }: Rules,
  headers: IncomingHttpHeaders,
  parsed: ReturnType<typeof parseTarget>,
): boolean {
  if (forwarded !== 'refuse-tokens') return forwarded === 'refuse'
  return headers[TOKEN_HEADER] !== undefined || (parsed.ok && parsed.value.route === '/latest/api/token')
}
