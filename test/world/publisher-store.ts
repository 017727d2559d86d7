/**
 * The store of the publishers' world: the model of publish.lua (region.ts) with the marks of a region, on a primary with
 * a replica that lags, and connections that break.
 *
 * A request arrives after a while, also if its process has been killed meanwhile, but never at another server than the
 * one to which it was sent. A process may get no answer to what was done.
 */
import type { Backend, RecordChange } from '../../src/store/backend.ts'
import type { Fleet } from '../../src/store/fleet.ts'
import { StorePublisher } from '../../src/store/publish.ts'
import { StoreUnavailable, type RemoveOptions } from '../../src/store/publisher.ts'
import * as script from '../../src/store/redis/script.ts'
import { Region } from './region.ts'
import type { Process, Time } from './time.ts'

/** A server of Redis. `history`: its replication id. `database` and `complete`: as StoreState. */
interface Server {
  readonly history: string
  readonly region: Region
  database?: string
  complete?: string
  isUp: boolean
}

/** A process that uses the store. Until `resumesAtMs` it is suspended: it sends nothing, and sees no answer. */
export interface StoreClient extends Process {
  resumesAtMs: number
}

/** How long a message takes: mostly so little that only its place in the order matters. */
export function latencyOf({ dice, nowMs }: Time, { resumesAtMs }: StoreClient): number {
  return Math.max(0, resumesAtMs - nowMs) + (dice.chance(0.9) ? 0.01 + dice.below(200) / 100 : dice.below(200))
}

export class Store {
  readonly time: Time
  primary: Server = { history: '1', region: new Region(), isUp: true }
  #replica = this.primary
  #servers = 1
  losesAnswers = true
  /** Refuses so many of the next writes, as when its memory is full. */
  refusals = 0
  /** Called once, when a process has removed a server. */
  onRemoval: ((by: StoreClient) => void) | undefined

  constructor(time: Time) {
    this.time = time
  }

  replicate(): void {
    this.#replica = { ...this.primary, region: this.primary.region.copy() }
  }

  /** The replica takes over, or an empty server. Who is connected to the old one may still use it for a while. */
  replacePrimary(by: 'the replica' | 'an empty server', overlapMs: number): void {
    const before = this.primary
    const { region, ...marks } = this.#replica
    const data = by === 'the replica' ? { ...marks, region: region.copy() } : { region: new Region() }
    this.primary = { ...data, history: String((this.#servers += 1)), isUp: true }
    this.time.later(overlapMs, () => (before.isUp = false))
  }
}

/** What a process has sent to the store: for the checks. */
export interface StoreWatch {
  readonly note: (words: string) => void
  /** A put of an instance is on its way; the returned function is called when its process knows the outcome. */
  readonly puts: (id: string) => () => void
}

/** Builds the publisher of a process. */
export function buildPublisher(store: Store, of: StoreClient, watch: StoreWatch): StorePublisher {
  const { time } = store
  let connected = store.primary

  const ask = <T>(words: string, act: (server: Server) => T): Promise<T> => {
    const isFormer = connected !== store.primary
    if (!connected.isUp || (isFormer && time.dice.chance(0.05))) connected = store.primary
    const server = connected
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    time.later(latencyOf(time, of), () => {
      const answer = Promise.try(() => {
        if (!server.isUp) throw new StoreUnavailable('the connection is closed')
        const result = act(server)
        const isLost = store.losesAnswers && time.dice.chance(0.02)
        const shown = result === undefined ? 'done' : JSON.stringify(result).slice(0, 80)
        watch.note(`${words} on ${server.history}: ${shown}${isLost ? ', and the answer is lost' : ''}`)
        if (isLost) throw new StoreUnavailable('the connection is lost')
        return result
      })
      answer.catch((error: unknown) => {
        watch.note(`the store does not ${words}: ${(error as Error).message}`)
      })
      time.after(latencyOf(time, of), () => void answer.then(resolve, reject), of)
    })
    return promise
  }
  const run = (words: string, args: script.ScriptArguments) =>
    ask(words, ({ region }) => {
      if (args[0] === 'dry-run') return region.copy().run(args.slice(1), time.nowMs, nobody)
      if (store.refusals > 0) {
        store.refusals -= 1
        throw new Error('OOM command not allowed')
      }
      return region.run(args, time.nowMs, nobody)
    })

  const writer = {
    write: async (change: RecordChange) => {
      const { id, revision, sealedAt } = change.instance
      const isByOperator = sealedAt !== undefined // who seals at any time
      const end = change.dryRun || isByOperator ? nobody : watch.puts(id)
      try {
        const words = `${change.dryRun ? 'try to ' : ''}put ${id} revision ${String(revision)}`
        return script.parsePut(await run(words, script.putArguments(change)))
      } finally {
        end()
      }
    },
    remove: async (id: string, revision: number | undefined, options: RemoveOptions) => {
      const words = `remove ${id} revision ${String(revision)}`
      const answer = await run(words, script.removeArguments('remove', id, revision, options))
      store.onRemoval?.(of)
      store.onRemoval = undefined
      return script.parseRemoved(answer)
    },
  }
  const fleet: Partial<Fleet> = {
    state: () => ask('state', ({ database, complete, history }) => ({ database, complete, history })),
    setDatabase: (database, replaces) =>
      ask('set the database', (server) => (server.database = replaces ? database : (server.database ?? database))),
    database: () => ask('database', (server) => server.database),
    markComplete: (history) => ask(`complete ${history}`, (server) => void (server.complete = history)),
  }
  const backend: Partial<Backend> = {
    region: 'gb1',
    conversion: undefined,
    fleet: fleet as Fleet,
    transaction: (task) => task(writer),
    get: (id) =>
      ask(`get ${id}`, ({ region }) => {
        const entry = region.entries.get(id)
        return entry && { document: JSON.parse(entry.record.toString()) as unknown, userData: entry.userData }
      }),
    initialise: async () => (await run('initialise', ['init']))[0] === 'initialised',
    list: () =>
      ask('list', ({ region }) =>
        [...region.entries].map(([id, { revision, hypervisors, claims: addresses }]) => ({
          ...{ id, revision, hypervisors, addresses },
        })),
      ),
    tombstones: () =>
      ask('tombstones', ({ region }) => [...region.tombstones].map(([id, { revision }]) => ({ id, revision }))),
    unannounced: () => Promise.resolve([]),
  }
  return new StorePublisher(backend as Backend, 16_384)
}

function nobody(): void {
  // is told
}
