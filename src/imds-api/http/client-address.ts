/**
 * The address of a client: that of its connection, or the one that trusted proxies name in `X-Forwarded-For`. It becomes
 * canonical here, once, and everything else uses it as it is.
 */
import type {} from 'fastify'
import type { IncomingMessage } from 'node:http'
import { canonicalAddress, buildNetworkTest } from '../../metadata/address.ts'
import { parseHostPort } from '../../runtime/host-port.ts'
import { UNIX_PROXIES } from './settings.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Canonical. Empty: a client of a unix socket. */
    address: string
    /**
     * In whose shares the request counts: its address (for IPv6 its /64); once the token is known, its user or the
     * account of its API client; once that is known, its account.
     */
    owner: string
  }
}

/** The most proxies in a row, and the longest text of an address with its port. */
const [MAX_PROXIES, MAX_LENGTH] = [16, 64]

/**
 * Builds what finds the address of the client of a request. A proxy that names no address, or a text that is none,
 * counts as the client itself. `trustedProxies`: addresses, networks, and `unix:`.
 */
export function buildClientAddress(
  trustedProxies: readonly string[],
): (request: Pick<IncomingMessage, 'socket' | 'headers'>) => string {
  const trustsUnix = trustedProxies.includes(UNIX_PROXIES)
  const isTrusted = buildNetworkTest(trustedProxies.filter((proxy) => proxy !== UNIX_PROXIES))
  return ({ socket: { remoteAddress }, headers }) => {
    let address = remoteAddress === undefined ? '' : (canonicalAddress(remoteAddress) ?? remoteAddress)
    let rest = String(headers['x-forwarded-for'] ?? '')
    for (let proxies = 0; proxies < MAX_PROXIES && (address === '' ? trustsUnix : isTrusted(address)); proxies++) {
      const comma = rest.lastIndexOf(',')
      const named = parseAddress(rest.slice(comma + 1).trim())
      if (named === undefined) break
      address = named
      rest = rest.slice(0, Math.max(0, comma))
    }
    return address
  }
}

/** An address of one of these forms: `192.0.2.1`, `192.0.2.1:443`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:443`. */
function parseAddress(text: string): string | undefined {
  if (text.length > MAX_LENGTH) return undefined
  return canonicalAddress(text) ?? canonicalAddress(parseHostPort(text)?.host ?? '')
}
