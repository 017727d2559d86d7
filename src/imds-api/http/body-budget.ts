/**
 * Bounds the memory and the time that bodies of requests take: the bytes that are held until their responses are sent,
 * for each owner and in all, and the parsing of long bodies, one after another.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import pLimit from 'p-limit'
import { shed, type Refusal } from '../model/refusal.ts'

const MIB = 2 ** 20

/**
 * The most bytes of bodies. `all` is above `long`, so requests with short bodies are served while long bodies use up
 * their part.
 */
export interface BodyBudgetLimits {
  readonly owner: number
  readonly long: number
  readonly all: number
}
/** An owner can have two of the longest bodies (7 MiB) at once. */
export const BODY_BUDGET_LIMITS: BodyBudgetLimits = { owner: 16 * MIB, long: 64 * MIB, all: 128 * MIB }

/** The bodies of all requests to a server. An owner is an account, a user, or an address. */
export class BodyBudget {
  readonly #limits: BodyBudgetLimits
  readonly #owners = new Map<string, number>()
  #all = 0
  readonly #limit = pLimit(1)

  constructor(limits: BodyBudgetLimits) {
    this.#limits = limits
  }

  /**
   * Takes bytes for a body of an owner. `isLong`: the body has more bytes than most routes allow. Refused beyond a
   * bound.
   */
  take(owner: string, bytes: number, isLong: boolean): Refusal | undefined {
    const used = (this.#owners.get(owner) ?? 0) + bytes
    if (used > this.#limits.owner) {
      return shed(
        'bodies',
        `the bodies of your other requests are too long: together they may have ${this.#limits.owner} bytes; ` +
          'try again',
      )
    }
    if (this.#all + bytes > (isLong ? this.#limits.long : this.#limits.all))
      return shed('bodies', 'other requests have too long bodies at present: try again')
    this.#all += bytes
    this.#owners.set(owner, used)
    return undefined
  }

  /** Returns bytes that were taken. */
  release(owner: string, bytes: number): void {
    const left = (this.#owners.get(owner) ?? 0) - bytes
    if (left > 0) this.#owners.set(owner, left)
    else this.#owners.delete(owner)
    this.#all -= bytes
  }

  /** Runs a task after those before it, in a later turn of the event loop. */
  inTurn<T>(task: () => Promise<T>): Promise<T> {
    return this.#limit(() => nextTurn().then(task))
  }
}
