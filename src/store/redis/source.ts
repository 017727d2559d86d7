/**
 * The store in Redis, as the daemon reads it.
 *
 * A session is two connections to the server that has the region: one for commands, one subscribed to the channel of this hypervisor. The source
 * reports `connected` when both are ready, so the resync that follows misses nothing. When either is lost, both are closed; the next session
 * finds the server again, and its resync finds the changes whose notices were lost. Both connections are checked every few seconds, because a
 * server may disappear without closing them, lose its role as primary, or lose the region. Without a check, that would look like a store without changes.
 */
import type { Redis } from 'ioredis'
import { ipv6Digits } from '../../metadata/address.ts'
import { RECORD_MAX_BYTES } from '../../metadata/instance.ts'
import { formatTooLong } from '../../metadata/user-data.ts'
import { again, attempt, check, close, connectTo, connectToRegion, describeUrl, reasonOf, redirection, type Connection, type RedisSettings } from './connection.ts'
import { ANNOUNCEMENT_SECONDS, keysOf } from './keys.ts'
import type { Index, Loaded, Source, SourceEvents } from '../source.ts'
import { readStored } from '../crypto/stored.ts'
import { ENCRYPTION_MAX_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { sha256InSlices, TurnBudget } from '../../runtime/turn-budget.ts'

const HEARTBEAT_MS = 5000
/** The most bytes of records and user-data that one read asks for, unless a single instance has more. */
const READ_BYTES = 4 * 1024 * 1024
/** Errors that the next announcement will get too. */
const MAY_NOT_WRITE = /NOPERM|READONLY/
const HEARTBEATS_PER_ANNOUNCEMENT = 6
/** Errors of a server that no longer has the region, or cannot serve it. */
const NOT_HERE = /^(MOVED|CLUSTERDOWN|LOADING|MASTERDOWN|NOAUTH) /

/** How a daemon announces itself in the store. `state`: what it reports, beside the time. `failed`: called if Redis does not let it write. */
export interface Announcement {
  readonly state: () => { readonly version: string, readonly instances: number }
  readonly failed: (reason: string) => void
}

/** The parts of a source in Redis. `userDataMaxBytes` bounds the user-data of an instance. */
export interface RedisSourceParts {
  readonly settings: RedisSettings
  readonly region: string
  readonly hypervisor: string
  readonly cipher: RecordCipher | undefined
  readonly userDataMaxBytes: number
  readonly announcement: Announcement
}

/** Builds the source; nothing connects before `start`. With a `cipher` plain values are rejected; without one records are plain. */
export function buildRedisSource(parts: RedisSourceParts): Source {
  return new RedisSource(parts)
}

/** The open session. `end` closes it, for a reason. */
interface Session { readonly commands: Connection, readonly end: (reason: string) => void }

/** An instance to read; `userDataBytes` is 0 if its length is not known. */
interface ToRead { readonly id: string, readonly userDataBytes: number }

class RedisSource implements Source {
  readonly description: string
  readonly #settings: RedisSettings
  readonly #keys: ReturnType<typeof keysOf>
  readonly #hypervisor: string
  readonly #cipher: RecordCipher | undefined
  readonly #userDataMaxBytes: number
  readonly #announcement: Announcement
  readonly #budget = new TurnBudget()
  readonly #stopping = new AbortController()
  #session: Session | undefined

  constructor({ settings, region, hypervisor, cipher, userDataMaxBytes, announcement }: RedisSourceParts) {
    this.description = describeUrl(settings.url)
    this.#settings = settings
    this.#keys = keysOf(region)
    this.#hypervisor = hypervisor
    this.#cipher = cipher
    this.#userDataMaxBytes = userDataMaxBytes
    this.#announcement = announcement
  }

  start(events: SourceEvents): void {
    void again(() => this.#live(events), (reason) => { events.disconnected(reason) }, this.#stopping.signal)
  }

  async index(): Promise<Index> {
    const [region, digests] = (await this.#ask([['get', this.#keys.region], ['hgetall', this.#keys.hypervisor(this.#hypervisor)]])).map(valueOf)
    return { initialised: region !== undefined, digests: new Map(Object.entries(digests as Record<string, string>)) }
  }

  /** For several ids, asks for the lengths of their values first, so that each read is bounded in bytes. One id takes one round trip. */
  async* load(ids: readonly string[]): AsyncIterable<Loaded> {
    const fields = ids.length === 1 ? [] : ids.flatMap((id) => ['record', 'user-data'].map((field) => ['hstrlen', this.#keys.instance(id), field]))
    const lengths = (await this.#ask(fields)).map((reply) => isWrongType(reply) ? 0 : valueOf(reply) as number)
    let some: ToRead[] = []
    let bytes = 0
    for (const [i, id] of ids.entries()) {
      const [recordBytes = 0, userDataBytes = 0] = lengths.slice(2 * i, 2 * i + 2)
      const toRead = recordBytes + (this.#isTooLong(userDataBytes) ? 0 : userDataBytes)
      if (some.length > 0 && bytes + toRead > READ_BYTES) {
        yield* this.#read(some)
        some = []
        bytes = 0
      }
      some.push({ id, userDataBytes })
      bytes += toRead
    }
    yield* this.#read(some)
  }

  async owner(network: string, address: string): Promise<string | undefined> {
    if (!address.includes(':')) {
      const [id] = (await this.#ask([['hget', this.#keys.addresses(network), address]])).map(valueOf)
      return id as string | undefined
    }
    const digits = ipv6Digits(address)
    const [before] = (await this.#ask([['zrevrangebylex', this.#keys.ranges(network), `(${digits}g`, '-', 'LIMIT', 0, 1]])).map(valueOf)
    const [range, id] = (before as string[])[0]?.split(' ') ?? []
    return range !== undefined && digits.startsWith(range) ? id : undefined
  }

  async* #read(some: readonly ToRead[]): AsyncIterable<Loaded> {
    const replies = await this.#ask(some.flatMap(({ id, userDataBytes }) => [
      ['hmgetBuffer', this.#keys.instance(id), 'record', 'digest', ...this.#isTooLong(userDataBytes) ? [] : ['user-data']],
      ['get', this.#keys.tombstone(id)],
    ]))
    for (const { id, userDataBytes } of some) {
      const [values, tombstone] = replies.splice(0, 2) // frees them while the others are processed
      if (isWrongType(values) || isWrongType(tombstone)) yield { kind: 'unreadable', id, digest: undefined, reason: 'a key of this instance has a wrong type' }
      else yield await this.#loaded(id, valueOf(values) as (Buffer | undefined)[], valueOf(tombstone) as string | undefined, userDataBytes)
    }
  }

  /** Interprets the values of an instance. `userData` is undefined if there is none, and if it was too long to read. */
  async #loaded(id: string, [record, digestText, userData]: (Buffer | undefined)[], tombstone: string | undefined, userDataBytes: number): Promise<Loaded> {
    if (record === undefined) return { kind: tombstone === undefined ? 'absent' : 'removed', id }
    const digest = digestText?.toString()
    const most = RECORD_MAX_BYTES + (this.#cipher === undefined ? 0 : ENCRYPTION_MAX_OVERHEAD_BYTES)
    if (record.length > most) return { kind: 'unreadable', id, digest, reason: `the record is ${String(record.length)} bytes, more than the limit of ${String(most)}` }
    const bytes = userData?.length ?? userDataBytes
    if (this.#isTooLong(bytes)) return { kind: 'user-data', id, digest, reason: `the user-data is ${formatTooLong(bytes, this.#userDataMaxBytes)}` }
    const stored = await readStored(id, record, userData, this.#cipher, this.#budget)
    if (stored.kind !== 'record') return { id, digest, ...stored }
    return { id, digest, ...stored, userDataSha256: stored.userData && await sha256InSlices(stored.userData, this.#budget) }
  }

  /** True if user-data is certainly too long. The limit is a little higher, because an encrypted value is longer than its contents. */
  #isTooLong(userDataBytes: number): boolean {
    return userDataBytes > this.#userDataMaxBytes + ENCRYPTION_MAX_OVERHEAD_BYTES
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  /** Runs one session, from finding the server to its loss. Resolves with the reason. */
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
      let beats = 0
      heartbeat = setInterval(() => {
        this.#beat(commands, notices.redis)
        if (++beats % HEARTBEATS_PER_ANNOUNCEMENT === 0) this.#announce(commands.redis)
      }, HEARTBEAT_MS)
      if (this.#stopping.signal.aborted) return 'stopping'
      events.connected()
      this.#announce(commands.redis)
      return await Promise.race([ended, commands.closed, notices.closed])
    } finally {
      this.#session = undefined
      clearInterval(heartbeat)
      open.forEach(close)
    }
  }

  #announce(redis: Redis): void {
    const text = JSON.stringify({ ...this.#announcement.state(), seenAt: new Date().toISOString() })
    redis.set(this.#keys.announcement(this.#hypervisor), text, 'EX', ANNOUNCEMENT_SECONDS).catch((error: unknown) => {
      const reason = reasonOf(error)
      if (MAY_NOT_WRITE.test(reason)) this.#announcement.failed(reason)
    })
  }

  #beat({ redis, role }: { redis: Redis, role: string }, notices: Redis): void {
    const end = this.#session?.end
    check(redis, this.#settings, this.#keys.region).then((now) => { if (now !== role) end?.(`the server's role changed from ${role} to ${now}`) },
      (error: unknown) => { end?.(reasonOf(error)) })
    notices.ping().catch((error: unknown) => { end?.(reasonOf(error)) })
  }

  /** Runs commands; a reply may be an Error. Asks another node for keys that a Cluster is moving there now. */
  async #ask(commands: (string | number)[][]): Promise<unknown[]> {
    const session = this.#session
    if (session === undefined) throw new Error('there is no connection')
    const { redis, node } = session.commands
    const replies = await attempt(redis, commands)
    const gone = replies.find((reply) => reply instanceof Error && NOT_HERE.test(reply.message))
    if (gone !== undefined) session.end(`the server no longer has the region: ${(gone as Error).message}`)
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

/** True for the error of a key with a wrong type, which is a fault of one instance, not of the store. */
function isWrongType(reply: unknown): boolean {
  return reply instanceof Error && reply.message.startsWith('WRONGTYPE ')
}

function valueOf(reply: unknown): unknown {
  if (reply instanceof Error) throw reply
  return reply
}
