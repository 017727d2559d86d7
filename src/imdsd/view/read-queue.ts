/**
 * The ids whose records sync has to read: those of unknown peers, those that notices named, and those of the resync in
 * progress.
 *
 * A batch takes ids from the three kinds in turn, so each kind gets a third of it, however many ids the others have.
 * Within a kind the order is first come, first served. An id that is named again while it waits is read once.
 */
import type { Origin } from './plan.ts'

/** Ids to read together. `waiting` has the promise of each id that a lookup waits for. */
export interface Batch {
  readonly origins: Map<string, Origin>
  readonly waiting: ReadonlyMap<string, PromiseWithResolvers<void>>
}

/** The three kinds of work, without duplicates. */
export class ReadQueue {
  /** Ids that own the addresses of unknown peers, and the promises that wait for each. */
  readonly #lookUps = new Map<string, PromiseWithResolvers<void>>()
  /** Ids that notices named. */
  readonly #noticed = new Set<string>()
  /** What the resync in progress has yet to read; undefined when there is none. */
  #indexed: Set<string> | undefined

  get isEmpty(): boolean {
    return this.#indexed === undefined && this.#noticed.size === 0 && this.#lookUps.size === 0
  }

  /** True while a resync is in progress. It is complete when everything that it queued has been read. */
  get isResyncing(): boolean {
    return this.#indexed !== undefined
  }

  get isResyncRead(): boolean {
    return this.#indexed?.size === 0
  }

  /** Queues an id whose record may have changed. */
  addNoticed(id: string): void {
    this.#noticed.add(id)
  }

  /**
   * Queues an id for a lookup. The promise resolves once it has been read, and rejects when the store does not answer.
   */
  addLookUp(id: string): Promise<void> {
    const waiting: PromiseWithResolvers<void> = this.#lookUps.get(id) ?? Promise.withResolvers()
    this.#lookUps.set(id, waiting)
    return waiting.promise
  }

  beginResync(): void {
    this.#indexed = new Set()
  }

  /** Queues an id of the resync in progress. */
  addIndexed(id: string): void {
    this.#indexed?.add(id)
  }

  endResync(): void {
    this.#indexed = undefined
  }

  /** Takes up to `size` ids, each with the strongest reason to read it. */
  take(size: number): Batch {
    const origins = new Map<string, Origin>()
    const waiting = new Map<string, PromiseWithResolvers<void>>()
    const kinds = [this.#lookUps.keys(), this.#noticed.values(), (this.#indexed ?? []).values()]
    for (let n = 0, ended = 0; origins.size < size && ended < kinds.length; n++) {
      const { value: id, done } = kinds[n % kinds.length]!.next()
      ended = done === true ? ended + 1 : 0
      if (id === undefined) continue
      const lookUp = this.#lookUps.get(id)
      if (lookUp !== undefined) waiting.set(id, lookUp)
      this.#lookUps.delete(id)
      const isNoticed = this.#noticed.delete(id)
      origins.set(id, this.#indexed?.delete(id) === true ? 'index' : isNoticed ? 'notice' : 'peer')
    }
    return { origins, waiting }
  }

  /** Queues again what could not be read. Lookups are rejected: their peers ask again. */
  putBack({ origins, waiting }: Batch, error: unknown): void {
    for (const [id, origin] of origins) {
      if (origin === 'index') this.#indexed?.add(id)
      else if (origin === 'notice') this.#noticed.add(id)
    }
    for (const { reject } of waiting.values()) reject(error)
  }
}
