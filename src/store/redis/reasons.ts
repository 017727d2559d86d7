/** Explains errors of Redis and of connections to it: what they mean, and the remedy. */
import { formatHostPort } from '../../runtime/host-port.ts'
import type { Node } from '../url.ts'

/** What is wrong, and what to do about it. */
export interface Advice {
  readonly text: string
  readonly remedy: string
}

/** An error that is explained already, such as the errors of several servers in one. */
export class ExplainedError extends Error {
  readonly advice: Advice

  constructor(message: string, advice: Advice) {
    super(message)
    this.advice = advice
  }
}

/** Explains an error of a connection to the operator, in one text: `MEANING: REMEDY (ERROR)`. */
export function reasonOf(error: unknown): string {
  if (error instanceof ExplainedError) return error.message
  const { text, meaning, remedy } = explain(error)
  return meaning === undefined ? text : `${meaning}: ${remedy} (${text})`
}

/** Explains an error of a connection to the operator, with its remedy apart. */
export function adviceOf(error: unknown): Advice {
  if (error instanceof ExplainedError) return error.advice
  const { text, meaning, remedy } = explain(error)
  return { text: meaning === undefined ? text : `${meaning} (${text})`, remedy }
}

interface Explanation extends Advice {
  readonly meaning: string | undefined
}

function explain(error: unknown): Explanation {
  const { code = '', message, reason } = error as Error & { code?: string; reason?: string }
  // the arguments may be a password
  const text = (reason ?? (message === '' ? code : message)).replace(/, with args beginning with:.*/s, '')
  const right = missingRight(message)
  if (right !== undefined)
    return {
      text,
      meaning: 'the Redis user may not do this',
      remedy: `${right} (deploy/redis.acl has what imds needs)`,
    }
  const [, meaning, remedy = 'see the log of Redis, and journalctl -u imds -n 50'] =
    MEANINGS.find(([pattern]) => pattern.test(code) || pattern.test(message)) ?? []
  return { text, meaning, remedy }
}

const OUR_CERTIFICATE = 'name a valid one in IMDS_REDIS_CERT_FILE, with its key in IMDS_REDIS_KEY_FILE'
export const PASSWORD_REMEDY = 'name its file in IMDS_REDIS_PASSWORD_FILE (--password-file)'

/** The meaning of a code or message, and the remedy. Meaning undefined: the message says it. */
const MEANINGS: readonly (readonly [pattern: RegExp, meaning: string | undefined, remedy: string])[] = [
  [/^NOAUTH /, 'Redis requires a password', PASSWORD_REMEDY],
  [
    /^WRONGPASS /,
    'the Redis user or its password is wrong',
    'check USER@ in IMDS_STORE, and the file in IMDS_REDIS_PASSWORD_FILE (--password-file)',
  ],
  [/^MOVED /, 'this is a node of a Cluster', 'its URL must begin with redis-cluster or rediss-cluster'],
  [/^ERR_TLS_CERT_ALTNAME_INVALID$/, "the server's certificate is for other names", 'use one of them in IMDS_STORE'],
  [/^CERT_HAS_EXPIRED$/, "the server's certificate has expired", 'renew it there'],
  [
    /SELF_SIGNED_CERT|UNABLE_TO_(VERIFY|GET_ISSUER)|CERT_SIGNATURE_FAILURE/,
    "the server's certificate is signed by an authority that is not trusted",
    'check the file of certificate authorities',
  ],
  [/^OOM /, 'Redis is out of memory', 'raise its maxmemory, or delete what is not needed'],
  [/^MISCONF /, 'Redis refuses changes because it cannot save its data', 'its log says why, most often a full disk'],
  [/^READONLY /, 'this Redis is a read-only replica', 'IMDS_STORE must name the primary'],
  [/^NOREPLICAS /, 'Redis has fewer replicas than its min-replicas-to-write', 'start its replicas'],
  [/^LOADING /, undefined, 'wait until Redis has loaded its data'],
  [/ALERT_(CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE)$/, 'the server requires a client certificate', OUR_CERTIFICATE],
  [
    /ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_\w+|UNSUPPORTED_CERTIFICATE)$/,
    'the server refuses our certificate',
    OUR_CERTIFICATE,
  ],
  [/requires a client certificate|refuses our certificate/, undefined, OUR_CERTIFICATE],
  [
    /WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG/,
    'the server does not speak TLS on this port',
    'its URL must begin with redis, not with rediss',
  ],
  [/must begin with rediss?/, undefined, 'correct IMDS_STORE'],
  [
    /ENOENT|EACCES|EISDIR|ENOTDIR/,
    undefined,
    'correct the path in IMDS_STORE or in the variable of the file, or its owner and mode',
  ],
  [/ECONNREFUSED/, undefined, 'start Redis'],
  [/ENOTFOUND|EAI_AGAIN/, undefined, 'correct the name of the server in IMDS_STORE, or the DNS of this hypervisor'],
  [
    /ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|ECONNRESET|timed out|closed/,
    undefined,
    'see whether Redis runs and the network reaches it',
  ],
  [/replica that lost its primary|not the primary/, undefined, 'see the replication of Redis'],
]

/** True for an error of Redis' access control. */
export function isDenied({ message }: Error): boolean {
  return /\bNOPERM\b|ACL failure in script|executing the script can't (run|access|publish)/.test(message)
}

/** Commands that deploy/redis.acl gives to no hypervisor. */
const ONLY_OF_PUBLISHERS = 'eval evalsha scan hset hdel zadd zrem zrangebylex publish time'.split(' ')

/**
 * What to do about a right that the user lacks; undefined for any other error. Source: the replies of Redis 6 and 7.
 */
function missingRight(message: string): string | undefined {
  if (!isDenied({ name: '', message })) return undefined
  const [, command] = /run the '([^']+)' command/.exec(message) ?? []
  if (command !== undefined)
    return ONLY_OF_PUBLISHERS.includes(command)
      ? `use the publisher's user; if this is that one, give it +${command}`
      : `give it +${command}`
  if (message.includes('run this command')) return 'give it all rights of the publisher, one of which the script lacks'
  if (message.includes('channel')) return 'check IMDS_REGION and IMDS_HYPERVISOR first, then the channels in its rules'
  return message.includes('key') ? 'check IMDS_REGION and IMDS_HYPERVISOR first, then the keys in its rules' : undefined
}

/** An error of several servers that were tried, or that of the only one. */
export function errorOf(nodes: readonly Node[], failed: readonly (readonly [Node, unknown])[]): Error {
  if (nodes.length === 1) return failed[0]![1] as Error
  const texts = (textOf: (error: unknown) => string) =>
    failed
      .map(([node, error]) => `${formatHostPort(node)}: ${textOf(error)}`)
      .sort()
      .join('; ')
  return new ExplainedError(texts(reasonOf), {
    text: texts((error) => adviceOf(error).text),
    remedy: [...new Set(failed.map(([, error]) => adviceOf(error).remedy))].join('; '),
  })
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
      `no TLS handshake within ${timeoutMs / 1000} s: ` +
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
