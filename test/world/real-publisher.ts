/**
 * The real publisher, on a simulated store. A process may get no answer to what was done. A request arrives also if its
 * process has been killed meanwhile, but never at another server than the one to which it was sent.
 */
import type { Backend, RecordChange } from '../../src/store/backend.ts'
import {
  buildEncryptingWriter,
  type EncryptedValues,
  type WriteOptions,
} from '../../src/store/crypto/encrypting-writer.ts'
import type { RecordCipher } from '../../src/store/crypto/record-cipher.ts'
import { readPublished } from '../../src/store/crypto/stored.ts'
import type { Fleet } from '../../src/store/fleet.ts'
import { publisherOn } from '../../src/store/publish.ts'
import { StoreUnavailable, type Publisher, type RemoveOptions } from '../../src/store/publisher.ts'
import * as script from '../../src/store/redis/script.ts'
import { parseBehind } from '../../src/store/order.ts'
import { digestOf, type Region } from './region.ts'
import type { Process, Time } from './time.ts'

/** A process that uses the store. Until `resumesAtMs` it is suspended: it sends nothing, and sees no answer. */
export interface StoreClient extends Process {
  resumesAtMs: number
}

/** A store that publishers write to. */
export interface PublishedStore {
  readonly time: Time
  /** Undefined: records are plain. */
  readonly cipher: RecordCipher | undefined
  readonly primary: Region
  /** Some answers are lost. */
  readonly losesAnswers: boolean
  /** How long a message takes between the store and a process. */
  latencyMs(of: StoreClient): number
  /** Runs the script for an instance. */
  run(args: script.ScriptArguments, id: string, on: Region): script.ScriptAnswer
  /** A process has removed an instance. */
  removed(by: StoreClient): void
}

/** What a process has sent to the store: for the checks. */
export interface StoreWatch {
  readonly note: (words: string) => void
  /** A put of an instance is on its way; the returned function is called when its process knows the outcome. */
  readonly puts: (id: string) => () => void
}

/** Builds the publisher of a process. */
export function buildPublisher(store: PublishedStore, of: StoreClient, watch: StoreWatch): Publisher {
  const { time, cipher } = store
  let connected = store.primary

  const ask = <T>(words: string, act: (server: Region) => T): Promise<T> => {
    const isFormer = connected !== store.primary
    if (!connected.isUp || (isFormer && time.dice.chance(0.05))) connected = store.primary
    const server = connected
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    time.later(store.latencyMs(of), () => {
      const answer = Promise.try(() => {
        if (!server.isUp) throw new StoreUnavailable('the connection is closed')
        const result = act(server)
        const isLost = store.losesAnswers && time.dice.chance(0.02)
        const shown = result === undefined ? 'done' : JSON.stringify(result).slice(0, 80)
        watch.note(`${words} on ${server.history}: ${shown}${isLost ? ', and the answer is lost' : ''}`)
        if (isLost) throw new StoreUnavailable('the connection is lost')
        return result
      })
      answer.catch((error: unknown) => watch.note(`the store does not ${words}: ${(error as Error).message}`))
      time.after(store.latencyMs(of), () => void answer.then(resolve, reject), of)
    })
    return promise
  }
  /** The last order that this process was told: the script gives later ones. */
  let floor = 0
  const run = async (words: string, id: string, args: script.ScriptArguments) => {
    const [answer, last] = await ask(words, (server) => {
      server.last = Math.max(server.last, floor)
      return [store.run(args, id, server), server.last] as const
    })
    floor = Math.max(floor, last)
    return answer
  }
  const values = (id: string) =>
    ask(`get ${id}`, ({ entries }) => {
      const entry = entries.get(id)
      return entry && { record: entry.record, userData: entry.userData, digest: digestOf(entry) }
    })

  const plain = {
    write: async (change: RecordChange) => {
      const { id, revision, sealedAt } = change.instance
      const isByOperator = sealedAt !== undefined // who seals at any time
      const end = change.dryRun || isByOperator ? undefined : watch.puts(id)
      try {
        const words = `${change.dryRun ? 'try to ' : ''}put ${id} revision ${revision}`
        return script.parsePut(await run(words, id, script.putArguments(change)))
      } finally {
        end?.()
      }
    },
    writeEncrypted: async (given: EncryptedValues, options: WriteOptions) => {
      const { id, revision } = given.instance
      const args = script.putEncryptedArguments(given, options)
      return script.parsePutEncrypted(await run(`put ${id} revision ${revision}`, id, args))
    },
    remove: async (id: string, revision: number | undefined, options: RemoveOptions) => {
      const verb = cipher === undefined ? 'remove' : 'remove-encrypted'
      const args = script.removeArguments(verb, id, revision, options)
      const answer = await run(`remove ${id} revision ${String(revision)}`, id, args)
      store.removed(of)
      return script.parseRemoved(answer)
    },
    convertToEncrypted: async (given: EncryptedValues, digest: string | undefined) => {
      const { id } = given.instance
      const args = ['encrypt', ...script.valueArguments(given), script.formatDigest(digest)]
      return script.parseEncrypted(await run(`encrypt ${id}`, id, args))
    },
    values,
  }
  const conversion = cipher && buildEncryptingWriter(cipher, plain as never, () => time.nowMs)
  const fleet: Partial<Fleet> = {
    state: () =>
      ask('state', ({ database, complete, history, last, behind }) => ({
        ...{ database, complete, history, last },
        behind: behind === undefined ? undefined : parseBehind(String(behind)),
      })),
    markBehind: (order) => ask('behind', (server) => void (server.behind = Math.max(order, server.behind ?? 0))),
    clearBehind: ({ order }) =>
      ask('not behind', (server) => void (server.behind = server.behind === order ? undefined : server.behind)),
    setDatabase: (database, replaces) =>
      ask('set the database', (server) => (server.database = replaces ? database : (server.database ?? database))),
    database: () => ask('database', (server) => server.database),
    numbers: () => Promise.resolve(new Map()),
    noteNumbers: () => Promise.resolve(),
    markComplete: (history) => ask(`complete ${history}`, (server) => void (server.complete = history)),
  }
  const backend: Partial<Backend> = {
    region: 'gb1',
    conversion,
    fleet: fleet as Fleet,
    transaction: (task) => task(conversion ?? plain),
    get: async (id) => readPublished(id, await values(id), cipher),
    initialise: async () => (await run('initialise', '', ['init']))[0] === 'initialised',
    list: () =>
      ask('list', ({ entries }) =>
        [...entries].map(([id, { revision, hypervisors, claims: addresses }]) => ({
          ...{ id, revision, hypervisors, addresses },
        })),
      ),
    tombstones: () =>
      ask('tombstones', (server) => [...server.tombstones].map(([id, { revision }]) => ({ id, revision }))),
    unannounced: () => Promise.resolve([]),
  }
  return publisherOn(backend as Backend, 16_384)
}
