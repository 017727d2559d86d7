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
import { ANNOUNCEMENT_SECONDS, keysOf } from './keys.ts'
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
import type { Loaded, Source, SourceEvents } from '../source.ts'
import { readStored } from '../crypto/stored.ts'
import { formatBehind, placeOf, placeOfTombstone } from '../order.ts'
import { MAX_ENCRYPTION_OVERHEAD_BYTES, type RecordCipher } from '../crypto/record-cipher.ts'
import { sha256InSlices, TurnBudget } from '../../limits/turn-budget.ts'

const HEARTBEAT_MS = 5000
/** The most bytes of records and user-data that one read asks for, unless a single instance has more. */
const MAX_READ_BYTES = 4 * 1024 * 1024
/** Errors that a retry does not fix. */
const MAY_NOT_WRITE = /NOPERM|READONLY/
const HEARTBEATS_PER_ANNOUNCEMENT = 6
const MAX_MARK_BYTES = 32
const MAX_TOMBSTONE_BYTES = 128

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

/** Builds the source. Nothing connects before `start`. With a `cipher` plain values are rejected; without one records are plain. */
export function buildRedisSource(parts: RedisSourceParts): Source {
  const { settings, region, hypervisor, cipher, userDataMaxBytes, announcement } = parts
  const keys = keysOf(region)
  /** Reads when the region was initialised. */
  const readMark = ['getrange', keys.region, 0, MAX_MARK_BYTES - 1]
  const readOrder = ['getrange', keys.order, 0, MAX_MARK_BYTES - 1]
  const budget = new TurnBudget()
  const stopping = new AbortController()
  let session: Session | undefined
  let certificateEndSeconds = 0
  /** An announcement of this daemon was written in this session. */
  let wasAnnounced = false
  /** The reply to `readMark` at the last look at the index. */
  let lastMark: string | undefined
  /** The last place of the region, as this session has read it. */
  let lastOrder = 0
  /** The highest place that this hypervisor knows. */
  let knownOrder = 0
  /** The store had an earlier one at the last look. */
  let wasBehind = false

  const connected = (): RedisConnection => {
    if (session === undefined) throw new Error('there is no connection')
    return session.commands
  }
  /** Runs commands; a reply may be an Error. Asks another node for keys that a Cluster is moving there now. */
  const ask = async (commands: (string | number)[][]): Promise<unknown[]> => {
    const { redis, node } = connected()
    const replies = await runPipeline(redis, commands)
    const moving = replies.flatMap((reply, i) => (redirection('ASK', reply, node) === undefined ? [] : [i]))
    if (moving.length === 0) return replies
    const there = await connectTo(settings, redirection('ASK', replies[moving[0]!], node)!, 'imds-moving')
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
  const askOne = async (command: (string | number)[]) => valueOf((await ask([command]))[0])

  const toRead = (id: string, lengths: Lengths | undefined): ToRead => {
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
  /** Interprets the values of an instance. */
  const interpreted = async (
    id: string,
    digest: string | undefined,
    record: Buffer,
    userData: Buffer | undefined,
  ): Promise<Loaded> => {
    const stored = await readStored(id, record, userData, cipher, budget)
    if (stored.kind !== 'record') return { id, digest, ...stored }
    const userDataSha256 = stored.userData && (await sha256InSlices(stored.userData, budget))
    return { id, digest, ...stored, userDataSha256 }
  }
  const read = async function* (some: readonly ToRead[]): AsyncGenerator<Loaded> {
    const replies = await ask(
      some.flatMap(({ id, fields }) =>
        fields.length === 0
          ? []
          : [
              // Twice: a put or a removal between two of these commands would make an instance look lost.
              ['getrange', keys.tombstone(id), 0, MAX_TOMBSTONE_BYTES - 1],
              ['hmgetBuffer', keys.instance(id), ...fields],
              ['getrange', keys.tombstone(id), 0, MAX_TOMBSTONE_BYTES - 1],
            ],
      ),
    )
    for (const { id, fields, fault } of some) {
      // frees them while the others are processed
      const [before, values = [], after] = replies.splice(0, fields.length === 0 ? 0 : 3)
      if ([before, values, after].some(isWrongType)) {
        yield { kind: 'unreadable', id, digest: undefined, reason: WRONG_TYPE }
        continue
      }
      const [digest, record, userData] = valueOf(values) as (Buffer | undefined)[]
      if (fault !== undefined) yield { id, digest: digest?.toString(), ...fault }
      else if (record !== undefined) yield await interpreted(id, digest?.toString(), record, userData)
      else {
        const tombstone = [after, before].map((reply) => String(valueOf(reply))).find((text) => text !== '')
        if (tombstone === undefined) yield { kind: 'absent', id }
        else yield { kind: 'removed', id, order: placeOfTombstone(tombstone) }
      }
    }
  }

  const announce = () => {
    if (session === undefined) return
    const { id, state, failed, foundOther } = announcement
    const key = keys.announcement(hypervisor)
    const order = knownOrder === 0 ? undefined : knownOrder
    const text = JSON.stringify({ id, ...state(), order, seenAt: new Date().toISOString() })
    runPipeline(session.commands.redis, [
      ['getrange', key, 0, MAX_ANNOUNCEMENT_BYTES - 1],
      ['set', key, text, 'EX', ANNOUNCEMENT_SECONDS],
    ]).then(
      ([before, written]) => {
        const other = typeof before === 'string' ? parseFields(before)['id'] : undefined
        if (wasAnnounced && typeof other === 'string' && other !== id) foundOther()
        const reason = written instanceof Error ? reasonOf(written) : undefined
        wasAnnounced ||= reason === undefined
        if (reason !== undefined && MAY_NOT_WRITE.test(reason)) failed(reason)
      },
      () => undefined, // the connection is lost, and `disconnected` says so
    )
  }
  const beat = ({ redis, role }: { redis: Redis; role: string }, notices: Redis, { replaced }: SourceEvents) => {
    const end = session?.end
    checkRegion(redis, settings, keys.instances).then(
      (now) => {
        if (now !== role) end?.(`the server's role changed from ${role} to ${now}`)
      },
      (error: unknown) => end?.(reasonOf(error)),
    )
    notices.ping().catch((error: unknown) => end?.(reasonOf(error)))
    ask([readMark, readOrder]).then(
      ([mark, last]) => {
        const order = placeOf(last)
        const isBehind = order < knownOrder
        if ((lastMark !== undefined && String(mark) !== lastMark) || order < lastOrder || (isBehind && !wasBehind))
          replaced()
        lastOrder = order
        wasBehind = isBehind
      },
      () => undefined, // the connection is lost, as the others say
    )
  }
  /** Runs one session, from finding the server to its loss. Resolves with the reason. */
  const live = async (events: SourceEvents): Promise<string> => {
    const commands = await connectToRegion(settings, keys.instances, 'imds')
    const open: RedisConnection[] = [commands]
    certificateEndSeconds = commands.certificateEndSeconds
    wasAnnounced = false // a restored Redis may have the announcement of an earlier process of this daemon
    let heartbeat: NodeJS.Timeout | undefined
    try {
      const notices = await connectTo(settings, commands.node, 'imds-notices')
      open.push(notices)
      notices.redis.on('message', (_channel: string, id: string) => {
        if (isId(id)) events.notice(id)
      })
      await notices.redis.subscribe(keys.notices(hypervisor))
      const ended = new Promise<string>((resolve) => {
        session = { commands, end: resolve }
      })
      let beats = 0
      heartbeat = setInterval(() => {
        beat(commands, notices.redis, events)
        if (++beats % HEARTBEATS_PER_ANNOUNCEMENT === 0) announce()
      }, HEARTBEAT_MS)
      if (stopping.signal.aborted) return 'stopping'
      announce() // first, so that publishers give later places than this hypervisor knows
      events.connected()
      return await Promise.race([ended, commands.closed, notices.closed])
    } finally {
      session = undefined
      clearInterval(heartbeat)
      open.forEach(close)
    }
  }

  return {
    description: settings.url,
    start: (events) => void repeatSessions(() => live(events), events.disconnected, stopping.signal),
    index: async () => {
      const own = keys.hypervisor(hypervisor)
      await checkIndex(ask, own)
      const [mark, isThere, behind, last, digests] = await ask([
        readMark,
        ['exists', keys.region],
        ['exists', keys.behind],
        readOrder, // before the digests, which may be later
        ['hgetall', own],
      ])
      lastMark = String(mark)
      lastOrder = placeOf(valueOf(last))
      return {
        initialised: valueOf(isThere) === 1,
        last: lastOrder,
        isBehind: valueOf(behind) === 1,
        digests: new Map(Object.entries(valueOf(digests) as Record<string, string>).filter(([id]) => isId(id))),
      }
    },
    /**
     * Asks for the lengths of all values first, so that each read is bounded in bytes, and nothing is read that is too
     * long.
     */
    load: async function* (ids) {
      const replies = await ask(ids.flatMap((id) => lengthCommands(keys.instance(id))))
      let some: ToRead[] = []
      let bytes = 0
      for (const id of ids) {
        const lengths = replies.splice(0, 3)
        const next = toRead(id, lengths.some(isWrongType) ? undefined : lengthsOf(lengths))
        if (some.length > 0 && bytes + next.bytes > MAX_READ_BYTES) {
          yield* read(some)
          some = []
          bytes = 0
        }
        some.push(next)
        bytes += next.bytes
      }
      yield* read(some)
    },
    owner: async (network, address) => {
      if (!address.includes(':')) {
        const owners = keys.addresses(network)
        const bytes = (await askOne(['hstrlen', owners, address])) as number
        if (bytes === 0 || bytes > MAX_ID_BYTES) return undefined
        const id = await askOne(['hget', owners, address])
        return isId(id) ? id : undefined
      }
      const digits = ipv6Digits(address)
      const before = await askOne(['zrevrangebylex', keys.ranges(network), `(${digits}g`, '-', 'LIMIT', 0, 1])
      const [range, id] = (before as string[])[0]?.split(' ') ?? []
      return range !== undefined && digits.startsWith(range) && isId(id) ? id : undefined
    },
    announce,
    noteOrder: (order) => {
      knownOrder = Math.max(knownOrder, order)
    },
    reportBehind: async () => {
      announce()
      await connected().redis.setnx(keys.behind, formatBehind(knownOrder, hypervisor))
    },
    certificateEndSeconds: () => certificateEndSeconds,
    reports: {
      load: async (id, hypervisors) => {
        const replies = (await ask(reportCommands(keys, id, hypervisors))).map(valueOf)
        return reportsOf(replies, id, cipher, Date.now())
      },
      save: async (id, reports) => saveReports(connected().redis, keys.reports(hypervisor, id), id, reports, cipher),
      remove: async (id) => {
        await connected().redis.del(keys.reports(hypervisor, id))
      },
    },
    stop: async () => {
      stopping.abort()
      session?.end('stopping')
      await Promise.resolve()
    },
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
