/**
 * When is a refusal worth a line?
 *
 * A guest that is refused asks again, often for minutes. The first refusal of an address for a reason is told at once; further ones are counted,
 * and told with the next line a minute later. However many addresses appear, what is remembered is bounded. Connections that are dropped
 * are told so for each listener.
 */
import type { Logger } from 'pino'
import { isOrdinary, type Refusal } from './refusals.ts'
import { sourceOf } from './share.ts'

const QUIET_MS = 60_000
const MAX_ADDRESSES = 256

/** Warns of refused addresses and dropped connections, throttled. `now` gives milliseconds that only grow. */
export class RefusalLog {
  readonly #log: Logger
  readonly #now: () => number
  readonly #health = new Map<string, { atMs: number, leftOut: number }>()

  constructor(log: Logger, now: () => number) {
    this.#log = log
    this.#now = now
  }

  /** A request from `address`, of that instance where it is known, was refused. */
  refused(network: string, address: string, instance: string | undefined, reason: Refusal): void {
    if (isOrdinary(reason)) return
    const now = this.#now()
    let key = `${network} ${instance ?? sourceOf(address)} ${reason}`
    if (!this.#health.has(key) && this.#health.size >= MAX_ADDRESSES) this.#forgetQuiet(now)
    if (!this.#health.has(key) && this.#health.size >= MAX_ADDRESSES) key = 'others'
    this.#tell(key, now, { instance, network, address, reason }, 'request refused')
  }

  /** A connection was closed unanswered, since its listener holds as many as it may. */
  dropped(network: string, connections: number): void {
    this.#tell(`${network} connections`, this.#now(), { network, connections }, 'connections dropped: this listener holds as many as its share of file descriptors')
  }

  #tell(key: string, now: number, facts: object, message: string): void {
    const told = this.#health.get(key)
    if (told !== undefined && now - told.atMs < QUIET_MS) {
      told.leftOut += 1
      return
    }
    this.#health.set(key, { atMs: now, leftOut: 0 })
    this.#log.warn({ ...facts, leftOut: told?.leftOut ?? 0 }, message)
  }

  #forgetQuiet(now: number): void {
    for (const [key, { atMs }] of this.#health) {
      if (now - atMs >= QUIET_MS) this.#health.delete(key)
    }
  }
}
