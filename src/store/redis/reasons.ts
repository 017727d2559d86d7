/** Explains errors of Redis and of connections to it: what they mean, and the remedy. */
import { formatHostPort } from '../../runtime/host-port.ts'
import type { Node } from '../url.ts'

/** Explains an error of a connection to the operator. */
export function reasonOf(error: unknown): string {
  const { code = '', message, reason } = error as Error & { code?: string; reason?: string }
  if (message.startsWith('MOVED '))
    return 'this is a node of a Cluster: its URL must begin with redis-cluster or rediss-cluster'
  const missing = missingRight(message)
  const meaning =
    missing !== undefined
      ? `the Redis user may not do this: ${missing} (deploy/redis.acl has what imds needs)`
      : MEANINGS.find(([pattern]) => pattern.test(code) || pattern.test(message))?.[1]
  // the arguments may be a password
  const text = (reason ?? (message === '' ? code : message)).replace(/, with args beginning with:.*/s, '')
  return meaning === undefined ? text : `${meaning} (${text})`
}

export const PASSWORD_REMEDY = 'name its file in IMDS_REDIS_PASSWORD_FILE (--password-file)'

/** The meaning of a code or message. */
const MEANINGS: readonly (readonly [pattern: RegExp, meaning: string])[] = [
  [/^NOAUTH /, `Redis requires a password: ${PASSWORD_REMEDY}`],
  [
    /^WRONGPASS /,
    'the Redis user or its password is wrong: check USER@ in IMDS_STORE, ' +
      'and the file in IMDS_REDIS_PASSWORD_FILE (--password-file)',
  ],
  [/^ERR_TLS_CERT_ALTNAME_INVALID$/, "the server's certificate is for other names: use one of them in IMDS_STORE"],
  [/^CERT_HAS_EXPIRED$/, "the server's certificate has expired"],
  [
    /SELF_SIGNED_CERT|UNABLE_TO_(VERIFY|GET_ISSUER)|CERT_SIGNATURE_FAILURE/,
    "the server's certificate is signed by an authority that is not trusted: check the file of certificate authorities",
  ],
  [/^OOM /, 'Redis is out of memory: raise its maxmemory, or delete what is not needed'],
  [/^MISCONF /, 'Redis refuses changes because it cannot save its data: its log says why, most often a full disk'],
  [/^READONLY /, 'this Redis is a read-only replica: IMDS_STORE must name the primary'],
  [/^NOREPLICAS /, 'Redis has fewer replicas than its min-replicas-to-write'],
  [/ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)$/, 'the server requires a client certificate'],
  [/ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_\w+|UNSUPPORTED_CERTIFICATE)$/, 'the server refuses our certificate'],
  [/WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG/, 'the server does not speak TLS on this port'],
]

/** True for an error of Redis' access control. */
export function isDenied({ message }: Error): boolean {
  return /\bNOPERM\b|ACL failure in script|executing the script can't (run|access|publish)/.test(message)
}

/**
 * What to do about a right that the user lacks; undefined for any other error. Source: the replies of Redis 6 and 7.
 */
function missingRight(message: string): string | undefined {
  if (!isDenied({ name: '', message })) return undefined
  const [, command] = /run the '([^']+)' command/.exec(message) ?? []
  if (command !== undefined) return `give it +${command}`
  if (message.includes('run this command')) return 'give it all rights of the publisher, one of which the script lacks'
  if (message.includes('channel')) return 'check IMDS_REGION and IMDS_HYPERVISOR first, then the channels in its rules'
  return message.includes('key') ? 'check IMDS_REGION and IMDS_HYPERVISOR first, then the keys in its rules' : undefined
}

/** The reason of an error, with the server's name if there are several. */
export function reasonAt(node: Node, nodes: readonly Node[], error: unknown): string {
  return nodes.length > 1 ? `${formatHostPort(node)}: ${reasonOf(error)}` : reasonOf(error)
}

/** How a connection was to be made: `isTls` by the URL, and whether there is a client certificate. */
export interface Attempt {
  readonly isTls: boolean
  readonly hasCertificate: boolean
  readonly timeoutMs: number
}

/** Explains why a connection could not be made, if the error itself does not say. */
export function explainedConnectError(error: NodeJS.ErrnoException, attempt: Attempt): Error {
  return hungUp(error, attempt) ?? otherProtocol(error, attempt) ?? error
}

/**
 * Explains a reset during TLS. A server that refuses the client's certificate sends its alert after its side of the TLS
 * 1.3 handshake. The client is already writing then, so it may see a reset instead of the alert.
 */
function hungUp(error: NodeJS.ErrnoException, { isTls, hasCertificate }: Attempt): Error | undefined {
  if (error.syscall === undefined || !/^(ECONNRESET|EPIPE)$/.test(error.code ?? '') || !isTls) return undefined
  const probable = hasCertificate ? 'refuses our certificate' : 'requires a client certificate'
  return new Error(`the server probably ${probable} (${error.message})`, { cause: error })
}

/**
 * Explains a wrong protocol. A server without TLS does not answer a handshake, and a server with TLS closes the
 * connection at the first command; neither says why.
 */
function otherProtocol(error: NodeJS.ErrnoException, { isTls, timeoutMs }: Attempt): Error | undefined {
  if (isTls && error.code === 'ETIMEDOUT')
    return new Error(
      `no TLS handshake within ${String(timeoutMs / 1000)} s: ` +
        'the server does not answer, or does not speak TLS on this port (then its URL must begin with redis, ' +
        'not with rediss)',
      { cause: error },
    )
  if (!isTls && /^(ECONNRESET|EPIPE)$/.test(error.code ?? ''))
    return new Error(
      'the server closed the connection: if it speaks TLS on this port, ' +
        `its URL must begin with rediss (${error.message})`,
      { cause: error },
    )
  return undefined
}
