/**
 * Finds the content of an authorized request: a path of the guest's tree, or a new session token.
 */
import type { Content } from '../metadata/content.ts'
import { VERSION_LIST } from '../metadata/tree.ts'
import type { Authorized, Rules } from './authorize.ts'
import { refused, type Exchange, type Result } from './exchange.ts'
import { TTL_HEADER } from './respond.ts'
import { parseTtl } from './token.ts'

const TTL_REQUEST_HEADER = TTL_HEADER.toLowerCase()
const TOKEN_OPTIONS: Content = {
  body: '',
  headers: ['Allow', 'OPTIONS, PUT', 'Content-Type', 'text/plain', 'Content-Length', '0'],
}

export function resolve(
  exchange: Pick<Exchange, 'network' | 'request'>,
  authorized: Authorized,
  rules: Pick<Rules, 'tokens' | 'limitHops'>,
): Result {
  const {
    guest,
    target: { route, version, path, query },
    ttlSeconds,
  } = authorized
  const { method } = exchange.request
  if (route === '/latest/api/token') return resolveToken(exchange, authorized, rules)
  if (route === 'unknown' || route === '/{version}/api/token') return refused('not-found', route, ttlSeconds)
  if (route === '/openstack' && guest.instance.options.openstack === 'disabled')
    return refused('not-found', route, ttlSeconds)
  if (method !== 'GET' && method !== 'HEAD') return refused('method-not-allowed', route, ttlSeconds)
  const subtree = query?.recursive === true && route !== '/' ? guest.resolveSubtree(version, path) : undefined
  const content = subtree ?? (route === '/' ? VERSION_LIST : guest.resolve(version, path))
  return content === undefined
    ? refused('not-found', route, ttlSeconds)
    : { kind: 'served', route, content, ttlSeconds }
}

/**
 * Mints a token for a PUT that requests a lifetime of 1 to 21600 seconds (contract D1, D2). The hops of the connection
 * are limited first, so that no response to a PUT travels farther than the instance allows (D6).
 */
function resolveToken(
  { network, request: { method, headers, socket } }: Pick<Exchange, 'network' | 'request'>,
  { guest, target: { route } }: Authorized,
  { tokens, limitHops }: Pick<Rules, 'tokens' | 'limitHops'>,
): Result {
  if (method === 'OPTIONS') return { kind: 'served', route, content: TOKEN_OPTIONS, ttlSeconds: undefined }
  if (method !== 'PUT') return refused('token-method', route)
  if (!limitHops(socket)) return refused('hop-limit-failed', route)
  const wanted = headers[TTL_REQUEST_HEADER]
  const ttlSeconds = parseTtl(typeof wanted === 'string' ? wanted : undefined)
  if (ttlSeconds === undefined) return refused('bad-token-ttl', route)
  const body = tokens.mint(network, guest.instance.id, ttlSeconds)
  return {
    kind: 'served',
    route,
    content: { body, headers: ['Content-Type', 'text/plain', 'Content-Length', String(body.length)] },
    ttlSeconds,
  }
}
