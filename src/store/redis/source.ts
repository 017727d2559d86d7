/**
 * The store in Redis, as the daemon reads it.
 *
 * A session is two connections to the server that has the region: one for commands, one subscribed to the channel of
 * this hypervisor. The source reports `connected` when both are ready, so the resync that follows misses nothing. When
 * either is lost, both are closed; the next session finds the server again, and its resync finds the changes whose
 * notices were lost. Other programs can write the index, the notices and the owners: whatever is no id there is left
 * out. Both connections are checked every few seconds, because a server may disappear without closing them, lose its
 * role as primary, or lose the region. Without a check, that would look like a store without changes.
 */
import { ipv6Digits } from '../../metadata/address.ts'
import { isId } from '../../metadata/identifiers.ts'
import { parseFields, type AnnouncedHypervisor } from '../fleet.ts'
import { formatBehind, placeOf } from '../order.ts'
import type { RecordCipher } from '../crypto/record-cipher.ts'
import type { Index, Loaded, ReportStore, Source, SourceEvents } from '../source.ts'
import { MAX_ANNOUNCEMENT_BYTES } from './announcements.ts'
import { runPipeline, close, connectTo, valueOf, type RedisConnection, type RedisSettings } from './connection.ts'
import { InstanceReader } from './instance-reader.ts'
import { ANNOUNCEMENT_SECONDS, keysOf, type Keys } from './keys.ts'
import { checkIndex, MAX_ID_BYTES } from './lengths.ts'
import { reasonOf } from './reasons.ts'
import { checkRegion, connectToRegion, redirection } from './region-server.ts'
import { reportCommands, reportsOf, saveReports } from './reports.ts'
import { repeatSessions } from './sessions.ts'

const HEARTBEAT_MS = 5000
/** Errors that a retry does not fix. */
const MAY_NOT_WRITE = /NOPERM|READONLY|OOM|MISCONF/
const HEARTBEATS_PER_ANNOUNCEMENT = 6
const MAX_MARK_BYTES = 32

/**
 * How a daemon announces itself in the store. `id`: random, so that no other daemon has it. `state`: what it reports,
 * beside the time. `written`: called after each write, with the reason if Redis does not let it. `foundOther`: called if
 * another daemon has announced this hypervisor since this one did.
 */
export interface Announcement {
  readonly id: string
  readonly state: () => Readonly<Omit<AnnouncedHypervisor, 'name' | 'seenAt'>>
  readonly written: (failure: string | undefined) => void
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

/** The open session. `end` closes it, for a reason. `wasAnnounced`: an announcement of this daemon was written in it. */
interface Session {
  readonly commands: RedisConnection & { readonly role: string }
  readonly notices: RedisConnection
  readonly end: (reason: string) => void
  wasAnnounced: boolean
}

/** The source. Nothing connects before `start`. */
export class RedisSource implements Source {
  readonly #parts: RedisSourceParts
  readonly #keys: Keys
  readonly #reader: InstanceReader
  readonly #stopping = new AbortController()
  #session: Session | undefined
  #certificateEndSeconds = 0
  /** When the region was initialised, as the last look at the index has read it. */
  #lastMark: string | undefined
  /** The last place of the region, as this session has read it. */
  #lastOrder = 0
  /** The highest place that this hypervisor knows. */
  #knownOrder = 0
  /** The store had an earlier one at the last look. */
  #wasBehind = false

  constructor(parts: RedisSourceParts) {
    const { region, cipher, userDataMaxBytes } = parts
    this.#parts = parts
    this.#keys = keysOf(region)
    this.#reader = new InstanceReader({
      ask: (commands) => this.#ask(commands),
      keys: this.#keys,
      cipher,
      userDataMaxBytes,
    })
  }

  get description(): string {
    return this.#parts.settings.url
  }

  start(events: SourceEvents): void {
    void repeatSessions(() => this.#live(events), events.disconnected, this.#stopping.signal)
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  async index(): Promise<Index> {
    const own = this.#keys.hypervisor(this.#parts.hypervisor)
    await checkIndex((commands) => this.#ask(commands), own)
    const [mark, isThere, behind, last, digests] = await this.#ask([
      this.#readMark,
      ['exists', this.#keys.region],
      ['exists', this.#keys.behind],
      this.#readOrder, // before the digests, which may be later
      ['hgetall', own],
    ])
    this.#lastMark = String(mark)
    this.#lastOrder = placeOf(valueOf(last))
    return {
      initialised: valueOf(isThere) === 1,
      last: this.#lastOrder,
      isBehind: valueOf(behind) === 1,
      digests: new Map(Object.entries(valueOf(digests) as Record<string, string>).filter(([id]) => isId(id))),
    }
  }

  load(ids: readonly string[]): AsyncIterable<Loaded> {
    return this.#reader.load(ids)
  }

  async owner(network: string, address: string): Promise<string | undefined> {
    if (!address.includes(':')) {
      const owners = this.#keys.addresses(network)
      const bytes = (await this.#askOne(['hstrlen', owners, address])) as number
      if (bytes === 0 || bytes > MAX_ID_BYTES) return undefined
      const id = await this.#askOne(['hget', owners, address])
      return isId(id) ? id : undefined
    }
    const digits = ipv6Digits(address)
    const ranges = this.#keys.ranges(network)
    const before = await this.#askOne(['zrevrangebylex', ranges, `(${digits}g`, '-', 'LIMIT', 0, 1])
    const [range, id] = (before as string[])[0]?.split(' ') ?? []
    return range !== undefined && digits.startsWith(range) && isId(id) ? id : undefined
  }

  announce(): void {
    const session = this.#session
    if (session === undefined) return
    const { id, state, written: noteWrite, foundOther } = this.#parts.announcement
    const key = this.#keys.announcement(this.#parts.hypervisor)
    const order = this.#knownOrder === 0 ? undefined : this.#knownOrder
    const text = JSON.stringify({ id, ...state(), order, seenAt: new Date().toISOString() })
    runPipeline(session.commands.redis, [
      ['getrange', key, 0, MAX_ANNOUNCEMENT_BYTES - 1],
      ['set', key, text, 'EX', ANNOUNCEMENT_SECONDS],
    ]).then(
      ([before, written]) => {
        const other = typeof before === 'string' ? parseFields(before)['id'] : undefined
        if (session.wasAnnounced && typeof other === 'string' && other !== id) foundOther()
        const reason = written instanceof Error ? reasonOf(written) : undefined
        session.wasAnnounced ||= reason === undefined
        noteWrite(reason !== undefined && MAY_NOT_WRITE.test(reason) ? reason : undefined)
      },
      () => undefined, // the connection is lost, and `disconnected` says so
    )
  }

  noteOrder(order: number): void {
    this.#knownOrder = Math.max(this.#knownOrder, order)
  }

  async reportBehind(): Promise<void> {
    this.announce()
    await this.#connected().redis.setnx(this.#keys.behind, formatBehind(this.#knownOrder, this.#parts.hypervisor))
  }

  certificateEndSeconds(): number {
    return this.#certificateEndSeconds
  }

  readonly reports: ReportStore = {
    load: async (id, hypervisors) => {
      const replies = (await this.#ask(reportCommands(this.#keys, id, hypervisors))).map(valueOf)
      return reportsOf(replies, id, this.#parts.cipher, Date.now())
    },
    save: async (id, reports) => {
      const key = this.#keys.reports(this.#parts.hypervisor, id)
      await saveReports(this.#connected().redis, key, id, reports, this.#parts.cipher)
    },
    remove: async (id) => {
      await this.#connected().redis.del(this.#keys.reports(this.#parts.hypervisor, id))
    },
  }

  /** Runs one session, from finding the server to its loss. Resolves with the reason. */
  async #live(events: SourceEvents): Promise<string> {
    const { settings, hypervisor } = this.#parts
    const commands = await connectToRegion(settings, this.#keys.instances, 'imds')
    const open: RedisConnection[] = [commands]
    this.#certificateEndSeconds = commands.certificateEndSeconds
    let heartbeat: NodeJS.Timeout | undefined
    try {
      const notices = await connectTo(settings, commands.node, 'imds-notices')
      open.push(notices)
      notices.redis.on('message', (_channel: string, id: string) => {
        if (isId(id)) events.notice(id)
      })
      await notices.redis.subscribe(this.#keys.notices(hypervisor))
      const { promise: ended, resolve: end } = Promise.withResolvers<string>()
      // A restored Redis may have the announcement of an earlier process of this daemon, so none counts as written.
      const session: Session = { commands, notices, end, wasAnnounced: false }
      this.#session = session
      let beats = 0
      heartbeat = setInterval(() => {
        this.#check(session, events)
        if (++beats % HEARTBEATS_PER_ANNOUNCEMENT === 0) this.announce()
      }, HEARTBEAT_MS)
      if (this.#stopping.signal.aborted) return 'stopping'
      this.announce() // first, so that publishers give later places than this hypervisor knows
      events.connected()
      return await Promise.race([ended, commands.closed, notices.closed])
    } finally {
      this.#session = undefined
      clearInterval(heartbeat)
      open.forEach(close)
    }
  }

  /** Ends the session if the server is no longer what it was, and looks whether the region was replaced. */
  #check({ commands, notices, end }: Session, { replaced }: SourceEvents): void {
    const lost = (error: unknown) => end(reasonOf(error))
    checkRegion(commands.redis, this.#parts.settings, this.#keys.instances).then((now) => {
      if (now !== commands.role) end(`the server's role changed from ${commands.role} to ${now}`)
    }, lost)
    notices.redis.ping().catch(lost)
    this.#ask([this.#readMark, this.#readOrder]).then(
      ([mark, last]) => {
        const order = placeOf(last)
        const isBehind = order < this.#knownOrder
        const isOther = this.#lastMark !== undefined && String(mark) !== this.#lastMark
        if (isOther || order < this.#lastOrder || (isBehind && !this.#wasBehind)) replaced()
        this.#lastOrder = order
        this.#wasBehind = isBehind
      },
      () => undefined, // the connection is lost, as the others say
    )
  }

  get #readMark(): (string | number)[] {
    return ['getrange', this.#keys.region, 0, MAX_MARK_BYTES - 1]
  }

  get #readOrder(): (string | number)[] {
    return ['getrange', this.#keys.order, 0, MAX_MARK_BYTES - 1]
  }

  #connected(): RedisConnection {
    if (this.#session === undefined) throw new Error('there is no connection')
    return this.#session.commands
  }

  /** Runs commands; a reply may be an Error. Asks another node for keys that a Cluster is moving there now. */
  async #ask(commands: (string | number)[][]): Promise<unknown[]> {
    const { redis, node } = this.#connected()
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

  /** Runs one command. Rejects if its reply is an Error. */
  async #askOne(command: (string | number)[]): Promise<unknown> {
    return valueOf((await this.#ask([command]))[0])
  }
}
