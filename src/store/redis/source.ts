/**
 * The store in Redis, as the daemon reads it.
 *
 * A session is two connections to the server that has the region: one for commands, one subscribed to the channel of
 * this hypervisor. The source reports `connected` when both are ready, so the resync that follows misses nothing. When
 * either is lost, both are closed; the next session finds the server again, and its resync finds the changes whose
 * notices were lost. Other programs can write the index, the notices and the owners: whatever is no id there is left
 * out. Both connections are checked every few seconds, because a server may disappear without closing
 * them, lose its role as primary, or lose the region. Without a check, that would look like a store without changes.
 */
import type { Redis } from 'ioredis'
import { ipv6Digits } from '../../metadata/address.ts'
import { isId } from '../../metadata/identifiers.ts'
import { formatTooLong as formatUserDataTooLong } from '../../metadata/user-data.ts'
import { runPipeline, close, connectTo, type RedisConnection, type RedisSettings } from './connection.ts'
import { reasonOf } from './reasons.ts'
import { checkRegion, connectToRegion, redirection } from './region-server.ts'
import { repeatSessions } from './sessions.ts'
import { parseFields, type AnnouncedHypervisor } from '../fleet.ts'
import { MAX_ANNOUNCEMENT_BYTES } from './announcements.ts'
import { ANNOUNCEMENT_SECONDS, keysOf, type Keys } from './keys.ts'
import {
  checkIndex,
  MAX_DIGEST_BYTES,
  formatTooLong,
  MAX_ID_BYTES,
  lengthCommands,
  lengthsOf,
  type Lengths,
} from './lengths.ts'
import { reportCommands, reportsOf, saveReports } from './reports.ts'
import type { Index, Loaded, ReportStore, Source, SourceEvents } from '../source.ts'
import { readStored } from '../crypto/stored.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { sha256InSlices, TurnBudget } from '../../limits/turn-budget.ts'

const HEARTBEAT_MS = 5000
/** The most bytes of records and user-data that one read asks for, unless a single instance has more. */
const MAX_READ_BYTES = 4 * 1024 * 1024
/** Errors that a retry does not fix. */
const MAY_NOT_WRITE = /NOPERM|READONLY/
const HEARTBEATS_PER_ANNOUNCEMENT = 6
const MAX_MARK_BYTES = 32

/**
 * How a daemon announces itself in the store. `id`: random, so that no other daemon has it. `state`: what it reports,
 * beside the time. `failed`: called if Redis does not let it write. `foundOther`: called if another daemon has announced
 * this hypervisor since this one did.
 */
export interface Announcement {
  readonly id: string
  readonly state: () => Readonly<Omit<AnnouncedHypervisor, 'name' | 'seenAt'>>
  readonly failed: (reason: string) => void
  readonly foundOther: () => void
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

/** The open session. `end` closes it, for a reason. */
interface Session {
  readonly commands: RedisConnection
  readonly end: (reason: string) => void
}

const WRONG_TYPE = 'a key of this instance has a wrong type'

/**
 * An instance to read: the fields of its key, `digest` first, with as many bytes. `fault`: why the others are not read.
 */
interface ToRead {
  readonly id: string
  readonly fields: readonly string[]
  readonly bytes: number
  readonly fault: { readonly kind: 'unreadable' | 'user-data'; readonly reason: string } | undefined
}

/** Nothing connects before `start`. With a `cipher` plain values are rejected; without one records are plain. */
export class RedisSource implements Source {
  readonly description: string
  readonly #parts: RedisSourceParts
  readonly #keys: Keys
  readonly #budget = new TurnBudget()
  readonly #stopping = new AbortController()
  #session: Session | undefined
  #certificateEndSeconds = 0
  /** An announcement of this daemon was written in this session. */
  #wasAnnounced = false
  /** Reads when the region was initialised. */
  readonly #readMark: (string | number)[]
  /** Its reply at the last look at the index. */
  #mark: string | undefined
  readonly reports: ReportStore = {
    load: async (id, hypervisors) => {
      const replies = (await this.#ask(reportCommands(this.#keys, id, hypervisors))).map(valueOf)
      return reportsOf(replies, id, this.#parts.cipher, Date.now())
    },
    save: (id, reports) =>
      saveReports(this.#redis(), this.#keys.reports(this.#parts.hypervisor, id), id, reports, this.#parts.cipher),
    remove: async (id) => {
      await this.#redis().del(this.#keys.reports(this.#parts.hypervisor, id))
    },
  }

  constructor(parts: RedisSourceParts) {
    this.description = parts.settings.url
    this.#parts = parts
    this.#keys = keysOf(parts.region)
    this.#readMark = ['getrange', this.#keys.region, 0, MAX_MARK_BYTES - 1]
  }

  start(events: SourceEvents): void {
    void repeatSessions(
      () => this.#live(events),
      (reason) => events.disconnected(reason),
      this.#stopping.signal,
    )
  }

  async index(): Promise<Index> {
    const own = this.#keys.hypervisor(this.#parts.hypervisor)
    await checkIndex((commands) => this.#ask(commands), own)
    const [mark, region, digests] = await this.#ask([this.#readMark, ['exists', this.#keys.region], ['hgetall', own]])
    this.#mark = String(mark)
    return {
      initialised: valueOf(region) === 1,
      digests: new Map(Object.entries(valueOf(digests) as Record<string, string>).filter(([id]) => isId(id))),
    }
  }

  /**
   * Asks for the lengths of all values first, so that each read is bounded in bytes, and nothing is read that is too
   * long.
   */
  async *load(ids: readonly string[]): AsyncIterable<Loaded> {
    const replies = await this.#ask(ids.flatMap((id) => lengthCommands(this.#keys.instance(id))))
    let some: ToRead[] = []
    let bytes = 0
    for (const id of ids) {
      const lengths = replies.splice(0, 3)
      const toRead = this.#toRead(id, lengths.some(isWrongType) ? undefined : lengthsOf(lengths))
      if (some.length > 0 && bytes + toRead.bytes > MAX_READ_BYTES) {
        yield* this.#read(some)
        some = []
        bytes = 0
      }
      some.push(toRead)
      bytes += toRead.bytes
    }
    yield* this.#read(some)
  }

  #toRead(id: string, lengths: Lengths | undefined): ToRead {
    const { cipher, userDataMaxBytes } = this.#parts
    const unread = (kind: 'unreadable' | 'user-data', reason: string, fields = ['digest']): ToRead => ({
      id,
      fields,
      bytes: 0,
      fault: { kind, reason },
    })
    if (lengths === undefined) return unread('unreadable', WRONG_TYPE, [])
    const { record, digest, userData } = lengths
    const reason = formatTooLong(lengths, cipher !== undefined)
    if (reason !== undefined) return unread('unreadable', reason, digest > MAX_DIGEST_BYTES ? [] : ['digest'])
    // The limit is a little higher, because an encrypted value is longer than its contents.
    if (userData > userDataMaxBytes + MAX_ENCRYPTION_OVERHEAD_BYTES)
      return unread('user-data', `the user-data is ${formatUserDataTooLong(userData, userDataMaxBytes)}`)
    return { id, fields: ['digest', 'record', 'user-data'], bytes: record + userData, fault: undefined }
  }

  async owner(network: string, address: string): Promise<string | undefined> {
    if (!address.includes(':')) {
      const owners = this.#keys.addresses(network)
      const [bytes] = (await this.#ask([['hstrlen', owners, address]])).map(valueOf)
      if (bytes === 0 || (bytes as number) > MAX_ID_BYTES) return undefined
      const [id] = (await this.#ask([['hget', owners, address]])).map(valueOf)
      return isId(id) ? id : undefined
    }
    const digits = ipv6Digits(address)
    const [before] = (
      await this.#ask([['zrevrangebylex', this.#keys.ranges(network), `(${digits}g`, '-', 'LIMIT', 0, 1]])
    ).map(valueOf)
    const [range, id] = (before as string[])[0]?.split(' ') ?? []
    return range !== undefined && digits.startsWith(range) && isId(id) ? id : undefined
  }

  async *#read(some: readonly ToRead[]): AsyncIterable<Loaded> {
    const replies = await this.#ask(
      some.flatMap(({ id, fields }) =>
        fields.length === 0
          ? []
          : [
              // Twice: a put or a removal between two of these commands would make an instance look lost.
              ['exists', this.#keys.tombstone(id)],
              ['hmgetBuffer', this.#keys.instance(id), ...fields],
              ['exists', this.#keys.tombstone(id)],
            ],
      ),
    )
    for (const { id, fields, fault } of some) {
      // frees them while the others are processed
      const [before, values = [], after] = replies.splice(0, fields.length === 0 ? 0 : 3)
      if (isWrongType(values)) {
        yield { kind: 'unreadable', id, digest: undefined, reason: WRONG_TYPE }
        continue
      }
      const [digest, record, userData] = valueOf(values) as (Buffer | undefined)[]
      if (fault !== undefined) yield { id, digest: digest?.toString(), ...fault }
      else if (record !== undefined) yield await this.#loaded(id, digest?.toString(), record, userData)
      else yield { kind: valueOf(before) === 1 || valueOf(after) === 1 ? 'removed' : 'absent', id }
    }
  }

  /** Interprets the values of an instance. */
  async #loaded(id: string, digest: string | undefined, record: Buffer, userData: Buffer | undefined): Promise<Loaded> {
    const stored = await readStored(id, record, userData, this.#parts.cipher, this.#budget)
    if (stored.kind !== 'record') return { id, digest, ...stored }
    return {
      id,
      digest,
      ...stored,
      userDataSha256: stored.userData && (await sha256InSlices(stored.userData, this.#budget)),
    }
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  /** Runs one session, from finding the server to its loss. Resolves with the reason. */
  async #live(events: SourceEvents): Promise<string> {
    const commands = await connectToRegion(this.#parts.settings, this.#keys.instances, 'imds')
    const open: RedisConnection[] = [commands]
    this.#certificateEndSeconds = commands.certificateEndSeconds
    this.#wasAnnounced = false // a restored Redis may have the announcement of an earlier process of this daemon
    let heartbeat: NodeJS.Timeout | undefined
    try {
      const notices = await connectTo(this.#parts.settings, commands.node, 'imds-notices')
      open.push(notices)
      notices.redis.on('message', (_channel: string, id: string) => {
        if (isId(id)) events.notice(id)
      })
      await notices.redis.subscribe(this.#keys.notices(this.#parts.hypervisor))
      const ended = new Promise<string>((resolve) => {
        this.#session = { commands, end: resolve }
      })
      let beats = 0
      heartbeat = setInterval(() => {
        this.#beat(commands, notices.redis, events)
        if (++beats % HEARTBEATS_PER_ANNOUNCEMENT === 0) this.announce()
      }, HEARTBEAT_MS)
      if (this.#stopping.signal.aborted) return 'stopping'
      events.connected()
      this.announce()
      return await Promise.race([ended, commands.closed, notices.closed])
    } finally {
      this.#session = undefined
      clearInterval(heartbeat)
      open.forEach(close)
    }
  }

  certificateEndSeconds(): number {
    return this.#certificateEndSeconds
  }

  announce(): void {
    if (this.#session === undefined) return
    const { id, state, failed, foundOther } = this.#parts.announcement
    const key = this.#keys.announcement(this.#parts.hypervisor)
    const text = JSON.stringify({ id, ...state(), seenAt: new Date().toISOString() })
    runPipeline(this.#redis(), [
      ['getrange', key, 0, MAX_ANNOUNCEMENT_BYTES - 1],
      ['set', key, text, 'EX', ANNOUNCEMENT_SECONDS],
    ]).then(
      ([before, written]) => {
        const other = typeof before === 'string' ? parseFields(before)['id'] : undefined
        if (this.#wasAnnounced && typeof other === 'string' && other !== id) foundOther()
        const reason = written instanceof Error ? reasonOf(written) : undefined
        this.#wasAnnounced ||= reason === undefined
        if (reason !== undefined && MAY_NOT_WRITE.test(reason)) failed(reason)
      },
      () => undefined, // the connection is lost, and `disconnected` says so
    )
  }

  #beat({ redis, role }: { redis: Redis; role: string }, notices: Redis, { replaced }: SourceEvents): void {
    const end = this.#session?.end
    checkRegion(redis, this.#parts.settings, this.#keys.instances).then(
      (now) => {
        if (now !== role) end?.(`the server's role changed from ${role} to ${now}`)
      },
      (error: unknown) => end?.(reasonOf(error)),
    )
    notices.ping().catch((error: unknown) => end?.(reasonOf(error)))
    this.#ask([this.#readMark]).then(
      ([mark]) => {
        if (this.#mark !== undefined && String(mark) !== this.#mark) replaced()
      },
      () => undefined, // the connection is lost, as the others say
    )
  }

  #redis(): Redis {
    if (this.#session === undefined) throw new Error('there is no connection')
    return this.#session.commands.redis
  }

  /** Runs commands; a reply may be an Error. Asks another node for keys that a Cluster is moving there now. */
  async #ask(commands: (string | number)[][]): Promise<unknown[]> {
    const session = this.#session
    if (session === undefined) throw new Error('there is no connection')
    const { redis, node } = session.commands
    const replies = await runPipeline(redis, commands)
    const moving = replies.flatMap((reply, i) => (redirection('ASK', reply, node) === undefined ? [] : [i]))
    if (moving.length === 0) return replies
    const there = await connectTo(this.#parts.settings, redirection('ASK', replies[moving[0]!], node)!, 'imds-moving')
    try {
      const answers = await runPipeline(
        there.redis,
        moving.flatMap((i) => [['asking'], commands[i]!]),
      )
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
