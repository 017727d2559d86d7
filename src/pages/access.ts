/**
 * Who may use what operators read: the TCP listener of imds-api, and, through a tunnel of ssh, the unix socket of imdsd.
 * Every local user can send requests to a port, and so can every web page in the browser of an operator.
 *
 * With a password (imds-api), HTTP Basic must have it; the user name does not matter. Wrong ones are limited as those of
 * a sign-in are (limits/failure-limit.ts), and local users share one address, whichever loopback address they use.
 * Without one, the Host header must be an address or localhost: a page of another site can make the browser resolve the
 * site's own name to this listener (DNS rebinding), but cannot change the Host header, and does not know the password.
 */
import type { FastifyInstance, FastifyReply } from 'fastify'
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { canonicalAddress } from '../metadata/address.ts'
import { parseBasic } from '../runtime/basic-auth.ts'
import { FailureLimit } from '../limits/failure-limit.ts'
import { isLoopback, parseHostPort } from '../runtime/host-port.ts'

/**
 * `password` undefined: none is needed. `probes`: paths that need neither password nor Host header, for load balancers.
 * `counts`: paths that need no Host header, since they name nothing of a guest, and Prometheus may use any name. `now`:
 * milliseconds of a monotonic clock.
 */
export interface AccessRules {
  readonly password: string | undefined
  readonly probes: readonly string[]
  readonly counts: readonly string[]
  readonly now: () => number
}

/** Of the limit of wrong passwords: there is one password. */
const OPERATORS = { kind: 'user', name: 'operators' } as const
const UNAUTHORIZED = 'this needs the password of operators, with any user name (HTTP Basic)'
const LIMITED = 'too many wrong passwords of operators came from this address, or from all together: try again later'
const MISDIRECTED = 'the Host header is neither an address nor localhost: use localhost or the address of this listener'

/** Refuses requests to a server that the rules do not allow, before anything else is done for them. */
export function guardAccess(server: FastifyInstance, { password, probes, counts, now }: AccessRules): void {
  const check = password === undefined ? undefined : buildPasswordCheck(password, new FailureLimit(now))
  server.addHook('onRequest', (request, reply, next) => {
    const { authorization, host } = request.headers
    const path = request.routeOptions.url ?? ''
    if (probes.includes(path)) next()
    else if (check !== undefined) {
      const address = (request.ip as string | undefined) ?? '' // none: the peer has gone
      const outcome = check(parseBasic(authorization)?.secret, address)
      if (outcome === 'right') next()
      else if (outcome === 'wrong')
        void reply
          .code(401)
          .header('www-authenticate', 'Basic realm="imds", charset="UTF-8"')
          .send({ error: UNAUTHORIZED })
      else void reply.code(429).header('retry-after', outcome.retrySeconds).send({ error: LIMITED })
    } else if (counts.includes(path)) next()
    else checkHost(host, reply, next)
  })
}

/** Refuses requests with another Host header than an address or localhost, before anything else is done for them. */
export function guardHost(server: FastifyInstance): void {
  server.addHook('onRequest', ({ headers: { host } }, reply, next) => checkHost(host, reply, next))
}

function checkHost(host: string | undefined, reply: FastifyReply, next: () => void): void {
  if (isOwnHost(host)) next()
  else void reply.code(421).send({ error: MISDIRECTED })
}

/** What a given password is. Beyond the limit it is not compared, so a guess learns nothing. */
type Outcome = 'right' | 'wrong' | { readonly retrySeconds: number }

function buildPasswordCheck(
  password: string,
  limit: FailureLimit,
): (given: string | undefined, address: string) => Outcome {
  const isRight = buildPasswordTest(password)
  return (given, address) => {
    if (given === undefined) return 'wrong' // no guess: a browser asks its user then
    const source = isLoopback(canonicalAddress(address) ?? address) ? 'loopback' : address
    const retrySeconds = limit.waitSeconds(OPERATORS, source)
    if (retrySeconds !== undefined) return { retrySeconds }
    if (isRight(given)) {
      limit.recordSuccess(OPERATORS, source)
      return 'right'
    }
    limit.countFailure(OPERATORS, source, true)
    return 'wrong'
  }
}

/** True for a Host header that no other site can make a browser send, and for none: a browser always sends one. */
export function isOwnHost(header: string | undefined): boolean {
  if (header === undefined) return true
  const host = parseHostPort(header)?.host ?? ''
  return host.toLowerCase() === 'localhost' || canonicalAddress(host) !== undefined
}

/** Returns a comparison with a password that takes the same time wherever they differ. */
function buildPasswordTest(password: string): (given: string) => boolean {
  const key = randomBytes(32)
  const digest = (text: string) => createHmac('sha256', key).update(text).digest()
  const right = digest(password)
  return (given) => timingSafeEqual(digest(given), right)
}
