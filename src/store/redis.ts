/**
 * The store in Redis, as the daemon reads it.
 *
 * A session is two connections to the one server that has the region: one asks, one listens to this hypervisor's channel. `connected` is
 * said when both are there and the subscription stands, so the resync that follows can miss nothing. When either is lost, both are: the
 * next session looks for the server anew, and its resync makes good what was missed. Both are asked for a sign of life every few
 * seconds: a peer that vanished without a word (a cut network, a stopped process) would otherwise look like silence, and a primary
 * that became a replica, or gave the region away, like a store in which nothing changes.
 */
import type { Redis } from 'ioredis'
import { ipv6Digits } from '../metadata/address.ts'
import { RECORD_MAX_BYTES } from '../metadata/instance.ts'
import { again, attempt, check, close, connectTo, connectToRegion, describeUrl, reasonOf, redirection, type Connection, type RedisSettings } from './connection.ts'
import { keysOf } from './keys.ts'
import type { Index, Loaded, Source, SourceEvents } from './source.ts'
import { readStored } from './stored.ts'
import { ENCRYPTION_MAX_OVERHEAD_BYTES, type Trust } from './trust.ts'

const HEARTBEAT_MS = 5000
/** Answers of a server that does not have the region any more, or cannot serve it. */
const NOT_HERE = /^(MOVED|CLUSTERDOWN|LOADING|MASTERDOWN|NOAUTH) /

/** Builds the source; nothing connects before `start`. With `trust` only what is encrypted is believed; null: records are plain. */
export function buildRedisSource(settings: RedisSettings, region: string, hypervisor: string, trust: Trust | null): Source {
  return new RedisSource(settings, region, hypervisor, trust)
}

/** What is open now. `end` closes it, for a reason. */
interface Session { readonly commands: Connection, readonly end: (reason: string) => void }

class RedisSource implements Source {
  readonly description: string
  readonly #settings: RedisSettings
  readonly #keys: ReturnType<typeof keysOf>
  readonly #hypervisor: string
  readonly #trust: Trust | null
  readonly #stopping = new AbortController()
  #session: Session | undefined

  constructor(settings: RedisSettings, region: string, hypervisor: string, trust: Trust | null) {
    this.description = describeUrl(settings.url)
    this.#settings = settings
    this.#keys = keysOf(region)
    this.#hypervisor = hypervisor
    this.#trust = trust
  }

  start(events: SourceEvents): void {
    void again(() => this.#live(events), (reason) => { events.disconnected(reason) }, this.#stopping.signal)
  }

  async index(): Promise<Index> {
    const [region, digests] = (await this.#ask([['get', this.#keys.region], ['hgetall', this.#keys.hypervisor(this.#hypervisor)]])).map(valueOf)
    return { initialised: region !== null, digests: new Map(Object.entries(digests as Record<string, string>)) }
  }

  async load(ids: readonly string[]): Promise<readonly Loaded[]> {
    const replies = await this.#ask(ids.flatMap((id) => [
      ['hmgetBuffer', this.#keys.instance(id), 'record', 'user-data', 'digest'],
      ['get', this.#keys.tombstone(id)],
    ]))
    return ids.map((id, i) => {
      const [values, tombstone] = replies.slice(2 * i, 2 * i + 2)
      if (isWrongType(values) || isWrongType(tombstone)) return { kind: 'unreadable', id, digest: '', reason: 'a key of this instance has a wrong type' }
      return this.#loaded(id, valueOf(values) as (Buffer | null)[], valueOf(tombstone) as string | null)
    })
  }

  async owner(network: string, address: string): Promise<string | null> {
    if (!address.includes(':')) {
      const [id] = (await this.#ask([['hget', this.#keys.addresses(network), address]])).map(valueOf)
      return id as string | null
    }
    const digits = ipv6Digits(address)
    const [before] = (await this.#ask([['zrevrangebylex', this.#keys.ranges(network), `(${digits}g`, '-', 'LIMIT', 0, 1]])).map(valueOf)
    const [range = '-', id = null] = (before as string[])[0]?.split(' ') ?? []
    return digits.startsWith(range) ? id : null
  }

  #loaded(id: string, [record, userData, digest]: (Buffer | null)[], tombstone: string | null): Loaded {
    if (record == null) return { kind: tombstone === null ? 'absent' : 'removed', id }
    const most = RECORD_MAX_BYTES + (this.#trust === null ? 0 : ENCRYPTION_MAX_OVERHEAD_BYTES)
    if (record.length > most) {
      return { kind: 'unreadable', id, digest: digest?.toString() ?? '', reason: `the record is ${String(record.length)} bytes, more than the limit of ${String(most)}` }
    }
    return { id, digest: digest?.toString() ?? '', ...readStored(id, record, userData ?? null, this.#trust) }
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  /** One session, from the search for the server to its loss; resolves with the reason. */
  async #live(events: SourceEvents): Promise<string> {
    const commands = await connectToRegion(this.#settings, this.#keys.region, 'imds')
    const open: Connection[] = [commands]
    let heartbeat: NodeJS.Timeout | undefined
    try {
      const notices = await connectTo(this.#settings, commands.node, 'imds-notices')
      open.push(notices)
      notices.redis.on('message', (_channel: string, id: string) => { events.notice(id) })
      await notices.redis.subscribe(this.#keys.notices(this.#hypervisor))
      const ended = new Promise<string>((resolve) => { this.#session = { commands, end: resolve } })
      heartbeat = setInterval(() => { this.#beat(commands, notices.redis) }, HEARTBEAT_MS)
      if (this.#stopping.signal.aborted) return 'stopping'
      events.connected()
      return await Promise.race([ended, commands.closed, notices.closed])
    } finally {
      this.#session = undefined
      clearInterval(heartbeat)
      open.forEach(close)
    }
  }

  #beat({ redis, role }: { redis: Redis, role: string }, notices: Redis): void {
    const end = this.#session?.end
    check(redis, this.#settings, this.#keys.region).then((now) => { if (now !== role) end?.(`the server's role changed from ${role} to ${now}`) },
      (error: unknown) => { end?.(reasonOf(error)) })
    notices.ping().catch((error: unknown) => { end?.(reasonOf(error)) })
  }

  /** Asks; an answer may be an Error. What a Cluster is moving to another node right now is asked for over there. */
  async #ask(commands: (string | number)[][]): Promise<unknown[]> {
    const session = this.#session
    if (session === undefined) throw new Error('there is no connection')
    const { redis, node } = session.commands
    const replies = await attempt(redis, commands)
    const gone = replies.find((reply) => reply instanceof Error && NOT_HERE.test(reply.message))
    if (gone !== undefined) session.end(`the region is not here any more: ${(gone as Error).message}`)
    const moving = replies.flatMap((reply, i) => redirection('ASK', reply, node) === undefined ? [] : [i])
    if (moving.length === 0) return replies
    const there = await connectTo(this.#settings, redirection('ASK', replies[moving[0]!], node)!, 'imds-moving')
    try {
      const answers = await attempt(there.redis, moving.flatMap((i) => [['asking'], commands[i]!]))
      for (const [k, i] of moving.entries()) replies[i] = answers[2 * k + 1]
      return replies
    } finally {
      close(there)
    }
  }
}

/** A key of another type is one instance's fault, not the store's. */
function isWrongType(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith('WRONGTYPE ')
}

function valueOf(reply: unknown): unknown {
  if (reply instanceof Error) throw reply
  return reply
}
