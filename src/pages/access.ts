/**
 * Who may use a TCP listener of operators. Every local user, and every web page in the browser of an operator, can send
 * requests to it.
 *
 * With a password, HTTP Basic must have it; the user name does not matter. Without one, the Host header must be an
 * address or localhost: a page of another site can make the browser resolve the site's own name to this listener (DNS
 * rebinding), but cannot change the Host header, and does not know the password.
 */
import type { FastifyInstance } from 'fastify'
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { canonicalAddress } from '../metadata/address.ts'
import { parseBasic } from '../runtime/basic-auth.ts'
import { parseHostPort } from '../runtime/host-port.ts'

/**
 * `password` undefined: none is needed. `probes`: paths that need neither password nor Host header, for load balancers.
 * `counts`: paths that need no Host header, since they name nothing of a guest, and Prometheus may use any name.
 */
export interface AccessRules {
  readonly password: string | undefined
  readonly probes: readonly string[]
  readonly counts: readonly string[]
}

const UNAUTHORIZED = 'this needs the password of operators, with any user name (HTTP Basic)'
const MISDIRECTED =
  'the Host header is neither an address nor localhost: use the address of this listener, or set a password for it'

/** Refuses requests to a server that the rules do not allow, before anything else is done for them. */
export function guardAccess(server: FastifyInstance, { password, probes, counts }: AccessRules): void {
  const isRight = password === undefined ? undefined : buildPasswordTest(password)
  server.addHook('onRequest', (request, reply, next) => {
    const { authorization, host } = request.headers
    const path = request.routeOptions.url ?? ''
    if (probes.includes(path)) next()
    else if (isRight !== undefined) {
      if (isRight(parseBasic(authorization)?.secret)) next()
      else
        void reply
          .code(401)
          .header('www-authenticate', 'Basic realm="imds", charset="UTF-8"')
          .send({ error: UNAUTHORIZED })
    } else if (counts.includes(path) || isOwnHost(host)) next()
    else void reply.code(421).send({ error: MISDIRECTED })
  })
}

/** True for a Host header that no other site can make a browser send, and for none: a browser always sends one. */
export function isOwnHost(header: string | undefined): boolean {
  if (header === undefined) return true
  const host = parseHostPort(header)?.host ?? ''
  return host.toLowerCase() === 'localhost' || canonicalAddress(host) !== undefined
}

/** Returns a comparison with a password that takes the same time wherever they differ. */
function buildPasswordTest(password: string): (given: string | undefined) => boolean {
  const key = randomBytes(32)
  const digest = (text: string) => createHmac('sha256', key).update(text).digest()
  const right = digest(password)
  return (given) => given !== undefined && timingSafeEqual(digest(given), right)
}
