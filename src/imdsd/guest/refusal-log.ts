/**
 * Throttled log lines about refusals and dropped connections.
 *
 * A refused guest retries, often for minutes. The first refusal of a peer for a reason is logged at once; further ones
 * are counted, and the next line, at least a minute later, has their number. Dropped connections are logged in the same
 * way for each listener.
 *
 * Memory and the number of lines are bounded, however many peers there are. When an entry is forgotten before its next
 * line, its number is in the next line of another peer, as `leftOutOfOthers`. The entries are in a Map, not in an LRU
 * cache: evicting recent entries would let a flood of addresses write a line for each. When the map is full of recent
 * entries, all other peers share one.
 */
import type { Log, LogCode } from '../../runtime/log-codes.ts'
import { sourceOf } from '../../metadata/address.ts'
import { isOrdinary, type RefusalReason } from './refusals.ts'

/** The shortest time between two lines for one peer and reason. */
const QUIET_MS = 60_000
const MAX_ENTRIES = 256

/** Logs refusals and dropped connections. `now`: milliseconds of a monotonic clock. */
export class RefusalLog {
  readonly #log: Log
  readonly #now: () => number
  readonly #logged = new Map<string, { atMs: number; leftOut: number }>()
  /** What entries that were forgotten have left out. */
  #leftOutOfOthers = 0

  constructor(log: Log, now: () => number) {
    this.#log = log
    this.#now = now
  }

  /** Logs a refused request from `address`; `instance` is the owner of the address, if it is known. */
  logRefusal(network: string, address: string, instance: string | undefined, reason: RefusalReason): void {
    if (isOrdinary(reason)) return
    const now = this.#now()
    const key = this.#bounded(`${network} ${instance ?? sourceOf(address)} ${reason}`, now)
    this.#write('request-refused', key, now, { instance, network, address, reason }, 'request refused')
  }

  /** Logs a dropped connection: its listener already has `connections`, the most that it may have. */
  logDrop(network: string, connections: number): void {
    this.#write(
      'connections-dropped',
      `${network} connections`,
      this.#now(),
      { network, connections },
      'connections dropped: the listener has used up its share of the file descriptors; raise LimitNOFILE',
    )
  }

  /** The key of an entry. When the map is full, new peers share one key. */
  #bounded(key: string, now: number): string {
    if (!this.#logged.has(key) && this.#logged.size >= MAX_ENTRIES) this.#forgetQuiet(now)
    return this.#logged.has(key) || this.#logged.size < MAX_ENTRIES ? key : 'others'
  }

  #write(code: LogCode, key: string, now: number, facts: object, message: string): void {
    const last = this.#logged.get(key)
    if (last !== undefined && now - last.atMs < QUIET_MS) {
      last.leftOut += 1
      return
    }
    this.#logged.set(key, { atMs: now, leftOut: 0 })
    const leftOutOfOthers = this.#leftOutOfOthers
    this.#leftOutOfOthers = 0
    const all = { ...facts, leftOut: last?.leftOut ?? 0, ...(leftOutOfOthers > 0 && { leftOutOfOthers }) }
    this.#log.warn({ code, ...all }, message)
  }

  #forgetQuiet(now: number): void {
    for (const [key, { atMs, leftOut }] of this.#logged) {
      if (now - atMs < QUIET_MS) continue
      this.#logged.delete(key)
      this.#leftOutOfOthers += leftOut
    }
  }
}
