/**
 * Finds the content of an authorized request: a path of the guest's tree, a new session token, a new identity token, or
 * the response to a report.
 */
import type { Content } from '../../metadata/content.ts'
import { SIGNATURE_LEAVES } from '../../metadata/identity-document.ts'
import type { Target } from '../../metadata/target.ts'
import { VERSION_LIST } from '../../metadata/tree.ts'
import type { Authorized, Rules } from './authorize.ts'
import { refused, type Exchange, type RequestResult, type Wait, type WaitResults } from './exchange.ts'
import type { Guest } from './identify.ts'
import { resolveReport } from './reports.ts'
import { TTL_HEADER } from './respond.ts'
import { parseTtl } from './token.ts'

const TTL_REQUEST_HEADER = TTL_HEADER.toLowerCase()
const TOKEN_OPTIONS: Content = {
  body: '',
  headers: ['Allow', 'OPTIONS, PUT', 'Content-Type', 'text/plain', 'Content-Length', '0'],
}

/** How many requests cost as much as the signature of an identity token. */
const IDENTITY_TOKEN_COST = 20
/** The longest wait for a signature, in ms. Only a flood of them, or a disk that blocks the threads, takes so long. */
const SIGNATURE_TIMEOUT_MS = 1_000

export function resolve(
  exchange: Pick<Exchange, 'network' | 'request' | 'rawTarget' | 'had'>,
  authorized: Authorized,
  rules: Pick<Rules, 'tokens' | 'limitHops' | 'mintToken'>,
): RequestResult | Wait {
  const { guest, target, ttlSeconds } = authorized
  const { route } = target
  const { method } = exchange.request
  if (route === '/latest/api/token') return resolveToken(exchange, authorized, rules)
  if (route === '/latest/reports') return resolveReport(authorized, method)
  // `*` names the whole server (RFC 9110, 9.3.7)
  if (method === 'OPTIONS' && exchange.rawTarget === '*') return refused('method-not-allowed', route, ttlSeconds)
  if (route === 'unknown' || route === '/{version}/api/token') return refused('not-found', route, ttlSeconds)
  if (route === '/openstack' && guest.instance.options.openstack === 'disabled')
    return refused('not-found', route, ttlSeconds)
  if (method !== 'GET' && method !== 'HEAD') return refused('method-not-allowed', route, ttlSeconds)
  if (route === '/latest/dynamic/instance-identity/token') return resolveIdentityToken(exchange, authorized, rules)
  if (exchange.had.signature === 'failed') return refused('not-signed', route, ttlSeconds)
  const prepared = hasSignature(target) ? guest.prepareIdentity() : undefined
  if (prepared !== undefined)
    return awaitSignature(
      prepared.then(() => ({ signature: 'made' })),
      0,
    )
  const content = contentOf(guest, target)
  return content === undefined
    ? refused('not-found', route, ttlSeconds)
    : { kind: 'served', route, content, ttlSeconds }
}

/** Whether the content of a target may include a signature of the identity document. */
function hasSignature({ route, path, query }: Target): boolean {
  if (query?.recursive === true) return route === '/{version}/dynamic' || route === '/{version}'
  return route === '/{version}/dynamic' && SIGNATURE_LEAVES.some((leaf) => path.endsWith(`/${leaf}`))
}

function contentOf(guest: Guest, { route, version, path, query }: Target): Content | undefined {
  const subtree = query?.recursive === true && route !== '/' ? guest.resolveSubtree(version, path) : undefined
  return subtree ?? (route === '/' ? VERSION_LIST : guest.resolve(version, path))
}

/**
 * Mints an identity token (contract H4), only for a guest with a session token: a program in the guest that requests
 * URLs for others (SSRF) rarely sends its header. No cache may keep it, and it has no ETag.
 */
function resolveIdentityToken(
  { had }: Pick<Exchange, 'had'>,
  { guest, target: { route, audience }, ttlSeconds }: Authorized,
  { mintToken }: Pick<Rules, 'mintToken'>,
): RequestResult | Wait {
  if (mintToken === undefined) return refused('not-found', route, ttlSeconds)
  if (ttlSeconds === undefined) return refused('token-required', route)
  if (audience === undefined) return refused('bad-audience', route, ttlSeconds)
  if (had.signature === 'failed') return refused('not-signed', route, ttlSeconds)
  if (had.token !== undefined) return { kind: 'served', route, content: had.token, ttlSeconds }
  const abort = new AbortController()
  const minted = mintToken(guest.instance, audience, abort.signal).then((body) => ({
    token: {
      body,
      headers: ['Content-Type', 'text/plain', 'Content-Length', String(body.length), 'Cache-Control', 'no-store'],
    },
  }))
  return awaitSignature(minted, IDENTITY_TOKEN_COST, () => abort.abort())
}

/** Waits for a signature, which Node's thread pool makes. `giveUp` ends its wait for a turn. A failure is logged. */
export function awaitSignature(made: Promise<WaitResults>, cost: number, giveUp?: () => void): Wait {
  return {
    kind: 'wait',
    cost,
    start: (done, log) => {
      let isDone = false
      const finish = (result: WaitResults) => {
        clearTimeout(timer)
        if (!isDone) done(result)
        isDone = true
      }
      const timer = setTimeout(() => {
        giveUp?.()
        finish({ signature: 'failed' })
      }, SIGNATURE_TIMEOUT_MS)
      made.then(finish, (error: unknown) => {
        if (!isDone) log.error({ code: 'signing-failed', err: error }, 'signing failed; the guest gets 503')
        finish({ signature: 'failed' })
      })
    },
  }
}

/**
 * Mints a token for a PUT that requests a lifetime of 1 to 21600 seconds (contract D1, D2). The hops of the connection
 * are limited first, so that no response to a PUT travels farther than the instance allows (D6).
 */
function resolveToken(
  { network, request: { method, headers, socket } }: Pick<Exchange, 'network' | 'request'>,
  { guest, target: { route } }: Authorized,
  { tokens, limitHops }: Pick<Rules, 'tokens' | 'limitHops'>,
): RequestResult {
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
