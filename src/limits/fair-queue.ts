/**
 * A queue for each key, such as an account. A key has few tasks at once; others wait. Urgent ones go first, but every
 * second turn is for the others while some wait. The callers of a key take turns among its urgent tasks and among the
 * others, each with its oldest one, so a caller with many tasks delays the others by one each.
 *
 * What waits has a cost, and a key has a limit of it. Beyond the limit, the newest task of the caller that costs the
 * most is refused. So a caller never uses the room of one that uses less. Urgent tasks have the same limit again, for
 * themselves.
 *
 * All keys together may have a bound too. They take turns then, so the wait of a key does not depend on how much of the
 * others waits, and some turns are only for keys of which nothing runs. If this bound makes all tasks of a key wait long for some time, there is more work than turns: those
 * that have waited long are refused at their turn, so that those which are started have not.
 */

/**
 * `atOnce`: tasks of a key that run at once. `waitingMax`: the most cost that waits for a key. `timeoutMs`: a task that
 * waits longer is refused.
 */
export interface FairQueueLimits {
  readonly atOnce: number
  readonly waitingMax: number
  readonly timeoutMs: number
  readonly all?: OverallLimits
}
/**
 * `atOnce`: tasks of all keys that run at once. `shared`: while so many run, only a key of which none runs gets a turn.
 * `waitMs`: a longer wait is long. `overloadMs`: how long only such tasks of a key are started before they are refused.
 */
export interface OverallLimits {
  readonly atOnce: number
  readonly shared: number
  readonly overloadMs: number
  readonly waitMs: number
}
const NO_BOUND: OverallLimits = { atOnce: Infinity, shared: Infinity, overloadMs: Infinity, waitMs: Infinity }

/** A task that asks for its turn. `isBegun`: it continues a response that has begun, so overload does not refuse it. */
export interface Task {
  readonly key: string
  readonly caller: string
  readonly cost: number
  readonly isUrgent: boolean
  readonly isBegun?: boolean
}
/** Ends a turn. Only the first call has an effect. */
export type Leave = () => void
/** Which bound refused a task: that of its key, or that of all keys. */
export type FairQueueBound = 'key' | 'all'

interface Waiting extends Task {
  readonly sinceMs: number
  readonly start: () => void
  readonly refuse: (by: FairQueueBound) => void
}
interface Queue {
  running: number
  /** Since when all its tasks that got a turn had waited long for the bound of all keys. */
  lateSinceMs: number | undefined
  /** Whether its last task that had waited was urgent. */
  wasUrgent: boolean
  readonly urgent: Lane
  readonly others: Lane
}

export class FairQueue {
  readonly #limits: FairQueueLimits
  readonly #all: OverallLimits
  readonly #now: () => number
  readonly #keys = new Map<string, Queue>()
  /** The keys that wait only for the bound of all keys. The first one is next. */
  readonly #ready = new Set<string>()
  #running = 0

  /** `now`: milliseconds of a monotonic clock. */
  constructor(limits: FairQueueLimits, now: () => number) {
    this.#limits = limits
    this.#all = limits.all ?? NO_BOUND
    this.#now = now
  }

  /** True while a task has its turn or waits. */
  get isBusy(): boolean {
    return this.#keys.size > 0
  }

  /** Waits for a turn, which lasts until the returned function is called. */
  enter(task: Task): Promise<Leave | FairQueueBound> {
    const { key } = task
    const queue = this.#keys.get(key) ?? newQueue()
    this.#keys.set(key, queue)
    if (queue.running < this.#limits.atOnce && this.#hasRoom(queue)) return Promise.resolve(this.#begin(key, queue))
    const lane = task.isUrgent ? queue.urgent : queue.others
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        lane.remove(waiting)
        this.#sort(key, queue)
        resolve('key')
      }, this.#limits.timeoutMs)
      const end = (outcome: Leave | FairQueueBound) => {
        clearTimeout(timer)
        resolve(outcome)
      }
      const waiting: Waiting = {
        ...task,
        sinceMs: this.#now(),
        start: () => {
          end(this.#begin(key, queue))
        },
        refuse: end,
      }
      lane.add(waiting)
      while (lane.cost > this.#limits.waitingMax) lane.takeNewestOfLargest().refuse('key')
      this.#sort(key, queue)
    })
  }

  /** Whether the bound of all keys allows a key another turn. */
  #hasRoom({ running }: Queue): boolean {
    return this.#running < (running === 0 ? this.#all.atOnce : this.#all.shared)
  }

  #begin(key: string, queue: Queue): Leave {
    queue.running++
    this.#running++
    let hasLeft = false
    return () => {
      if (hasLeft) return
      hasLeft = true
      const wasFull = this.#running >= this.#all.shared
      queue.running--
      this.#running--
      this.#sort(key, queue)
      this.#startNext(wasFull, queue)
    }
  }

  /** Starts what has a turn now. `wasFull`: the bound of all keys may have made it wait. `left`: the key of a turn that ended. */
  #startNext(wasFull: boolean, left: Queue): void {
    for (const key of this.#ready) {
      if (this.#running >= this.#all.atOnce) return
      const queue = this.#keys.get(key)!
      if (!this.#hasRoom(queue)) continue
      const [first, second] = queue.wasUrgent ? [queue.others, queue.urgent] : [queue.urgent, queue.others]
      const next = (first.takeNext() ?? second.takeNext())!
      queue.wasUrgent = next.isUrgent
      const wasHeld = wasFull && queue.running + (queue === left ? 1 : 0) < this.#limits.atOnce
      if (this.#isTooLate(next, queue, wasFull, wasHeld)) next.refuse('all')
      else next.start()
      this.#ready.delete(key) // behind the others
      this.#sort(key, queue)
    }
  }

  /** `wasHeld`: not the bound of its key made it wait. */
  #isTooLate({ sinceMs, isBegun }: Waiting, queue: Queue, wasFull: boolean, wasHeld: boolean): boolean {
    const nowMs = this.#now()
    if (!wasFull || nowMs - sinceMs <= this.#all.waitMs) queue.lateSinceMs = undefined
    else if (wasHeld) queue.lateSinceMs ??= nowMs
    return isBegun !== true && queue.lateSinceMs !== undefined && nowMs - queue.lateSinceMs > this.#all.overloadMs
  }

  /** Finds out whether a key is ready, or has nothing left, after a change of its queue. */
  #sort(key: string, queue: Queue): void {
    const isWaiting = !queue.urgent.isEmpty || !queue.others.isEmpty
    if (isWaiting && queue.running < this.#limits.atOnce) this.#ready.add(key)
    else this.#ready.delete(key)
    if (!isWaiting && queue.running === 0) this.#keys.delete(key)
  }
}

function newQueue(): Queue {
  return { running: 0, lateSinceMs: undefined, wasUrgent: false, urgent: new Lane(), others: new Lane() }
}

/** What waits, by caller. The next turn is that of the first caller in the map. */
class Lane {
  readonly #callers = new Map<string, { cost: number; readonly tasks: Waiting[] }>()
  /** What all of it costs. */
  cost = 0

  get isEmpty(): boolean {
    return this.#callers.size === 0
  }

  add(task: Waiting): void {
    const caller = this.#callers.get(task.caller) ?? { cost: 0, tasks: [] }
    this.#callers.set(task.caller, caller)
    caller.tasks.push(task)
    caller.cost += task.cost
    this.cost += task.cost
  }

  remove(task: Waiting): void {
    const caller = this.#callers.get(task.caller)!
    caller.tasks.splice(caller.tasks.indexOf(task), 1)
    caller.cost -= task.cost
    this.cost -= task.cost
    if (caller.tasks.length === 0) this.#callers.delete(task.caller)
  }

  /** Takes the oldest task of the caller whose turn it is, and puts that caller behind the others. */
  takeNext(): Waiting | undefined {
    const [first] = this.#callers
    if (first === undefined) return undefined
    const [name, caller] = first
    const task = caller.tasks[0]!
    this.remove(task)
    if (this.#callers.delete(name)) this.#callers.set(name, caller)
    return task
  }

  takeNewestOfLargest(): Waiting {
    const [largest] = [...this.#callers.values()].sort((a, b) => b.cost - a.cost)
    const task = largest!.tasks.at(-1)!
    this.remove(task)
    return task
  }
}
