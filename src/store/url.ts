/**
 * The URL of a store. Pure: opens nothing.
 *
 *   redis://[USER@]HOST[:PORT][/DATABASE]                one server
 *   redis-sentinel://[USER@]HOST[:PORT],.../MASTER       the Sentinels, and the name that they give to the primary
 *   redis-cluster://[USER@]HOST[:PORT],...               some nodes of a Cluster: one has to answer
 *   file:DIRECTORY
 *
 * `rediss` in place of `redis` means TLS to every server, Sentinels too.
 */
import { fileURLToPath } from 'node:url'
import { parseHostPort } from '../runtime/host-port.ts'

export const STORE_URL_FORMS =
  'redis://HOST[:PORT], redis-sentinel://HOST[:PORT],HOST[:PORT]/MASTER, redis-cluster://HOST[:PORT],HOST[:PORT] ' +
  '(each with USER@ before the hosts if there is a user; rediss instead of redis for TLS) or file:DIRECTORY'

/** A server: `host` is a name or an address without brackets. */
export interface Node {
  readonly host: string
  readonly port: number
}

/** A Redis of any shape. `nodes`: the server, the Sentinels, or some nodes of the Cluster. */
export interface RedisStore {
  readonly kind: 'redis'
  readonly shape: 'standalone' | 'sentinel' | 'cluster'
  readonly tls: boolean
  readonly nodes: readonly Node[]
  readonly username: string | undefined
  /** The number of the database; always 0 unless `standalone`. */
  readonly database: number
  /** The primary's name in the Sentinels; undefined in other shapes. */
  readonly master: string | undefined
}

export interface FileStore {
  readonly kind: 'files'
  readonly directory: string
}

/** Paths of the files that a connection to Redis needs. Each connect reads them again. */
export interface RedisFiles {
  /** The password in its first line. */
  readonly passwordFile?: string | undefined
  /** The same for Sentinels. */
  readonly sentinelPasswordFile?: string | undefined
  /** PEM: the authorities that may sign the servers' certificates. Default: those that Node knows. */
  readonly caFile?: string | undefined
  /** PEM: the client certificate, and its private key. */
  readonly certFile?: string | undefined
  readonly keyFile?: string | undefined
}

/**
 * True if the URL of a Redis has a password in it. Other programs can read URLs in the environment and in arguments, so
 * it belongs into a file.
 */
export function hasPassword(url: string): boolean {
  return /^rediss?(?:-sentinel|-cluster)?:\/\/[^/?#:]*:[^/?#]+@/.test(url)
}

/** Parses the URL of a store; undefined for any other text, and for a URL with a password. */
export function parseStoreUrl(url: string): RedisStore | FileStore | undefined {
  if (!url.startsWith('file:')) return parseRedisUrl(url)
  const directory = url.startsWith('file://') ? pathOfFileUrl(url) : url.slice('file:'.length)
  return directory === undefined || directory === '' ? undefined : { kind: 'files', directory }
}

/** Finds files that contradict the URL or each other. */
export function fileFaults(
  { tls, shape }: RedisStore,
  files: RedisFiles,
): readonly { readonly file: keyof RedisFiles; readonly message: string }[] {
  const faults: { file: keyof RedisFiles; message: string }[] = []
  for (const file of ['caFile', 'certFile', 'keyFile'] as const) {
    if (files[file] !== undefined && !tls)
      faults.push({ file, message: "is for TLS: the store's URL must begin with rediss" })
  }
  if (files.certFile !== undefined && files.keyFile === undefined)
    faults.push({ file: 'certFile', message: 'also needs the file of its private key' })
  if (files.keyFile !== undefined && files.certFile === undefined)
    faults.push({ file: 'keyFile', message: 'also needs the file of its certificate' })
  if (files.sentinelPasswordFile !== undefined && shape !== 'sentinel') {
    faults.push({ file: 'sentinelPasswordFile', message: 'is for redis-sentinel:// and rediss-sentinel://' })
  }
  return faults
}

function parseNode(text: string, defaultPort: number): Node | undefined {
  const { host, port = defaultPort } = parseHostPort(text) ?? {}
  return host === undefined || port < 1 ? undefined : { host, port }
}

function parseRedisUrl(url: string): RedisStore | undefined {
  const match =
    /^(?<scheme>rediss?)(?:-(?<shape>sentinel|cluster))?:\/\/(?:(?<user>[^/?#:]*):?@)?(?<nodes>[^/?#@]+)(?:\/(?<path>[^/?#]*))?$/.exec(
      url,
    )
  if (match?.groups === undefined) return undefined
  const { scheme, shape = 'standalone', user, nodes: list = '', path = '' } = match.groups
  const nodes = list.split(',').map((text) => parseNode(text, shape === 'sentinel' ? 26379 : 6379))
  if (nodes.includes(undefined) || (shape === 'standalone' && nodes.length > 1)) return undefined
  const decoded = decode([user, path])
  if (decoded === undefined) return undefined
  if (shape === 'standalone' ? !/^\d{0,5}$/.test(path) : (shape === 'sentinel') !== (path !== '')) return undefined
  return {
    kind: 'redis',
    shape: shape as RedisStore['shape'],
    tls: scheme === 'rediss',
    nodes: nodes as Node[],
    username: decoded[0],
    database: shape === 'standalone' ? Number(path) : 0,
    master: shape === 'sentinel' ? decoded[1] : undefined,
  }
}

/** Decodes the escapes of texts; an empty text becomes undefined. Returns undefined if any escape is malformed. */
function decode(texts: readonly (string | undefined)[]): (string | undefined)[] | undefined {
  try {
    return texts.map((text) => (text === undefined || text === '' ? undefined : decodeURIComponent(text)))
  } catch {
    return undefined
  }
}

function pathOfFileUrl(url: string): string | undefined {
  try {
    return fileURLToPath(url)
  } catch {
    return undefined
  }
}
