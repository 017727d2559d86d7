/**
 * A connection to one server of Redis, or to a Sentinel. It does not reconnect: when it ends, the caller gets the
 * reason and opens a new connection. That reads passwords and certificates again: replacing them needs no restart.
 */
import { isIP } from 'node:net'
import { TLSSocket } from 'node:tls'
import { Redis, type RedisOptions } from 'ioredis'
import replyHandler from 'ioredis/built/DataHandler.js'
import { readConfigFile, readSecretFile } from '../../runtime/setting-files.ts'
import { parseStoreUrl, STORE_URL_FORMS, type Node, type RedisFiles, type RedisStore } from '../url.ts'
import { explainedConnectError, ExplainedError, PASSWORD_REMEDY, reasonOf } from './reasons.ts'

/** How to reach a Redis: its URL (url.ts) and the files that belong to it. */
export interface RedisSettings extends RedisFiles {
  readonly url: string
}

export interface RedisConnection {
  readonly redis: Redis
  readonly node: Node
  /** Resolves with the reason once the connection is closed. */
  readonly closed: Promise<string>
  /** When the certificate of the server ends, in seconds since 1970; 0: without TLS. */
  readonly certificateEndSeconds: number
}

/** A connection without an answer for this long counts as dead. */
export const RESPONSE_TIMEOUT_MS = 5000

/** Connects to one server. Rejects with the reason. */
export async function connectTo(settings: RedisSettings, node: Node, name: string): Promise<RedisConnection> {
  const { username, database } = storeOf(settings)
  const secret = settings.passwordFile === undefined ? undefined : readSecretFile(settings.passwordFile)
  // Without a password no AUTH is sent, and Redis would refuse the commands of its default user.
  if (username !== undefined && secret === undefined) {
    const text = `the store's URL names the user ${username}, and there is no password`
    throw new ExplainedError(`${text}: ${PASSWORD_REMEDY}`, { text, remedy: PASSWORD_REMEDY })
  }
  const credentials = { ...(username !== undefined && { username }), ...(secret !== undefined && { password: secret }) }
  return dial(settings, node, { db: database, connectionName: name, ...credentials })
}

/** Runs commands as one pipeline. A reply may be an Error. Redis' nil becomes undefined, in lists too. */
export async function runPipeline(redis: Redis, commands: (string | number)[][]): Promise<unknown[]> {
  const replies = (await redis.pipeline(commands).exec()) ?? undefined
  if (replies === undefined) throw new Error('the connection was closed')
  return replies.map(
    ([error, reply]) =>
      error ?? (Array.isArray(reply) ? reply.map((element: unknown) => element ?? undefined) : (reply ?? undefined)),
  )
}

/** A reply that is no Error. Throws the Error. */
export function valueOf(reply: unknown): unknown {
  if (reply instanceof Error) throw reply
  return reply
}

/** Closes a connection at once, without waiting for the server. */
export function close({ redis }: RedisConnection): void {
  redis.disconnect()
}

/** The settings in the URL of a store. Throws if it names no Redis. */
export function storeOf({ url }: RedisSettings): RedisStore {
  const store = parseStoreUrl(url)
  if (store?.kind !== 'redis') throw new Error(`a store is ${STORE_URL_FORMS}`)
  return store
}

/** What ioredis has for the replies of a connection. */
interface ReplyHandler {
  dispatch(handle: () => void): void
  returnPush: (this: ReplyHandler, reply: readonly unknown[]) => void
  returnFatalError(error: Error): void
}

/**
 * ioredis rethrows what its own code throws at an unexpected reply in a turn of its own, which would end the process: the
 * connection is closed instead. (What a loader makes of the class in a CommonJS module differs.)
 */
const { prototype } = ((replyHandler.default as unknown) ?? replyHandler) as { readonly prototype: ReplyHandler }
prototype.dispatch = function (handle) {
  try {
    handle()
  } catch (error) {
    this.returnFatalError(error as Error)
  }
}
const { returnPush } = prototype
prototype.returnPush = function (reply) {
  returnPush.call(this, reply)
  // no program here unsubscribes, and ioredis would pass on no further notice
  if (String(reply[0]).endsWith('unsubscribe')) throw new Error('the server ended a subscription')
}

/** Connects to a server or a Sentinel, with the credentials in `options`. Rejects with the reason. */
export async function dial(
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
    connectTimeout: RESPONSE_TIMEOUT_MS,
    commandTimeout: RESPONSE_TIMEOUT_MS,
    keepAlive: 10_000,
    enableOfflineQueue: false,
    enableReadyCheck: false, // it writes to the console if INFO is denied; `checkRegion` does more
    disableClientInfo: true, // a needless command, which an ACL would have to allow
    autoResubscribe: false,
  })
  let lastError: Error | undefined
  let isConnected = false
  redis.on('error', (error: Error) => {
    lastError = error
    if (isConnected) redis.disconnect() // after a reply that nobody asked for, any other may be of another command
  })
  try {
    await redis.connect()
    isConnected = true
  } catch (error) {
    redis.disconnect()
    throw explainedConnectError(lastError ?? (error as Error), {
      isTls: storeOf(settings).tls,
      hasCertificate: settings.certFile !== undefined,
      timeoutMs: RESPONSE_TIMEOUT_MS,
    })
  }
  const closed = new Promise<string>((resolve) => {
    redis.once('close', () => {
      resolve(lastError === undefined ? 'the server closed the connection' : reasonOf(lastError))
    })
  })
  return { redis, node, closed, certificateEndSeconds: certificateEndOf(redis) }
}

function certificateEndOf({ stream }: Redis): number {
  return stream instanceof TLSSocket ? Date.parse(stream.getPeerCertificate().valid_to) / 1000 : 0
}

function tlsOptions({ caFile, certFile, keyFile }: RedisSettings, { host }: Node) {
  return {
    ...(isIP(host) === 0 && { servername: host }),
    ...(caFile !== undefined && { ca: readConfigFile(caFile) }),
    ...(certFile !== undefined && { cert: readConfigFile(certFile) }),
    ...(keyFile !== undefined && { key: readConfigFile(keyFile) }),
  }
}
