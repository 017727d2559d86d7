/**
 * The store of the world, as Redis behaves: a primary that runs the script atomically, a replica that lags and may take
 * over, notices that are lost for those who do not listen, and links to the hypervisors that break, loudly or silently.
 *
 * It remembers every state that each instance ever had in it (`Version`): what a view serves must be one of these, and
 * never an earlier one than before.
 */
import type { Dice } from '../fuzz/dice.ts'
import { TurnBudget } from '../../src/limits/turn-budget.ts'
import { storedForm, type Reports } from '../../src/metadata/reports.ts'
import { sha256 } from '../../src/metadata/user-data.ts'
import type { RecordCipher } from '../../src/store/crypto/record-cipher.ts'
import { readStored } from '../../src/store/crypto/stored.ts'
import { reportsOf } from '../../src/store/redis/reports.ts'
import type { ScriptAnswer, ScriptArguments } from '../../src/store/redis/script.ts'
import type { Index, Loaded, ReportStore, Source, SourceEvents } from '../../src/store/source.ts'
import { digestOf, Region, type Entry } from './region.ts'
import type { PublishedStore } from './real-publisher.ts'
import type { Process, Time } from './time.ts'

/** A state of an instance in the store, since a time. `digest` undefined: it had no record; `isRemoved`: a tombstone. */
export interface Version {
  readonly atMs: number
  /** The publish or removal that made it, counted over all; a store that goes back has that of before. 0: none. */
  readonly act: number
  /** The place in the order of the region that this has. 0: none. */
  readonly order: number
  readonly digest: string | undefined
  readonly hypervisors: readonly string[]
  readonly isRemoved: boolean
  readonly isFaulty: boolean
  /** The hypervisors that heard of it, if they were connected. */
  readonly heard: readonly string[]
}
const ABSENT = { digest: undefined, hypervisors: [], isFaulty: false }
const FIRST: Version = { ...ABSENT, atMs: -Infinity, act: 0, order: 0, isRemoved: false, heard: [] }

/** How far the clock of a new primary is off. */
const SKEWS_MS = [0, 0, -3_600_000, 3_600_000, 30_000]
/** How long a silent loss is not noticed: two heartbeats of the source. */
const SILENT_MS = 10_000
/** When a daemon notices that the store has lost something, although its connection stays. */
const HEARTBEAT_MS = 5_000
/** What another program may write in place of a record. */
const FAULTY = ['', '{', '[]', '{"schema":1}', 'imds1 k1 1\nwith another key']

/** A connection of a daemon to the store. */
interface Session {
  readonly of: Process
  readonly hypervisor: string
  readonly notice: (id: string) => void
  /** A heartbeat: looks whether the store has lost something. */
  readonly check: () => void
  readonly end: (reason: string) => void
  /** The order of each direction is kept. */
  sentAtMs: number
  answeredAtMs: number
  noticedAtMs: number
}

export class SimulatedStore implements PublishedStore {
  readonly time: Time
  /** Undefined: records are plain. */
  readonly cipher: RecordCipher | undefined
  primary = new Region()
  /** How often it has lost something. */
  losses = 0
  #replica = new Region()
  /** An old dump of the region. */
  #dump = new Region()
  readonly #acts = new WeakMap<object, number>()
  #lastAct = 0
  readonly #history = new Map<string, Version[]>()
  /** The connections that are open. */
  readonly sessions = new Set<Session>()
  readonly losesAnswers = true
  /** Hypervisors whose link is broken. */
  readonly broken = new Set<string>()
  /** Instances whose reports cannot be written, or deleted: for example, their keys have another type. */
  readonly refused = { save: new Set<string>(), remove: new Set<string>() }

  constructor(time: Time, cipher: RecordCipher | undefined) {
    this.time = time
    this.cipher = cipher
  }

  historyOf(id: string): readonly Version[] {
    return this.#history.get(id) ?? [FIRST]
  }

  latencyMs(): number {
    return this.time.latencyMs()
  }

  run(args: ScriptArguments, id: string): ScriptAnswer {
    this.expire()
    const heard: string[] = []
    const answer = this.primary.run(args, this.time.nowMs, (hypervisor, noticed) => {
      heard.push(hypervisor)
      this.#notify(hypervisor, noticed)
    })
    this.#note(id, heard)
    return answer
  }

  /** Another program writes something in place of a record. */
  spoil(id: string, dice: Dice): boolean {
    const entry = this.primary.entries.get(id)
    if (entry === undefined) return false
    const record = Buffer.from(dice.pick(FAULTY))
    const digest = String(dice.below(1_000_000))
    this.#write(id, { ...entry, record, digest, isFaulty: true })
    return true
  }

  /** Another program writes something in place of a record, and puts the record back after a while: then `done`. */
  spoilFor(ms: number, id: string, dice: Dice, done: (entry: Entry) => void): void {
    const entry = this.primary.entries.get(id)
    if (entry?.isFaulty !== false || !this.spoil(id, dice)) return
    const spoiled = this.primary.entries.get(id)
    this.time.later(ms, () => {
      if (this.primary.entries.get(id) !== spoiled) return
      this.#write(id, entry)
      done(entry)
    })
  }

  #write(id: string, entry: Entry): void {
    this.primary.entries.set(id, entry)
    for (const name of entry.hypervisors) this.#notify(name, id)
    this.#note(id, entry.hypervisors)
  }

  /** What the guest of an instance has reported on a hypervisor. */
  reportsOf(hypervisor: string, id: string): Reports | undefined {
    return reportsOf([this.primary.reports.get(`${hypervisor} ${id}`)], id, this.cipher, Infinity)[0]
  }

  replicate(): Region {
    return (this.#replica = this.primary.copy())
  }

  /** The replica takes over: what it did not have yet is lost. Returns the instances that are other than before. */
  failOver(): string[] {
    this.#endAll('the role of the server changed')
    return this.#replace(this.#replica.copy(), true)
  }

  dump(): void {
    this.#dump = this.primary.copy()
  }

  /** An old dump is loaded. Returns the instances that are other than before. */
  restore(isRestart: boolean): string[] {
    if (isRestart) this.#endAll('the server was restarted')
    return this.#replace(this.#dump.copy())
  }

  /** Everything is lost. Returns the instances that it had. */
  empty(): string[] {
    return this.#replace(new Region())
  }

  /** A week has passed for the tombstone of an instance. */
  forgetTombstone(id: string): void {
    if (this.primary.tombstones.delete(id)) this.#note(id)
  }

  /** Tombstones that are too old disappear. */
  expire(): void {
    for (const id of this.primary.expire(this.time.nowMs)) this.#note(id)
    this.#replica.expire(this.time.nowMs)
  }

  setUp(isUp: boolean): boolean {
    if (!isUp) this.#endAll('the server is down')
    return (this.primary.isUp = isUp)
  }

  /** Breaks the link of a hypervisor. */
  breakLink(hypervisor: string, how: 'loud' | 'silent'): void {
    this.broken.add(hypervisor)
    for (const session of this.sessions) {
      const end = () => session.end('the connection is lost')
      if (session.hypervisor !== hypervisor) continue
      if (how === 'loud') end()
      else this.time.after(this.time.dice.below(SILENT_MS), end, session.of)
    }
  }

  isReachable(hypervisor: string): boolean {
    return this.primary.isUp && !this.broken.has(hypervisor)
  }

  removed(): void {
    // only the publishers' world watches removals
  }

  /** A process has ended. */
  forget(process: Process): void {
    for (const session of this.sessions) if (session.of === process) this.sessions.delete(session)
  }

  #endAll(reason: string): void {
    for (const session of this.sessions) session.end(reason)
  }

  #replace(region: Region, isUp = this.primary.isUp): string[] {
    const before = this.primary
    this.losses += 1
    this.primary = region
    region.isUp = isUp // a copy may be of a server that was down
    region.clockMs = this.time.dice.pick(SKEWS_MS)
    before.isUp = false
    for (const { check, of } of this.sessions) this.time.after(HEARTBEAT_MS, check, of)
    const all = [before, region].flatMap(({ entries, tombstones }) => [...entries.keys(), ...tombstones.keys()])
    return [...new Set(all)].filter((id) => this.#note(id))
  }

  #notify(hypervisor: string, id: string): void {
    const { time } = this
    for (const session of this.sessions) {
      if (session.hypervisor !== hypervisor || !this.isReachable(hypervisor)) continue
      session.noticedAtMs = Math.max(session.noticedAtMs, time.nowMs + time.latencyMs())
      const notice = () => {
        if (this.sessions.has(session) && this.isReachable(hypervisor)) session.notice(id)
      }
      time.after(session.noticedAtMs - time.nowMs, notice, session.of)
    }
  }

  /** Adds the state of an instance to its history. True if it is another one. */
  #note(id: string, heard: readonly string[] = []): boolean {
    const history = this.#history.get(id) ?? [FIRST]
    this.#history.set(id, history)
    const entry = this.primary.entries.get(id)
    const { hypervisors, isFaulty } = entry ?? ABSENT
    const digest = entry && digestOf(entry)
    const isRemoved = this.primary.tombstones.has(id)
    const last = history.at(-1)!
    const state = this.primary.entries.get(id) ?? this.primary.tombstones.get(id)
    if (state !== undefined && !this.#acts.has(state)) this.#acts.set(state, (this.#lastAct += 1))
    const act = (state && this.#acts.get(state)) ?? 0
    const isSame = last.digest === digest && last.isRemoved === isRemoved
    if (isSame && last.act === act) return false
    const { order = 0 } = state ?? {}
    history.push({ atMs: this.time.nowMs, act, order, digest, hypervisors, isRemoved, isFaulty, heard })
    return !isSame
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
  /** The latest order that the daemon knows, as it has said. */
  known = 0

  constructor(store: SimulatedStore, hypervisor: string) {
    this.#store = store
    this.#time = store.time
    this.#hypervisor = hypervisor
    const { cipher } = store
    const keyOf = (name: string, id: string) => `${name} ${id}`
    const change = (what: 'save' | 'remove', id: string, run: () => unknown) =>
      this.#ask(() => {
        if (store.refused[what].has(id)) throw new Error('WRONGTYPE the key has another type')
        run()
      })
    this.reports = {
      load: (id, hypervisors) =>
        this.#ask(() => {
          const values = hypervisors.map((name) => store.primary.reports.get(keyOf(name, id)))
          return reportsOf(values, id, cipher, Date.now())
        }),
      save: (id, reports: Reports) =>
        change('save', id, () => {
          const bytes = Buffer.from(JSON.stringify(storedForm(reports)))
          store.primary.reports.set(keyOf(hypervisor, id), cipher?.encrypt('reports', id, 0, bytes) ?? bytes)
        }),
      remove: (id) => change('remove', id, () => store.primary.reports.delete(keyOf(hypervisor, id))),
    }
  }

  start(events: SourceEvents): void {
    this.#events = events
    this.#connectAfter(this.#time.latencyMs())
  }

  index(): Promise<Index> {
    return this.#ask(() => {
      const { primary } = this.#store
      this.#announce()
      return {
        initialised: primary.isInitialised,
        digests: primary.index(this.#hypervisor),
        last: primary.last,
        isBehind: primary.behind !== undefined,
      }
    })
  }

  /** Redis may run commands of others between any two of a read. */
  async *load(ids: readonly string[]): AsyncIterable<Loaded> {
    const store = this.#store
    const entries = new Map<string, Entry | undefined>()
    const removed = new Map<string, number>()
    const reads = ids.flatMap((id) => {
      const readTombstone = () => {
        const tombstone = store.primary.tombstones.get(id)
        if (tombstone !== undefined) removed.set(id, tombstone.order)
      }
      return [readTombstone, () => void entries.set(id, store.primary.entries.get(id)), readTombstone]
    })
    const first = this.#time.dice.below(reads.length + 1)
    for (const part of [reads.slice(0, first), reads.slice(first)])
      if (part.length > 0)
        await this.#ask(() => {
          for (const read of part) read()
        })
    for (const id of ids) {
      const entry = entries.get(id)
      if (entry === undefined) {
        yield { kind: removed.has(id) ? 'removed' : 'absent', id, order: removed.get(id) }
        continue
      }
      const { record, userData } = entry
      const digest = digestOf(entry)
      const stored = await readStored(id, record, userData, store.cipher, new TurnBudget())
      if (stored.kind !== 'record') yield { id, digest, ...stored }
      else yield { id, digest, ...stored, userDataSha256: stored.userData && sha256(stored.userData) }
    }
  }

  announce(): void {
    this.#ask(() => this.#announce()).catch(() => undefined)
  }

  noteOrder(order: number): void {
    this.known = Math.max(this.known, order)
  }

  reportBehind(): Promise<void> {
    return this.#ask(() => {
      this.#store.primary.behind ??= this.known
    })
  }

  owner(network: string, address: string): Promise<string | undefined> {
    return this.#ask(() => this.#store.primary.owner(network, address))
  }

  async stop(): Promise<void> {
    this.#events = undefined
    this.#session?.end('stopping')
    await Promise.resolve()
  }

  /** The script gives later orders only. */
  #announce(): void {
    this.#store.primary.announced.set(this.#hypervisor, this.known)
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
        check: () => this.#check(session),
        end: (reason) => this.#end(session, reason),
        sentAtMs: 0,
        answeredAtMs: 0,
        noticedAtMs: 0,
      }
      this.#retryMs = 500
      this.#session = session
      this.#store.sessions.add(session)
      this.announce()
      events.connected()
    })
  }

  #check(session: Session): void {
    const { primary, sessions } = this.#store
    const isOpen = sessions.has(session) && this.#store.isReachable(this.#hypervisor)
    if (isOpen && primary.last < this.known) this.#events?.replaced()
  }

  #end(session: Session, reason: string): void {
    if (!this.#store.sessions.has(session)) return
    this.#store.sessions.delete(session)
    const { dice } = this.#time
    const ended = () => {
      this.#session = undefined
      const failed = [...this.#pending]
      this.#pending.clear()
      const isFirst = dice.chance(0.5)
      if (isFirst) this.#events?.disconnected(reason)
      for (const fail of failed) fail(new Error('the connection is closed'))
      if (!isFirst) this.#events?.disconnected(reason)
      this.#connectAfter(200 + dice.below(1_500))
    }
    this.#time.after(dice.below(3), ended, session.of)
  }

  /** Runs commands when they arrive at the store. Rejects if the connection ends before the answer arrives. */
  #ask<T>(read: () => T): Promise<T> {
    const [time, store, session] = [this.#time, this.#store, this.#session]
    if (session === undefined) return Promise.reject(new Error('there is no connection'))
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    this.#pending.add(reject)
    session.sentAtMs = Math.max(session.sentAtMs, time.nowMs + time.latencyMs())
    time.later(session.sentAtMs - time.nowMs, () => {
      if (!store.isReachable(this.#hypervisor)) return // lost with the connection
      store.expire()
      const answer = Promise.try(read)
      answer.catch(() => undefined) // it may be lost
      session.answeredAtMs = Math.max(session.answeredAtMs, time.nowMs + time.latencyMs())
      const receive = () => {
        if (!store.sessions.has(session) || !store.isReachable(this.#hypervisor)) return
        this.#pending.delete(reject)
        resolve(answer)
      }
      time.after(session.answeredAtMs - time.nowMs, receive, session.of)
    })
    return promise
  }
}
