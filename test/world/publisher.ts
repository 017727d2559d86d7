/**
 * The publishers' world: two processes of imds-api with the real publisher and the real changes, on a real PostgreSQL
 * and a simulated store (publisher-store.ts). A process may be killed, and a connection may end, between any two
 * statements, and before or after the server has executed one.
 *
 * Each statement is sent at a simulated time, and its result is given to the process at a later one. Between two steps
 * no statement runs: each has ended, or waits for a lock of a transaction that waits for its process. So the order of
 * all statements comes from the seed. PostgreSQL's now() is the simulated time (a function in front of pg_catalog).
 */
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as realTimeout } from 'node:timers' // time.ts does not replace this one
import { Kysely, PostgresDialect, type Selectable } from 'kysely'
import pg from 'pg'
import type { ComputeMode } from '../../src/imds-api/changes/actions.ts'
import { createServer } from '../../src/imds-api/changes/create-server.ts'
import { enqueueAllServers } from '../../src/imds-api/changes/rebuild.ts'
import type { Tables } from '../../src/imds-api/database/tables.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { Refusal } from '../../src/imds-api/model/refusal.ts'
import { compareStore } from '../../src/imds-api/publish/compare.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { databaseAt, startSharedPostgres } from '../support/programs/shared-postgres.ts'
import type { Dice } from '../fuzz/dice.ts'
import { choose, NEW_SERVER } from './publisher-events.ts'
import { configOf, connectTo, Life, type Connection } from './publisher-process.ts'
import { Store } from './publisher-store.ts'
import { play, type Chosen, type Eventful, type RunSeed } from './run.ts'
import { Time, turn } from './time.ts'

/** How many things happen in a seed: few of them, in most seeds, because a quiet world is checked more. */
const EVENTS = [12, 12, 60] as const
const NAMES = ['a', 'b'] as const
/** A statement that has not ended after so long may wait for a lock. Longer than deadlock_timeout. */
const LOCK_MS = 3
/** By then everything is published, also what is tried again after a minute. */
const CALM_MS = 180_000

type ServerColumns = 'id' | 'account_id' | 'revision' | 'status' | 'hypervisor' | 'migrating_to' | 'publish_fault'
/** A server as the database has it, and the history of the store there. `waits`: to be published. */
export type ServerRow = Pick<Selectable<Tables['servers']>, ServerColumns> & {
  readonly is_published: boolean
  readonly waits: boolean
  readonly store_history: string | null
}
const SERVERS = `
  select id, account_id, revision, status, hypervisor, migrating_to, publish_fault,
    is_published,
    exists (select from outbox where server_id = servers.id) as waits, (select store_history from region)
  from servers order by id`
/** Waits until they are gone. */
const TERMINATE = 'select pg_terminate_backend(pid, 5000) from unnest($1::int[]) as pid'
const LOCKED = 'select pid from unnest($1::int[]) as pid where cardinality(pg_blocking_pids(pid)) > 0'

/** A statement that was sent. `settle`: gives its outcome to its process. */
interface Asked {
  readonly of: Life
  readonly connection: Connection | undefined
  readonly ended: Promise<void>
  isEnded: boolean
  readonly settle: () => void
}

export class PublisherWorld implements Eventful {
  readonly time: Time
  readonly store: Store
  readonly url: string
  readonly compute: ComputeMode
  readonly lives = new Map<string, Life>()
  servers: readonly ServerRow[] = []
  /** Servers whose records an operator has sealed. */
  readonly sealed = new Set<string>()
  readonly #monitor: pg.Client
  readonly #batchSize: number
  readonly #asked = new Set<Asked>()
  readonly #terminated: number[] = []
  readonly #putting = new Map<string, Life>()
  #hasRun = false
  #hasCommitted = true
  #clockMs = -1

  constructor(seed: number, url: string, monitor: pg.Client) {
    this.time = new Time(seed)
    this.store = new Store(this.time)
    this.url = url
    this.#monitor = monitor
    this.compute = seed % 2 === 0 ? 'none' : 'reported'
    this.#batchSize = [1, 3, 50][seed % 5] ?? 3
    for (const name of NAMES) this.start(name)
  }

  pauseMs(dice: Dice): number {
    return dice.chance(0.6) ? dice.below(100) : dice.below(1_000)
  }

  choose(dice: Dice): Chosen {
    return choose(this, dice)
  }

  start(name: string): void {
    const life = new Life(this, name, this.#batchSize)
    this.lives.set(name, life)
    this.time.as(life, () => life.publisher.start())
  }

  /** Executes a statement later, and gives its result to the process later still. */
  ask<T>(of: Life, words: string, act: () => Promise<T>, on?: Connection): Promise<T> {
    const { promise, resolve } = Promise.withResolvers<T>()
    const send = () => {
      this.time.note(`${of.name}: ${words}`)
      this.#hasRun = true
      const terminated = () => Promise.reject<T>(new Error('Connection terminated'))
      const outcome = on?.isCut === true ? terminated() : act()
      const settle = () => resolve(on?.isCut === true ? terminated() : outcome)
      const end = () => {
        asked.isEnded = true
      }
      const asked: Asked = { of, connection: on, ended: outcome.then(end, end), isEnded: false, settle }
      this.#asked.add(asked)
    }
    this.time.after(this.store.latencyMs(of), send, of)
    return promise
  }

  async setClock(): Promise<void> {
    if (this.#clockMs === this.time.nowMs) return
    this.#clockMs = this.time.nowMs
    await this.#monitor.query('update world.clock set at = to_timestamp($1)', [this.time.wallMs() / 1_000])
  }

  committed(notifies: boolean): void {
    this.#hasCommitted = true
    if (!notifies) return
    for (const life of this.lives.values()) {
      if (!life.isAlive || this.time.dice.chance(0.2)) continue // lost
      this.time.after(this.store.latencyMs(life), () => life.listener?.emit('notification', { payload: '' }), life)
    }
  }

  kill(life: Life): void {
    if (!life.isAlive) return
    life.isAlive = false
    for (const asked of this.#asked) if (asked.of === life) this.#asked.delete(asked)
    this.#terminate(life.connections)
    this.time.later(this.time.dice.below(3_000), () => {
      this.time.note(`${life.name} starts`)
      this.start(life.name)
    })
  }

  /** PostgreSQL ends connections of a process that lives: it was suspended, or the network is broken. */
  cut(life: Life): void {
    for (const [id, by] of this.#putting) if (by === life) this.#putting.delete(id)
    this.#terminate(life.connections.filter(({ isCut }) => !isCut && this.time.dice.chance(0.7)))
    life.listener?.emit('end')
    life.listener = undefined
  }

  #terminate(connections: readonly Connection[]): void {
    for (const connection of connections) {
      connection.isCut = true
      this.#terminated.push(connection.pid)
    }
    this.#hasRun = true
  }

  /** A process puts a server, until it calls the returned function. */
  puts(id: string, life: Life): () => void {
    const by = this.#putting.get(id)
    if (by?.isAlive === true)
      this.time.break(`no server is written twice at once: ${id} by ${by.name} and ${life.name}`)
    this.#putting.set(id, life)
    return () => {
      if (this.#putting.get(id) === life) this.#putting.delete(id)
    }
  }

  /** The promises that hold after each commit. */
  async #check(): Promise<void> {
    const before = new Map(this.servers.map((server) => [server.id, server]))
    this.servers = (await this.#monitor.query<ServerRow>(SERVERS)).rows
    const { entries, history } = this.store.primary
    for (const { id, revision, status, publish_fault: fault, waits, store_history: known } of this.servers) {
      const last = before.get(id)?.revision ?? 0
      if (revision < last) this.time.break(`a revision never goes back: ${id} from ${last} to ${revision}`)
      if (fault?.startsWith('taken: ') === true) this.time.break(`no server is taken for another: ${id} is ${fault}`)
      if (waits) continue
      if (fault !== null) this.time.break(`a server that does not wait has no fault: ${id} has ${fault}`)
      if (known !== history) continue // every server is published again once a process finds the primary
      const stored = entries.get(id)?.revision
      if (status === 'deleted' ? stored !== undefined : (stored ?? 0) < revision)
        this.time.break(`what does not wait is in the store: ${id}, ${status}, has ${String(stored)} there`)
    }
  }

  until(atMs: number, isDone?: () => boolean): Promise<void> {
    return this.time.until(atMs, () => this.#settle(), isDone)
  }

  /** Waits until each statement has ended, or waits for a lock. */
  async #settle(): Promise<void> {
    await turn()
    if (!this.#hasRun) return
    this.#hasRun = false
    if (this.#terminated.length > 0) await this.#monitor.query(TERMINATE, [this.#terminated.splice(0)])
    for (;;) {
      const open = [...this.#asked].filter(({ isEnded }) => !isEnded)
      if (open.length === 0) break
      const one = Promise.race(open.map(({ ended }) => ended.then(() => true)))
      const pause = new Promise<boolean>((resolve) => realTimeout(resolve, LOCK_MS, false))
      if (await Promise.race([one, pause])) continue
      const pids = open.flatMap(({ connection }) => connection?.pid ?? [])
      if (pids.length === open.length && (await this.#monitor.query(LOCKED, [pids])).rowCount === open.length) break
    }
    for (const asked of this.#asked) {
      if (!asked.isEnded) continue
      this.#asked.delete(asked)
      this.time.after(this.store.latencyMs(asked.of), asked.settle, asked.of)
    }
    if (!this.#hasCommitted) return
    this.#hasCommitted = false
    await this.#check()
  }

  /** Does something in a process. It may be refused, or fail with a connection. */
  run(life: Life, words: string, act: () => Promise<unknown>): void {
    life.changes += 1
    const end = (outcome: string) => {
      life.changes -= 1
      this.time.note(`${words}: ${outcome}`)
    }
    this.time.as(life, act).then(
      () => end('done'),
      (error: unknown) => {
        const { message } = error as Error
        end(message)
        if (!(error instanceof Refusal || /terminat|connection|OOM/i.test(message)))
          this.time.break(`a change is made or refused: ${words} fails: ${message}`)
      },
    )
  }

  /** Does something in a process, in a faultless world, and waits for it. */
  async #operate<T>(words: string, act: (life: Life) => Promise<T>): Promise<T | undefined> {
    const life = this.lives.get(NAMES[0])!
    const ended: T[] = []
    this.run(life, words, async () => ended.push(await act(life)))
    await this.until(this.time.nowMs + CALM_MS, () => ended.length > 0)
    if (ended.length === 0) this.time.break(`a quiet world answers: ${words} does not end`)
    return ended[0]
  }

  async #untilPublished(): Promise<void> {
    const lives = [...this.lives.values()]
    const isPublished = () =>
      this.servers.every(({ waits }) => !waits) &&
      lives.every(({ changes, publisher }) => changes === 0 && publisher.problem === undefined)
    await this.until(this.time.nowMs + CALM_MS, isPublished)
    for (const { id, publish_fault: fault } of this.servers.filter(({ waits }) => waits))
      this.time.break(`every server is published: ${id} waits (${fault ?? 'no fault'})`)
  }

  /** Ends all faults, and checks the promises of a quiet world. */
  async calm(): Promise<void> {
    const { time, store } = this
    time.note('all faults end')
    time.current = time.outside
    Object.assign(store, { onRemoval: undefined, losesAnswers: false, refusals: 0 })
    store.primary.isUp = true
    await this.until(time.nowMs + 7_000) // each process has started, and has checked the store
    await this.#untilPublished()
    const found = await this.#operate('compare the store', ({ db, store }) => compareStore(db, store))
    const differences = found?.differences.filter(({ server }) => !this.sealed.has(server)) ?? []
    if (differences.length > 0) this.time.break(`a quiet store equals the database: ${JSON.stringify(differences)}`)
    await this.#operate('rebuild', ({ db }) => inTransaction(db, (tx) => enqueueAllServers(tx, []))) // above the seals of operators
    await this.#untilPublished()
    const behind = await this.#operate('verify', async ({ db, store }) => {
      const { differences, others } = await compareStore(db, store)
      return [...differences, ...others].map((one) => JSON.stringify(one))
    })
    if (behind !== undefined && behind.length > 0)
      this.time.break(`a rebuilt store equals the database: ${behind.join('; ')}`)
  }
}

/** The world's schema in front of PostgreSQL's own: what the product calls now() is the simulated time. */
const CLOCK = `
  create schema world;
  create table world.clock (at timestamptz not null);
  insert into world.clock values (to_timestamp(0));
  create function world.now() returns timestamptz stable language sql as 'select at from world.clock';
  update address_pools set range = '10.240.0.0-10.240.0.15' where kind = 'private_ipv4';
  update region set database_id = '00000000-0000-0000-0000-000000000001'`
const SETTINGS = ['autovacuum = off', 'max_wal_size = 2048']

/** Starts PostgreSQL. Call it before the timers of this process are replaced. */
export async function startPublishers(): Promise<{ readonly run: RunSeed; readonly stop: () => Promise<void> }> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-world-'))
  chmodSync(directory, 0o711)
  const server = await startSharedPostgres(join(directory, 'postgres'))
  const regionUrl = databaseAt(server.url, 'region')
  const region = await connectTo(regionUrl)
  for (const setting of SETTINGS) await region.query(`alter system set ${setting}`)
  await region.query('select pg_reload_conf()')
  await region.query(CLOCK)
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool: new pg.Pool(configOf(regionUrl)) }) })
  for (const account of [ONE, ONE, TWO, TWO])
    await inTransaction(db, (tx) => createServer(tx, 'none', account, NEW_SERVER))
  await db.destroy()
  await region.end()
  const postgres = await connectTo(server.url)
  let runs = 0
  const run: RunSeed = async (seed, only) => {
    const name = `world_${runs++}`
    await postgres.query(`create database ${name} template region`)
    const url = databaseAt(server.url, name)
    const monitor = await connectTo(url)
    const ran = await play(new PublisherWorld(seed, url, monitor), seed, EVENTS[seed % 3]!, only)
    await monitor.end()
    await postgres.query(`drop database ${name} with (force)`)
    return ran
  }
  const stop = async () => {
    await postgres.end()
    await server.stop()
    rmSync(directory, { recursive: true })
  }
  return { run, stop }
}
