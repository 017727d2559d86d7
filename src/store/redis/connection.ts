/**
 * Connects to the server that has a region: in a single Redis, with Sentinel, or in a Cluster.
 *
 * One server has a region: the server of the URL, the primary that Sentinels name, or the primary of the Cluster's slot
 * of the region's hash tag. Each connect finds that server again: by asking the Sentinels, or by following the
 * redirections of any node. Nothing here reconnects. When a connection ends, the caller gets the reason and opens
 * another one. That reads passwords and certificates again, so that replacing them needs no restart.
 *
 * The clients of ioredis for Sentinel and Cluster are not used, because they reconnect and redirect by themselves: the
 * daemon could not tell when notices were lost, and operators would not see the reasons. A region needs only one
 * server, so finding it takes little code.
 */
import { isIP } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Redis, type RedisOptions } from 'ioredis'
import { formatHostPort } from '../../runtime/host-port.ts'
import { readConfigFile, readSecretFile } from '../../runtime/secret-file.ts'
import { parseStoreUrl, STORE_URL_FORMS, type Node, type RedisFiles, type RedisStore } from '../url.ts'

/** How to reach a Redis: its URL (url.ts) and the files that belong to it. */
export interface RedisSettings extends RedisFiles {
  readonly url: string
}

export interface RedisConnection {
  readonly redis: Redis
  readonly node: Node
  /** Resolves with the reason once the connection is closed. */
  readonly closed: Promise<string>
}

/** A connection without an answer for this long counts as dead. */
export const TIMEOUT_MS = 5000
/** The interval at which a connection to a primary asks a Sentinel, each time another one. */
const SENTINEL_INTERVAL_MS = 5000
/** The nodes of a Cluster may disagree about a slot just after it moved. More redirections than these are a loop. */
const MAX_REDIRECTIONS = 5

/**
 * Connects to the server that has the region with this key (keys.ts, `instances`), and checks it as `checkRegion` does.
 * With Sentinel, the connection ends when the primary is replaced. Rejects with the reason of every server that was
 * tried.
 */
export async function connectToRegion(
  settings: RedisSettings,
  key: string,
  name: string,
): Promise<RedisConnection & { readonly role: string }> {
  const { nodes, shape } = storeOf(settings)
  if (shape === 'sentinel') return connectToPrimary(settings, shuffled(nodes), key, name)
  const reasons: string[] = []
  for (const node of shuffled(nodes)) {
    try {
      return await followRedirections(settings, node, key, name)
    } catch (error) {
      reasons.push(reasonAt(node, nodes, error))
    }
  }
  throw new Error(reasons.sort().join('; '))
}

/** Connects to one server. Rejects with the reason. */
export async function connectTo(settings: RedisSettings, node: Node, name: string): Promise<RedisConnection> {
  const { username, database } = storeOf(settings)
  const secret = settings.passwordFile === undefined ? undefined : readSecretFile(settings.passwordFile)
  // Without a password no AUTH is sent, and Redis would refuse the commands of its default user.
  if (username !== undefined && secret === undefined)
    throw new Error(`the store's URL names the user ${username}, and there is no password: ${PASSWORD_REMEDY}`)
  const credentials = { ...(username !== undefined && { username }), ...(secret !== undefined && { password: secret }) }
  return dial(settings, node, { db: database, connectionName: name, ...credentials })
}

/**
 * Checks that this server has the region now, and resolves with its role. Rejects if another node of a Cluster has the
 * slot, if the server is a replica and a primary is needed, or if it is a replica without its primary. When the role of
 * a server changes, make another connection, since notices may have been lost in between.
 */
export async function checkRegion(redis: Redis, settings: RedisSettings, key: string): Promise<string> {
  const [held, info] = await runPipeline(redis, [
    ['hget', key, ''],
    ['info', 'replication'],
  ]) // no instance has an empty id
  // ASK: the slot is moving to another node, and belongs to this one until the move ends.
  if (held instanceof Error && !/^(ASK|WRONGTYPE) /.test(held.message)) throw held
  if (info instanceof Error) throw info
  const field = (name: string) => new RegExp(`^${name}:([^\\r\\n]*)`, 'm').exec(String(info))?.[1] ?? ''
  if (field('role') !== 'slave') return field('role')
  if (storeOf(settings).shape === 'sentinel') throw new Error('this server is not the primary, or no longer is')
  if (field('master_link_status') === 'down') throw new Error('this is a replica that lost its primary')
  return `replica of ${formatHostPort({ host: field('master_host'), port: Number(field('master_port')) })}`
}

/** Runs commands as one pipeline. A reply may be an Error. Redis' nil becomes undefined, in lists too. */
export async function runPipeline(redis: Redis, commands: (string | number)[][]): Promise<unknown[]> {
  const replies = (await redis.pipeline(commands).exec()) ?? undefined
  if (replies === undefined) throw new Error('the connection was closed')
  return replies.map(
    ([error, reply]) =>
      error ?? (Array.isArray(reply) ? reply.map((one: unknown) => one ?? undefined) : (reply ?? undefined)),
  )
}

/**
 * Runs one session after the other until `signal` aborts. Reports the reason for the end of each to `ended`. The pause
 * before the next one increases with each failure in a row, from 25 ms to 2 s.
 */
export async function repeatSessions(
  session: () => Promise<string>,
  ended: (reason: string) => void,
  signal: AbortSignal,
): Promise<void> {
  for (let failures = 0; ; failures++) {
    const startedAtMs = performance.now()
    const reason = await session().catch(reasonOf)
    if (signal.aborted) return
    ended(reason)
    if (performance.now() - startedAtMs > TIMEOUT_MS) failures = 0
    await sleep(Math.min(50 * 2 ** failures, 2000) * (0.5 + Math.random() / 2), undefined, { signal }).catch(
      () => undefined,
    ) // stopped
  }
}

/**
 * Parses a redirection by a node of a Cluster: `MOVED 3999 HOST:PORT` for good, `ASK 3999 HOST:PORT` for this key and
 * now. An empty host means the one that answered. Undefined for any other reply. Source: the Redis Cluster
 * specification.
 */
export function redirection(kind: 'MOVED' | 'ASK', reply: unknown, { host }: Node): Node | undefined {
  if (!(reply instanceof Error) || !reply.message.startsWith(`${kind} `)) return undefined
  const [, target, port] = /^\w+ \d+ (.*):(\d+)$/.exec(reply.message) ?? []
  return target === undefined ? undefined : { host: target === '' ? host : target, port: Number(port) }
}

/** Closes a connection at once, without waiting for the server. */
export function close({ redis }: RedisConnection): void {
  redis.disconnect()
}

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

const PASSWORD_REMEDY = 'name its file in IMDS_REDIS_PASSWORD_FILE (--password-file)'

/** What a code or message means. */
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

function storeOf({ url }: RedisSettings): RedisStore {
  const store = parseStoreUrl(url)
  if (store?.kind !== 'redis') throw new Error(`a store is ${STORE_URL_FORMS}`)
  return store
}

async function followRedirections(
  settings: RedisSettings,
  first: Node,
  key: string,
  name: string,
): Promise<RedisConnection & { role: string }> {
  let node = first
  for (let redirections = 0; ; redirections++) {
    const connection = await connectTo(settings, node, name)
    try {
      return { ...connection, role: await checkRegion(connection.redis, settings, key) }
    } catch (error) {
      close(connection)
      const target = storeOf(settings).shape === 'cluster' ? redirection('MOVED', error, node) : undefined
      if (target === undefined) throw error
      if (redirections === MAX_REDIRECTIONS)
        throw new Error('the nodes of the Cluster redirect to each other in a loop', { cause: error })
      node = target
    }
  }
}

/** What a Sentinel names. `epoch` grows with each failover. */
interface Primary {
  readonly node: Node
  readonly epoch: number
}

/**
 * Connects to the primary that the Sentinels name. The connection ends when they name another one. The server itself
 * may not know of the failover, if the Sentinels cannot reach it: it still calls itself the primary, but gets no more
 * publishes. Sentinels that do not answer end nothing.
 */
async function connectToPrimary(
  settings: RedisSettings,
  sentinels: readonly Node[],
  key: string,
  name: string,
): Promise<RedisConnection & { role: string }> {
  const primary = await askSentinels(settings, sentinels, name)
  const connection = await followRedirections(settings, primary, key, name)
  const { promise: replaced, resolve: leave } = Promise.withResolvers<string>()
  let turn = 0
  const leaveFormerPrimary = async () => {
    const { node } = await askSentinel(settings, sentinels[turn++ % sentinels.length]!, name)
    if (isSame(node, primary)) return
    const named = await askSentinels(settings, sentinels, name) // that one Sentinel may be outdated
    if (isSame(named, primary)) return
    leave(`the Sentinels report a failover to ${formatHostPort(named)}`)
    close(connection)
  }
  const timer = setInterval(() => {
    leaveFormerPrimary().catch(() => undefined) // the next one may answer
  }, SENTINEL_INTERVAL_MS)
  void connection.closed.then(() => {
    clearInterval(timer)
  })
  return { ...connection, closed: Promise.race([replaced, connection.closed]) }
}

/**
 * Asks all Sentinels at once. Resolves with the server that more than half of them name, as soon as they do. Otherwise,
 * when all have answered or failed, with the server that most of them name, of two with equally many the one of the
 * latest failover. A Sentinel without contact to the others may name a former primary, or one of another setup. Rejects
 * with the reason of each if none answers.
 */
async function askSentinels(settings: RedisSettings, sentinels: readonly Node[], name: string): Promise<Node> {
  const answers: Primary[] = []
  const reasons: string[] = []
  const votes = ({ node }: Primary) => answers.filter((other) => isSame(other.node, node)).length
  const { promise: enough, resolve } = Promise.withResolvers<undefined>()
  const asked = sentinels.map((sentinel) =>
    askSentinel(settings, sentinel, name).then(
      (answer) => {
        answers.push(answer)
        if (votes(answer) > sentinels.length / 2) resolve(undefined)
      },
      (error: unknown) => {
        reasons.push(reasonAt(sentinel, sentinels, error))
      },
    ),
  )
  await Promise.race([enough, Promise.all(asked)])
  const [best] = answers.toSorted((a, b) => votes(b) - votes(a) || b.epoch - a.epoch)
  if (best === undefined) throw new Error(reasons.sort().join('; '))
  return best.node
}

async function askSentinel(settings: RedisSettings, sentinel: Node, name: string): Promise<Primary> {
  const master = storeOf(settings).master! // the shape is sentinel
  const { sentinelPasswordFile: file } = settings
  const connection = await dial(settings, sentinel, {
    connectionName: name,
    ...(file !== undefined && { password: readSecretFile(file) }),
  })
  try {
    // The epoch first: if a failover comes between the two, the answer counts as the older one.
    const [state, place] = await runPipeline(connection.redis, [
      ['sentinel', 'master', master],
      ['sentinel', 'get-master-addr-by-name', master],
    ])
    if (place === undefined) throw new Error(`this Sentinel knows no primary with the name ${master}`)
    for (const reply of [state, place]) if (reply instanceof Error) throw reply
    const [host, port] = place as [string, string]
    const fields = state as string[] // names and values in turn
    const epoch = fields.indexOf('config-epoch') + 1
    return { node: { host, port: Number(port) }, epoch: epoch === 0 ? 0 : Number(fields[epoch]) }
  } finally {
    close(connection)
  }
}

function isSame(a: Node, b: Node): boolean {
  return a.host === b.host && a.port === b.port
}

/** The reason of an error, with the server's name if there are several. */
function reasonAt(node: Node, nodes: readonly Node[], error: unknown): string {
  return nodes.length > 1 ? `${formatHostPort(node)}: ${reasonOf(error)}` : reasonOf(error)
}

async function dial(
  settings: RedisSettings,
  node: Node,
  options: Pick<RedisOptions, 'db' | 'username' | 'password' | 'connectionName'>,
): Promise<RedisConnection> {
  const redis = new Redis({
    ...node,
    ...options,
    ...(storeOf(settings).tls && { tls: tlsOptions(settings, node) }),
    lazyConnect: true,
    retryStrategy: () => undefined,
    connectTimeout: TIMEOUT_MS,
    commandTimeout: TIMEOUT_MS,
    keepAlive: 10_000,
    enableOfflineQueue: false,
    enableReadyCheck: false, // it writes to the console if INFO is denied; `checkRegion` does more
    disableClientInfo: true, // a needless command, which an ACL would have to allow
    autoResubscribe: false,
  })
  let lastError: Error | undefined
  redis.on('error', (error: Error) => {
    lastError = error
  })
  try {
    await redis.connect()
  } catch (error) {
    redis.disconnect()
    throw hungUp(lastError, settings) ?? otherProtocol(lastError ?? (error as Error), settings) ?? lastError ?? error
  }
  const closed = new Promise<string>((resolve) => {
    redis.once('close', () => {
      resolve(lastError === undefined ? 'the server closed the connection' : reasonOf(lastError))
    })
  })
  return { redis, node, closed }
}

/**
 * Explains a reset during TLS. A server that refuses the client's certificate sends its alert after its side of the TLS
 * 1.3 handshake. The client is already writing then, so it may see a reset instead of the alert.
 */
function hungUp(error: NodeJS.ErrnoException | undefined, { url, certFile }: RedisSettings): Error | undefined {
  if (error?.syscall === undefined || !/^(ECONNRESET|EPIPE)$/.test(error.code ?? '') || !url.startsWith('rediss'))
    return undefined
  const probable = certFile === undefined ? 'requires a client certificate' : 'refuses our certificate'
  return new Error(`the server probably ${probable} (${error.message})`, { cause: error })
}

/**
 * Explains a wrong protocol. A server without TLS does not answer a handshake, and a server with TLS closes the
 * connection at the first command; neither says why.
 */
function otherProtocol(error: NodeJS.ErrnoException, { url }: RedisSettings): Error | undefined {
  const isTls = url.startsWith('rediss')
  if (isTls && error.code === 'ETIMEDOUT')
    return new Error(
      `no TLS handshake within ${String(TIMEOUT_MS / 1000)} s: ` +
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

function tlsOptions({ caFile, certFile, keyFile }: RedisSettings, { host }: Node) {
  return {
    ...(isIP(host) === 0 && { servername: host }),
    ...(caFile !== undefined && { ca: readConfigFile(caFile) }),
    ...(certFile !== undefined && { cert: readConfigFile(certFile) }),
    ...(keyFile !== undefined && { key: readConfigFile(keyFile) }),
  }
}

function shuffled<T>(list: readonly T[]): T[] {
  return list
    .map((item) => ({ item, rank: Math.random() }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ item }) => item)
}
