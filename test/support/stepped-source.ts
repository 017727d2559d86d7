/**
 * A store in memory whose requests wait until the test lets them be answered: one round trip at a time, in any order.
 */
import type { Index, Loaded, Source, SourceEvents } from '../../src/store/source.ts'

/** A request that the store was sent. */
export interface Request {
  readonly ids: readonly string[] | 'index' | 'owner'
  /** The store reads its data; `reply` sends what was read then. */
  readonly execute: () => void
  readonly reply: () => void
  readonly fail: () => void
}

/** A store under the control of a test. */
export class SteppedSource implements Source {
  readonly description = 'a stepped store'
  readonly requests: Request[] = []
  readonly records = new Map<string, Loaded>()
  /** Id -> digest, as the store's index has it. */
  readonly digests = new Map<string, string>()
  readonly owners = new Map<string, string>()
  initialised = true
  events!: SourceEvents
  /** How often each id was read. */
  readonly reads = new Map<string, number>()
  indexReads = 0

  start(events: SourceEvents): void {
    this.events = events
  }

  /** Puts a record and its digest, without a notice. */
  put(document: Record<string, unknown>): void {
    const { id, revision } = document as { id: string, revision: number }
    const digest = `${id} ${String(revision)}`
    this.records.set(id, { kind: 'record', id, digest, document, userData: null, userDataSha256: null })
    this.digests.set(id, digest)
  }

  /** Leaves a tombstone, without a notice. */
  remove(id: string): void {
    this.records.set(id, { kind: 'removed', id })
    this.digests.delete(id)
  }

  index(): Promise<Index> {
    this.indexReads += 1
    return this.#request('index', () => ({ initialised: this.initialised, digests: new Map(this.digests) }))
  }

  async* load(ids: readonly string[]): AsyncIterable<Loaded> {
    for (const id of ids) this.reads.set(id, (this.reads.get(id) ?? 0) + 1)
    yield* await this.#request(ids, () => ids.map((id) => this.records.get(id) ?? { kind: 'absent', id } as const))
  }

  owner(network: string, address: string): Promise<string | null> {
    return this.#request('owner', () => this.owners.get(`${network} ${address}`) ?? null)
  }

  async stop(): Promise<void> { /* nothing is open */ }

  /** The first request that waits and matches; undefined where the daemon sends none. */
  async next(matching: (request: Request) => boolean = () => true): Promise<Request | undefined> {
    for (let turn = 0; turn < 20; turn++) {
      await new Promise((resolve) => { setTimeout(resolve, 1) }) // whatever follows from the last answer, timers without a delay included
      const request = this.requests.find(matching)
      if (request !== undefined) return request
    }
    return undefined
  }

  /** Lets the first request that waits be answered. False where there is none. */
  async roundTrip(): Promise<boolean> {
    const request = await this.next()
    request?.execute()
    request?.reply()
    return request !== undefined
  }

  /** Answers until the daemon has no more to ask. */
  async drain(): Promise<void> {
    while (await this.roundTrip());
  }

  #request<T>(ids: Request['ids'], read: () => T): Promise<T> {
    const { promise, resolve, reject } = Promise.withResolvers<T>()
    let answer: T
    const done = (act: () => void) => () => {
      this.requests.splice(this.requests.indexOf(request), 1)
      act()
    }
    const request: Request = {
      ids,
      execute: () => { answer = read() },
      reply: done(() => { resolve(answer) }),
      fail: done(() => { reject(new Error('no answer')) }),
    }
    this.requests.push(request)
    return promise
  }
}
