/**
 * The store of the world, as Redis behaves: a primary that runs the script atomically, a replica that lags and may take
 * over, notices that are lost for those who do not listen, and links to the hypervisors that break, loudly or silently.
 *
 * It remembers every state that each instance ever had in it (`History`): what a view serves must be one of these, and
 * never an earlier one than before.
 */
import type { Index, Loaded, ReportStore, Source, SourceEvents } from '../../src/store/source.ts'
import type { Backend, RecordChange, RecordWriter, Written } from '../../src/store/backend.ts'
import type { Published, RemoveOptions, RemoveResult } from '../../src/store/publisher.ts'
import {
  parsePut,
  parseRemoved,
  putArguments,
  removeArguments,
  type ScriptArguments,
} from '../../src/store/redis/script.ts'
import type { ScriptAnswer } from '../../src/store/redis/script.ts'
import { parseReports, storedForm, type Reports } from '../../src/metadata/reports.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import { Region } from './region.ts'
import type { Process, Time } from './time.ts'

/** A state of an instance in the store, since a time. `digest` undefined: it had no record; `isRemoved`: a tombstone. */
export interface Version {
  readonly atMs: number
  readonly digest: string | undefined
  readonly hypervisors: readonly string[]
  readonly isRemoved: boolean
  /** The hypervisors that heard of it, if they were connected. */
  readonly heard: readonly string[]
}
const ABSENT: Version = { atMs: -Infinity, digest: undefined, hypervisors: [], isRemoved: false, heard: [] }

/** How long a silent loss is not noticed: the heartbeat of the source. */
const HEARTBEAT_MS = 10_000

/** A connection of a daemon to the store. */
interface Session {
  readonly of: Process
  readonly hypervisor: string
  readonly notice: (id: string) => void
  readonly end: (reason: string) => void
  /** The order of each direction is kept. */
  sentAtMs: number
  answeredAtMs: number
  noticedAtMs: number
}

export class SimulatedStore {
  readonly #time: Time
  primary = new Region()
  #replica = new Region()
  readonly #history = new Map<string, Version[]>()
  readonly #sessions = new Set<Session>()
  isUp = true
  /** Hypervisors whose link is broken. */
  readonly broken = new Map<string, 'loud' | 'silent'>()
  /** Hypervisor -> in how many of its requests its link breaks. */
  readonly armed = new Map<string, number>()
  /** An instance whose reports cannot be deleted: its key has another type. */
  refusesReportsOf: string | undefined

  constructor(time: Time) {
    this.#time = time
  }

  historyOf(id: string): readonly Version[] {
    return this.#history.get(id) ?? [ABSENT]
  }

  /** Runs the script on the primary. */
  run(args: ScriptArguments, id: string): ScriptAnswer {
    const time = this.#time
    this.expire()
    const heard: string[] = []
    const answer = this.primary.run(args, time.nowMs, (hypervisor, noticed) => {
      heard.push(hypervisor)
      this.#notify(hypervisor, noticed)
    })
    this.#note(id, heard)
    return answer
  }

  replicate(): void {
    this.#replica = this.primary.copy()
  }

  /** The replica takes over: what it did not have yet is lost. Returns the instances that are other than before. */
  failOver(): string[] {
    const before = this.primary
    this.primary = this.#replica.copy()
    this.#endAll('the role of the server changed')
    const all = [before, this.primary].flatMap(({ entries, tombstones }) => [...entries.keys(), ...tombstones.keys()])
    return [...new Set(all)].filter((id) => this.#note(id))
  }

  /** Returns the instances that it had. */
  empty(): string[] {
    const ids = [...this.primary.entries.keys(), ...this.primary.tombstones.keys()]
    this.primary = new Region()
    for (const id of ids) this.#note(id)
    return ids
  }

  /** A week has passed for the tombstone of an instance. */
  forgetTombstone(id: string): void {
    if (this.primary.tombstones.delete(id)) this.#note(id)
  }

  /** Tombstones that are too old disappear. */
  expire(): void {
    for (const id of this.primary.expire(this.#time.nowMs)) this.#note(id)
    this.#replica.expire(this.#time.nowMs)
  }

  setUp(isUp: boolean): void {
    this.isUp = isUp
    if (!isUp) this.#endAll('the server is down')
  }

  /** Breaks the link of a hypervisor. */
  breakLink(hypervisor: string, how: 'loud' | 'silent'): void {
    this.broken.set(hypervisor, how)
    for (const session of this.#sessions) {
      if (session.hypervisor !== hypervisor) continue
      if (how === 'loud') session.end('the connection is lost')
      else
        this.#time.after(
          this.#time.dice.below(HEARTBEAT_MS),
          () => {
            session.end('no answer')
          },
          session.of,
        )
    }
  }

  /** Counts down the requests of a hypervisor, until its link breaks in the middle of one. */
  noteRequest(hypervisor: string): void {
    const left = this.armed.get(hypervisor)
    if (left === undefined) return
    this.armed.set(hypervisor, left - 1)
    if (left > 1) return
    this.armed.delete(hypervisor)
    this.breakLink(hypervisor, 'loud')
  }

  isReachable(hypervisor: string): boolean {
    return this.isUp && !this.broken.has(hypervisor)
  }

  open(session: Session): void {
    this.#sessions.add(session)
  }

  close(session: Session): void {
    this.#sessions.delete(session)
  }

  /** A process has ended. */
  forget(process: Process): void {
    for (const session of this.#sessions) if (session.of === process) this.close(session)
  }

  isOpen(session: Session): boolean {
    return this.#sessions.has(session)
  }

  #endAll(reason: string): void {
    for (const session of this.#sessions) session.end(reason)
  }

  #notify(hypervisor: string, id: string): void {
    const time = this.#time
    for (const session of this.#sessions) {
      if (session.hypervisor !== hypervisor || !this.isReachable(hypervisor)) continue
      session.noticedAtMs = Math.max(session.noticedAtMs, time.nowMs + time.latencyMs())
      time.after(
        session.noticedAtMs - time.nowMs,
        () => {
          if (this.isOpen(session) && this.isReachable(hypervisor)) session.notice(id)
        },
        session.of,
      )
    }
  }

  /** Adds the state of an instance to its history. True if it is another one. */
  #note(id: string, heard: readonly string[] = []): boolean {
    const history = this.#history.get(id) ?? [ABSENT]
    this.#history.set(id, history)
    const entry = this.primary.entries.get(id)
    const isRemoved = this.primary.tombstones.has(id)
    const last = history.at(-1)!
    if (last.digest === entry?.digest && last.isRemoved === isRemoved) return false
    history.push({
      atMs: this.#time.nowMs,
      digest: entry?.digest,
      hypervisors: entry?.hypervisors ?? [],
      isRemoved,
      heard,
    })
    return true
  }
}

/** The store as the daemon of a hypervisor reads it. It belongs to the process that makes it. */
export class SimulatedSource implements Source {
  readonly description = 'redis://world'
  readonly #store: SimulatedStore
  readonly #time: Time
  readonly #hypervisor: string
  #events: SourceEvents | undefined
  #session: Session | undefined
  #retryMs = 500
  readonly #pending = new Set<(error: Error) => void>()
  readonly reports: ReportStore

  constructor(store: SimulatedStore, time: Time, hypervisor: string) {
    this.#store = store
    this.#time = time
    this.#hypervisor = hypervisor
    const keyOf = (name: string, id: string) => `${name} ${id}`
    this.reports = {
      load: (id, hypervisors) =>
        this.#ask(() => {
          const texts = hypervisors.map((name) => store.primary.reports.get(keyOf(name, id)))
          return texts.flatMap((text) => (text === undefined ? [] : (parseReports(text) ?? [])))
        }),
      save: (id, reports: Reports) =>
        this.#ask(() => {
          store.primary.reports.set(keyOf(hypervisor, id), JSON.stringify(storedForm(reports)))
        }),
      remove: (id) =>
        this.#ask(() => {
          if (store.refusesReportsOf === id) throw new Error('NOPERM this user has no permissions')
          store.primary.reports.delete(keyOf(hypervisor, id))
        }),
    }
  }

  start(events: SourceEvents): void {
    this.#events = events
    this.#connectAfter(this.#time.latencyMs())
  }

  index(): Promise<Index> {
    return this.#ask(() => ({
      initialised: this.#store.primary.isInitialised,
      digests: this.#store.primary.index(this.#hypervisor),
    }))
  }

  /** Redis may run commands of others between any two of a read. */
  async *load(ids: readonly string[]): AsyncIterable<Loaded> {
    const loaded: (Loaded | undefined)[] = []
    const reads = ids.flatMap((id, i) => [
      () => {
        const entry = this.#store.primary.entries.get(id)
        if (entry === undefined) return
        const { digest, text, userData } = entry
        const document: unknown = JSON.parse(text)
        loaded[i] = { kind: 'record', id, digest, document, userData, userDataSha256: userData && sha256(userData) }
      },
      () => {
        loaded[i] ??= { kind: this.#store.primary.tombstones.has(id) ? 'removed' : 'absent', id }
      },
    ])
    const first = this.#time.dice.below(reads.length + 1)
    for (const part of [reads.slice(0, first), reads.slice(first)])
      if (part.length > 0)
        await this.#ask(() => {
          for (const read of part) read()
        })
    for (const one of loaded) yield one!
  }

  owner(network: string, address: string): Promise<string | undefined> {
    return this.#ask(() => this.#store.primary.owner(network, address))
  }

  async stop(): Promise<void> {
    this.#events = undefined
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  #connectAfter(delayMs: number): void {
    const time = this.#time
    time.after(delayMs, () => {
      const events = this.#events
      if (events === undefined) return
      if (!this.#store.isReachable(this.#hypervisor)) {
        events.disconnected('it cannot be reached')
        // longer and longer, so that days without the store cost the simulation little
        this.#retryMs = Math.min(2 * this.#retryMs, 300_000)
        this.#connectAfter(this.#retryMs / 2 + time.dice.below(1_000))
        return
      }
      const session: Session = {
        of: time.current,
        hypervisor: this.#hypervisor,
        notice: events.notice,
        end: (reason) => {
          this.#end(session, reason)
        },
        sentAtMs: 0,
        answeredAtMs: 0,
        noticedAtMs: 0,
      }
      this.#retryMs = 500
      this.#session = session
      this.#store.open(session)
      events.connected()
    })
  }

  #end(session: Session, reason: string): void {
    if (!this.#store.isOpen(session)) return
    this.#store.close(session)
    this.#time.after(
      this.#time.dice.below(3),
      () => {
        this.#session = undefined
        const failed = [...this.#pending]
        this.#pending.clear()
        const isFirst = this.#time.dice.chance(0.5)
        if (isFirst) this.#events?.disconnected(reason)
        for (const fail of failed) fail(new Error('the connection is closed'))
        if (!isFirst) this.#events?.disconnected(reason)
        this.#connectAfter(200 + this.#time.dice.below(1_500))
      },
      session.of,
    )
  }

  /** Runs commands when they arrive at the store. Rejects if the connection ends before the answer arrives. */
  #ask<T>(read: () => T): Promise<T> {
    const [time, store, session] = [this.#time, this.#store, this.#session]
    if (session === undefined) return Promise.reject(new Error('there is no connection'))
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    this.#pending.add(reject)
    session.sentAtMs = Math.max(session.sentAtMs, time.nowMs + time.latencyMs())
    const arrive = () => {
      store.noteRequest(this.#hypervisor)
      if (!store.isReachable(this.#hypervisor)) return // lost with the connection
      store.expire()
      const answer = answerOf(read)
      session.answeredAtMs = Math.max(session.answeredAtMs, time.nowMs + time.latencyMs())
      const receive = () => {
        if (!store.isOpen(session) || !store.isReachable(this.#hypervisor)) return
        this.#pending.delete(reject)
        if (answer.ok) resolve(answer.value)
        else reject(answer.error)
      }
      time.after(session.answeredAtMs - time.nowMs, receive, session.of)
    }
    time.after(session.sentAtMs - time.nowMs, arrive, time.outside)
    return promise
  }
}

function answerOf<T>(read: () => T): { readonly ok: true; readonly value: T } | { readonly ok: false; error: Error } {
  try {
    return { ok: true, value: read() }
  } catch (error) {
    return { ok: false, error: error as Error }
  }
}

/** The store as publishers write it. An answer may be lost after the change was made. */
export class SimulatedBackend implements Backend, RecordWriter {
  readonly region = 'gb1'
  readonly conversion = undefined
  readonly noKeysReason = 'there are none'
  readonly #store: SimulatedStore
  readonly #time: Time

  constructor(store: SimulatedStore, time: Time) {
    this.#store = store
    this.#time = time
  }

  transaction<T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> {
    return task(this)
  }

  async write(change: RecordChange): Promise<Written> {
    return parsePut(await this.#ask(() => this.#store.run(putArguments(change), change.instance.id)))
  }

  async remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult> {
    return parseRemoved(await this.#ask(() => this.#store.run(removeArguments('remove', id, revision, options), id)))
  }

  async get(id: string): Promise<Published | undefined> {
    return this.#ask(() => {
      const entry = this.#store.primary.entries.get(id)
      return entry && { document: JSON.parse(entry.text) as unknown, userData: entry.userData }
    })
  }

  async initialise(): Promise<boolean> {
    const [verdict] = await this.#ask(() => this.#store.run(['init'], ''))
    return verdict === 'initialised'
  }

  async unannounced(): Promise<readonly string[]> {
    return Promise.resolve([])
  }

  readonly reportsOf = unused
  readonly hypervisors = unused
  readonly list = unused
  readonly tombstones = unused
  readonly close = unused
  readonly fleet = undefined as never

  #ask<T>(read: () => T): Promise<T> {
    const time = this.#time
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const isLost = time.dice.chance(0.02)
    const later = (run: () => void) => {
      time.after(time.latencyMs(), run, time.outside)
    }
    later(() => {
      if (!this.#store.isUp) {
        reject(new Error('the store is down'))
        return
      }
      const answer = read()
      later(() => {
        if (isLost) reject(new Error('the answer was lost'))
        else resolve(answer)
      })
    })
    return promise
  }
}

function unused(): never {
  throw new Error('the world does not use this')
}
