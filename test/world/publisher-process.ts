/**
 * A process of imds-api in the publishers' world, with the real publisher. Its connections to PostgreSQL are real ones,
 * but the world decides when a statement is sent, and when the process gets the result.
 */
import { EventEmitter } from 'node:events'
import { Kysely, PostgresDialect, type PostgresPool } from 'kysely'
import pg, { TypeOverrides } from 'pg'
import type { Logger } from 'pino'
import { AccountChanges } from '../../src/imds-api/changes/account-changes.ts'
import { OUTBOX_CHANNEL } from '../../src/imds-api/database/outbox.ts'
import type { Tables } from '../../src/imds-api/database/tables.ts'
import type { Db } from '../../src/imds-api/database/transaction.ts'
import { DatabaseReport } from '../../src/imds-api/http/database-errors.ts'
import { OutboxPublisher } from '../../src/imds-api/publish/outbox-publisher.ts'
import { openOwnRegion } from '../../src/imds-api/publish/region-database.ts'
import type { Publisher } from '../../src/store/publisher.ts'
import { buildPublisher, type StoreClient } from './real-publisher.ts'
import type { PublisherWorld } from './publisher.ts'

const types = new TypeOverrides()
types.setTypeParser(pg.types.builtins.INT8, Number)

export async function connectTo(url: string): Promise<pg.Client> {
  const client = new pg.Client(configOf(url))
  client.on('error', () => undefined) // its query rejects
  await client.connect()
  return client
}

/** `DIRECTORY DATABASE`. */
export function configOf(url: string): pg.ClientConfig {
  const options = '-c search_path=world,pg_catalog,public -c deadlock_timeout=1 -c jit=off'
  return { connectionString: url, options, types }
}

/** A connection of a process, as Kysely uses one of node-postgres. `isCut`: it has ended without its process. */
export class Connection {
  readonly #world: PublisherWorld
  readonly #life: Life
  readonly client: pg.Client
  isCut = false
  #notifies = false

  constructor(world: PublisherWorld, life: Life, client: pg.Client) {
    this.#world = world
    this.#life = life
    this.client = client
  }

  get pid(): number {
    return (this.client as unknown as { readonly processID: number }).processID
  }

  query(query: string | { readonly text: string }, values: unknown[]): Promise<unknown> {
    const text = typeof query === 'string' ? query : query.text
    if (text === 'begin') this.#notifies = false
    if (values.includes(OUTBOX_CHANNEL)) this.#notifies = true
    const words = `${text.trim().replaceAll(/\s+/g, ' ').slice(0, 60)} ${JSON.stringify(values).slice(0, 60)}`
    const send = async () => {
      if (text.includes('now()')) await this.#world.setClock()
      const result = await this.client.query(query as string, values)
      if (text === 'commit') this.#world.committed(this.#notifies)
      return result
    }
    return this.#world.ask(this.#life, words, send, this)
  }

  release(isBroken: unknown): void {
    if (isBroken !== true && !this.isCut) this.#life.idle.push(this)
  }
}

/** A process of imds-api from its start to its end. */
export class Life implements StoreClient {
  isAlive = true
  resumesAtMs = 0
  readonly host = { wallOffsetMs: 0 }
  readonly name: string
  readonly db: Db
  readonly accounts: AccountChanges
  readonly store: Publisher
  readonly publisher: OutboxPublisher
  readonly connections: Connection[] = []
  readonly idle: Connection[] = []
  /** Its connection for notifications, while it listens. */
  listener: EventEmitter | undefined
  /** How many changes have not ended. */
  changes = 0

  constructor(world: PublisherWorld, name: string, batchSize: number) {
    this.name = name
    const connect = async () => {
      for (let idle = this.idle.pop(); idle !== undefined; idle = this.idle.pop()) if (!idle.isCut) return idle
      return world.ask(this, 'connects', async () => {
        const connection = new Connection(world, this, await connectTo(world.url))
        this.connections.push(connection)
        return connection
      })
    }
    const pool = { connect, end: () => Promise.resolve() } as unknown as PostgresPool
    this.db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
    this.accounts = new AccountChanges(this.db, 16)
    const note = (words: string) => world.time.note(`${name}: ${words}`)
    this.store = buildPublisher(world.store, this, { note, puts: (id) => world.puts(id, this) })
    const log = (fields: object, text: string) => note(`logs ${text} ${JSON.stringify(fields)}`)
    const logger = { debug: log, info: log, warn: log, error: log } as unknown as Logger
    this.publisher = new OutboxPublisher({
      db: this.db,
      connect: () => world.ask(this, 'connects to listen', () => Promise.resolve(this.#listen(world))),
      openStore: openOwnRegion(this.db, () => Promise.resolve(this.store), logger),
      batchSize,
      count: (outcome) => note(`counts ${outcome}`),
      countBatch: () => undefined,
      databaseReport: new DatabaseReport(logger),
      log: logger,
    })
  }

  /** A connection that listens, as the publisher uses it. */
  #listen(world: PublisherWorld): pg.Client {
    const client = Object.assign(new EventEmitter(), {
      query: () => world.ask(this, 'listens', () => Promise.resolve((this.listener = client)).then(() => undefined)),
      end: () => {
        this.listener = undefined
        client.emit('end')
        return Promise.resolve()
      },
    })
    return client as unknown as pg.Client
  }
}
