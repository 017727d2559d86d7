/**
 * Finds the server that has a region: the server of the URL, the primary that Sentinels name, or the primary of the
 * Cluster's slot of the region's hash tag. Each connect finds it again: by asking the Sentinels, or by following the
 * redirections of any node.
 *
 * The clients of ioredis for Sentinel and Cluster are not used, because they reconnect and redirect by themselves: the
 * daemon could not tell when notices were lost, and operators would not see the reasons. A region needs only one
 * server, so finding it takes little code.
 */
import type { Redis } from 'ioredis'
import { formatHostPort } from '../../runtime/host-port.ts'
import type { Node } from '../url.ts'
import { close, connectTo, runPipeline, storeOf, type RedisConnection, type RedisSettings } from './connection.ts'
import { errorOf } from './reasons.ts'
import { askSentinel, askSentinels, isSame } from './sentinels.ts'

/** The interval at which a connection to a primary asks a Sentinel, each time another Sentinel. */
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
  const failed: (readonly [Node, unknown])[] = []
  for (const node of shuffled(nodes)) {
    try {
      return await followRedirections(settings, node, key, name)
    } catch (error) {
      failed.push([node, error])
    }
  }
  throw errorOf(nodes, failed)
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

/**
 * Parses a redirection by a node of a Cluster: `MOVED 3999 HOST:PORT` for good, `ASK 3999 HOST:PORT` for this key and
 * now. An empty host means the node that answered. Undefined for any other reply. Source: the Redis Cluster
 * specification.
 */
export function redirection(kind: 'MOVED' | 'ASK', reply: unknown, { host }: Node): Node | undefined {
  if (!(reply instanceof Error) || !reply.message.startsWith(`${kind} `)) return undefined
  const [, target, port] = /^\w+ \d+ (.*):(\d+)$/.exec(reply.message) ?? []
  return target === undefined ? undefined : { host: target === '' ? host : target, port: Number(port) }
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

/**
 * Connects to the primary that the Sentinels name. The connection ends when they name another. The server itself may
 * not know of the failover, if the Sentinels cannot reach it: it still calls itself the primary, but gets no more
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
  void connection.closed.then(() => clearInterval(timer))
  return { ...connection, closed: Promise.race([replaced, connection.closed]) }
}

function shuffled<T>(list: readonly T[]): T[] {
  return list
    .map((item) => ({ item, rank: Math.random() }))
    .sort((a, b) => a.rank - b.rank)
    .map(({ item }) => item)
}
