/**
 * The store of the publishers' world: the model of publish.lua (region.ts) with the marks of a region, on a primary with
 * a replica that lags, and connections that break. Each life of a process has a backend of it.
 *
 * A request arrives after a while, also if its process has been killed meanwhile, but never at another server than the
 * one to which it was sent. A process may get no answer to what was done.
 */
import type { Backend, RecordChange, RecordWriter, Written } from '../../src/store/backend.ts'
import type { Fleet } from '../../src/store/fleet.ts'
import {
  StoreUnavailable,
  type Listed,
  type Published,
  type Removed,
  type RemoveOptions,
  type RemoveResult,
} from '../../src/store/publisher.ts'
import {
  parsePut,
  parseRemoved,
  putArguments,
  removeArguments,
  type ScriptAnswer,
  type ScriptArguments,
} from '../../src/store/redis/script.ts'
import { Region } from './region.ts'
import type { Process, Time } from './time.ts'

/** A server of Redis. `history`: its replication id. `database` and `complete`: as StoreState. */
interface Server {
  readonly history: string
  readonly region: Region
  database: string | undefined
  complete: string | undefined
  isUp: boolean
}
const emptyServer = (history: string): Server => ({
  ...{ history, region: new Region(), isUp: true },
  ...{ database: undefined, complete: undefined },
})

/** How long a message takes: mostly so little that only its place in the order matters. */
export function latencyOf({ dice, nowMs }: Time, { resumesAtMs }: { readonly resumesAtMs: number }): number {
  return Math.max(0, resumesAtMs - nowMs) + (dice.chance(0.9) ? 0.01 + dice.below(200) / 100 : dice.below(200))
}

export class Store {
  readonly time: Time
  primary = emptyServer('1')
  #replica = this.primary
  #servers = 1
  losesAnswers = true
  /** Refuses so many of the next writes, as when its memory is full. */
  refusals = 0

  constructor(time: Time) {
    this.time = time
  }

  replicate(): void {
    this.#replica = { ...this.primary, region: this.primary.region.copy() }
  }

  /**
   * The replica takes over, or an empty server. Those who are connected to the old one may still use it for a while.
   * Returns the instances that are other than before.
   */
  replacePrimary(by: 'the replica' | 'an empty server', overlapMs: number): string[] {
    const before = this.primary
    const history = String((this.#servers += 1))
    this.primary =
      by === 'the replica'
        ? { ...this.#replica, region: this.#replica.region.copy(), history, isUp: true }
        : emptyServer(history)
    this.time.after(overlapMs, () => (before.isUp = false), this.time.outside)
    const { region } = this.primary
    const all = [before.region, region].flatMap(({ entries, tombstones }) => [...entries.keys(), ...tombstones.keys()])
    return [...new Set(all)].filter((id) => before.region.entries.get(id)?.digest !== region.entries.get(id)?.digest)
  }
}

/** What a process has sent to the store: for the checks. */
export interface StoreWatch {
  readonly note: (words: string) => void
  /** A put of an instance is on its way; the returned function is called when its process knows the outcome. */
  readonly puts: (id: string) => () => void
  /** The put arrives. */
  readonly arrives: (id: string) => void
  /** An instance is removed. */
  readonly removes: () => void
  /** An instance is written to a server that is not the primary any more. */
  readonly misses: (id: string) => void
}

type StoreClient = Process & { readonly resumesAtMs: number }

export class ProcessBackend implements Backend, RecordWriter {
  readonly region = 'gb1'
  readonly conversion = undefined
  readonly noKeysReason = 'there are none'
  readonly #store: Store
  readonly #of: StoreClient
  readonly #watch: StoreWatch
  #server: Server

  constructor(store: Store, of: StoreClient, watch: StoreWatch) {
    this.#store = store
    this.#server = store.primary
    this.#of = of
    this.#watch = watch
  }

  readonly fleet = {
    state: () => this.#ask('the state', ({ database, complete, history }) => ({ database, complete, history })),
    setDatabase: async (database: string, replaces: boolean) => {
      await this.#ask('set the database', (server) => {
        if (replaces) server.database = database
        else server.database ??= database
      })
      return (await this.#ask('the database', (server) => server.database)) ?? database
    },
    database: () => this.#ask('the database', (server) => server.database),
    markComplete: (history: string) =>
      this.#ask(`complete ${history}`, (server) => {
        server.complete = history
      }),
  } as Pick<Fleet, 'state' | 'setDatabase' | 'database' | 'markComplete'> as Fleet

  transaction<T>(task: (writer: RecordWriter) => Promise<T>): Promise<T> {
    return task(this)
  }

  async write(change: RecordChange): Promise<Written> {
    const { id, revision } = change.instance
    const words = `put ${id} revision ${String(revision)}`
    if (change.dryRun) return parsePut(await this.#script(`try to ${words}`, id, putArguments(change)))
    const isSeal = change.instance.sealedAt !== undefined // by an operator, at any time
    const end = isSeal ? () => undefined : this.#watch.puts(id)
    try {
      return parsePut(await this.#script(words, id, putArguments(change), this.#watch.arrives))
    } finally {
      end()
    }
  }

  async remove(id: string, revision: number | undefined, options: RemoveOptions): Promise<RemoveResult> {
    const words = `remove ${id} revision ${String(revision)}`
    const args = removeArguments('remove', id, revision, options)
    return parseRemoved(await this.#script(words, id, args, this.#watch.removes))
  }

  get(id: string): Promise<Published | undefined> {
    return this.#ask(`get ${id}`, ({ region }) => {
      const entry = region.entries.get(id)
      return entry && { document: JSON.parse(entry.record.toString()) as unknown, userData: entry.userData }
    })
  }

  async initialise(): Promise<boolean> {
    return (await this.#script('initialise', '', ['init']))[0] === 'initialised'
  }

  list(): Promise<Listed[]> {
    return this.#ask('list', ({ region }) =>
      [...region.entries].map(([id, { revision, hypervisors, claims }]) => ({
        ...{ id, revision, hypervisors },
        addresses: claims,
      })),
    )
  }

  tombstones(): Promise<Removed[]> {
    return this.#ask('list tombstones', ({ region }) =>
      [...region.tombstones].map(([id, { revision }]) => ({ id, revision })),
    )
  }

  unannounced(): Promise<readonly string[]> {
    return Promise.resolve([])
  }

  readonly reportsOf = unused
  readonly hypervisors = unused
  readonly close = unused

  /** A dry run is one of a copy. */
  #script(
    words: string,
    id: string,
    args: ScriptArguments,
    arrives: (id: string) => void = ignore,
  ): Promise<ScriptAnswer> {
    const isDryRun = args[0] === 'dry-run'
    const run = (server: Server) => {
      const { region } = server
      if (!isDryRun && this.#store.refusals > 0) {
        this.#store.refusals -= 1
        throw new Error('OOM command not allowed')
      }
      const [on, own] = isDryRun ? [region.copy(), args.slice(1)] : [region, args]
      if (!isDryRun && server !== this.#store.primary) this.#watch.misses(id)
      arrives(id)
      return on.run(own, this.#store.time.nowMs, ignore)
    }
    return this.#ask(words, run)
  }

  #ask<T>(words: string, act: (server: Server) => T): Promise<T> {
    const [store, watch] = [this.#store, this.#watch]
    const { time } = store
    if (!this.#server.isUp) this.#server = store.primary
    const server = this.#server
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    const answer = (give: () => void) => {
      time.after(latencyOf(time, this.#of), give, this.#of)
    }
    const fail = (error: unknown) => {
      watch.note(`the store does not ${words}: ${(error as Error).message}`)
      answer(() => {
        reject(error)
      })
    }
    const arrive = () => {
      if (!server.isUp) {
        fail(new StoreUnavailable('the connection is closed'))
        return
      }
      try {
        const result = act(server)
        const isLost = store.losesAnswers && time.dice.chance(0.02)
        const shown = result === undefined ? 'done' : JSON.stringify(result).slice(0, 80)
        watch.note(`${words}: ${shown}${isLost ? ', and the answer is lost' : ''}`)
        answer(() => {
          if (isLost) reject(new StoreUnavailable('the connection is lost'))
          else resolve(result)
        })
      } catch (error) {
        fail(error)
      }
    }
    time.after(latencyOf(time, this.#of), arrive, time.outside)
    return promise
  }
}

function ignore(): void {
  // nobody listens
}

function unused(): never {
  throw new Error('the world does not use this')
}
