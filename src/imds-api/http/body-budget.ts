/**
 * Bounds the memory and the time that bodies of requests take: the bytes that are held until their responses are sent,
 * for each owner and in all, and the parsing of long bodies, one after another, in turns by owner.
 *
 * Beyond the bound of all, the longest idle body of the owner with the most goes first. So unfinished bodies keep no
 * others out.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { FairQueue } from '../../limits/fair-queue.ts'
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
/** A body of which nothing has arrived for so long is idle, in ms. */
const IDLE_MS = 1_000
/** An owner can have five of the longest bodies (3.06 MiB) at once. */
export const BODY_BUDGET_LIMITS: BodyBudgetLimits = { owner: 16 * MIB, long: 64 * MIB, all: 128 * MIB }

/**
 * The body of a request. `owner`: an account, a user without one, or an address. `onCut` is called if it has to make
 * room before it is whole.
 */
export interface HeldBody {
  readonly owner: string
  readonly onCut: (refusal: Refusal) => void
  bytes: number
  isWhole: boolean
  arrivedMs: number
}

interface Owner {
  /** In the order in which bytes have arrived for them. */
  readonly bodies: Set<HeldBody>
  bytes: number
}

export class BodyBudget {
  readonly #limits: BodyBudgetLimits
  readonly #now: () => number
  readonly #owners = new Map<string, Owner>()
  #all = 0
  readonly #turns = new FairQueue({ all: { atOnce: 1 } })

  /** `now`: milliseconds of a monotonic clock. */
  constructor(limits: BodyBudgetLimits, now: () => number) {
    this.#limits = limits
    this.#now = now
  }

  begin(owner: string, onCut: HeldBody['onCut']): HeldBody {
    return { owner, onCut, bytes: 0, isWhole: false, arrivedMs: this.#now() }
  }

  /** Takes bytes for a body. `isLong`: it has more bytes than most routes allow. Refused beyond a bound. */
  take(body: HeldBody, bytes: number, isLong: boolean): Refusal | undefined {
    body.arrivedMs = this.#now()
    const own = this.#owners.get(body.owner) ?? { bodies: new Set(), bytes: 0 }
    if (own.bytes + bytes > this.#limits.owner)
      return shed(
        'bodies',
        `the bodies of your other requests are too long: together they may have ${this.#limits.owner} bytes; ` +
          'try again',
      )
    while (this.#all + bytes > (isLong ? this.#limits.long : this.#limits.all)) {
      const cut = this.#dispensable(own.bytes + bytes)
      if (cut === undefined) return shed('bodies', 'other requests have too long bodies at present: try again')
      this.release(cut)
      cut.onCut(shed('bodies', 'the body did not arrive in time, and others need its room: try again'))
    }
    this.#owners.set(body.owner, own)
    own.bodies.delete(body)
    own.bodies.add(body)
    own.bytes += bytes
    body.bytes += bytes
    this.#all += bytes
    return undefined
  }

  /** Returns the bytes of a body. */
  release(body: HeldBody): void {
    const own = this.#owners.get(body.owner)
    if (own?.bodies.delete(body) !== true) return
    own.bytes -= body.bytes
    if (own.bodies.size === 0) this.#owners.delete(body.owner)
    this.#all -= body.bytes
    body.bytes = 0
  }

  /** Runs a task after those before it, in a later turn of the event loop. Owners take turns. */
  async inTurn<T>(owner: string, task: () => T | Promise<T>): Promise<T | undefined> {
    return this.#turns.run({ key: owner }, () => nextTurn().then(task))
  }

  /** What makes room for a body of an owner with `bytes`: an unfinished body that is idle, or whose owner has more. */
  #dispensable(bytes: number): HeldBody | undefined {
    const idleSinceMs = this.#now() - IDLE_MS
    const largestFirst = [...this.#owners.values()].sort((a, b) => b.bytes - a.bytes)
    for (const own of largestFirst)
      for (const body of own.bodies)
        if (!body.isWhole && (own.bytes > bytes || body.arrivedMs <= idleSinceMs)) return body
    return undefined
  }
}
