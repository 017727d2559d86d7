/**
 * Runs tasks in fair order. Keys (such as accounts) take turns, the callers of a key take turns, and the tasks of a
 * caller run in order. So a caller with many tasks delays each other one by one task, and so does a key.
 *
 * A key runs few tasks at once; others wait. Urgent tasks go first, but every second turn is for the others while some
 * wait. A task that waits has a cost, and a key has a limit of it. Beyond the limit, the newest task of the caller that
 * costs the most is refused. So a caller never uses the room of a caller that uses less. Urgent tasks have the same
 * limits again, for themselves.
 *
 * All keys together may have the same limits. Beyond that of the cost, a task of the key that costs the most is
 * refused. Some turns may be only for keys of which nothing runs. Under overload, tasks that have waited long are
 * refused when their turn comes. So the tasks that start have waited only a short time.
 */

/**
 * `atOnce`: tasks of a key that run at once. `maxWaiting`: the most cost that waits for a key. `timeoutMs`: a task that
 * waits longer is refused. What is left out has no bound.
 */
export interface FairQueueLimits {
  readonly atOnce?: number
  readonly maxWaiting?: number
  readonly timeoutMs?: number
  readonly all?: Partial<OverallLimits>
}
/**
 * `atOnce`, `maxWaiting`: as above, for all keys together. `shared`: while so many run, only a key of which none runs
 * gets a turn. `waitMs`: a longer wait is long. `overloadMs`: how long only such tasks of a key are started before they
 * are refused.
 */
export interface OverallLimits {
  readonly atOnce: number
  readonly maxWaiting: number
  readonly shared: number
  readonly overloadMs: number
  readonly waitMs: number
}
const NO_BOUND: OverallLimits = {
  atOnce: Infinity,
  maxWaiting: Infinity,
  shared: Infinity,
  overloadMs: Infinity,
  waitMs: Infinity,
}

/**
 * A task that asks for its turn. `cost`: default 1. `isBegun`: it continues a request that has had a turn, so neither its
 * cost, the timeout nor overload refuses it: who makes such tasks bounds them. `signal`: if it aborts while the task waits, the task is refused.
 */
export interface Task {
  readonly key: string
  readonly caller?: string
  readonly cost?: number
  readonly isUrgent?: boolean
  readonly isBegun?: boolean
  readonly signal?: AbortSignal
}
/** Ends a turn. Only the first call has an effect. */
export type Leave = () => void
/** Which bound refused a task: that of its key, or that of all keys. */
export type FairQueueBound = 'key' | 'all'

interface Waiting {
  readonly caller: string
  readonly cost: number
  readonly isUrgent: boolean
  readonly isBegun: boolean
  readonly sinceMs: number
  readonly end: (outcome: Leave | FairQueueBound) => void
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
  readonly #atOnce: number
  readonly #maxWaiting: number
  readonly #timeoutMs: number | undefined
  readonly #all: OverallLimits
  readonly #keys = new Map<string, Queue>()
  /** The keys that wait only for the bound of all keys. The first one is next. */
  readonly #ready = new Set<string>()
  #running = 0

  constructor({ atOnce = Infinity, maxWaiting = Infinity, timeoutMs, all }: FairQueueLimits) {
    this.#atOnce = atOnce
    this.#maxWaiting = maxWaiting
    this.#timeoutMs = timeoutMs
    this.#all = { ...NO_BOUND, ...all }
  }

  /** True while a task has its turn or waits. */
  get isBusy(): boolean {
    return this.#keys.size > 0
  }

  /** Runs work at the turn of a task. Undefined: the task was refused, and the work never runs. */
  async run<T>(task: Task, work: () => Promise<T>): Promise<T | undefined> {
    const leave = await this.enter(task)
    if (typeof leave !== 'function') return undefined
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Waits for a turn, which lasts until the returned function is called. */
  enter(task: Task): Promise<Leave | FairQueueBound> {
    const { key, caller = '', isUrgent = false, isBegun = false, signal } = task
    const { cost = isBegun ? 0 : 1 } = task
    const queue = this.#keys.get(key) ?? newQueue()
    this.#keys.set(key, queue)
    if (queue.running < this.#atOnce && this.#hasRoom(queue)) return Promise.resolve(this.#begin(key, queue))
    const lane = isUrgent ? queue.urgent : queue.others
    return new Promise((resolve) => {
      const drop = () => {
        if (!lane.remove(waiting)) return // it has its turn
        waiting.end('key')
        this.#updateReady(key, queue)
      }
      const timer = this.#timeoutMs === undefined || isBegun ? undefined : setTimeout(drop, this.#timeoutMs)
      signal?.addEventListener('abort', drop)
      const end = (outcome: Leave | FairQueueBound) => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', drop)
        resolve(outcome)
      }
      const waiting: Waiting = { caller, cost, isUrgent, isBegun, sinceMs: performance.now(), end }
      lane.add(waiting)
      while (lane.cost > this.#maxWaiting) lane.takeNewestOfLargest(caller).end('key')
      if (this.#all.maxWaiting < Infinity) this.#boundAll(lane, waiting)
      this.#updateReady(key, queue)
    })
  }

  /** Refuses what waits beyond the bound of all keys, after a task was added. */
  #boundAll(own: Lane, { caller, isUrgent }: Waiting): void {
    const lanes = [...this.#keys.values()].map((queue) => (isUrgent ? queue.urgent : queue.others))
    const cost = lanes.reduce((sum, lane) => sum + lane.cost, 0)
    for (let beyond = cost - this.#all.maxWaiting; beyond > 0;) {
      const dropped = largest(lanes, own).takeNewestOfLargest(caller)
      beyond -= dropped.cost
      dropped.end('all')
    }
    for (const [key, queue] of this.#keys) this.#updateReady(key, queue)
  }

  /** Whether the bound of all keys allows a key another turn. */
  #hasRoom({ running }: Queue): boolean {
    const { atOnce, shared } = this.#all
    return this.#running < (running === 0 ? atOnce : Math.min(atOnce, shared))
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
      this.#updateReady(key, queue)
      this.#startNext(wasFull, queue)
    }
  }

  /** Starts the next tasks. `wasFull`: all keys may have been at their bound. `left`: the key of a turn that ended. */
  #startNext(wasFull: boolean, left: Queue): void {
    for (const key of this.#ready) {
      if (this.#running >= this.#all.atOnce) return
      const queue = this.#keys.get(key)!
      if (!this.#hasRoom(queue)) continue
      const [first, second] = queue.wasUrgent ? [queue.others, queue.urgent] : [queue.urgent, queue.others]
      const next = (first.takeNext() ?? second.takeNext())!
      queue.wasUrgent = next.isUrgent
      const wasHeld = wasFull && queue.running + (queue === left ? 1 : 0) < this.#atOnce
      next.end(this.#isTooLate(next, queue, wasFull, wasHeld) ? 'all' : this.#begin(key, queue))
      this.#ready.delete(key) // behind the others
      this.#updateReady(key, queue)
    }
  }

  /** `wasHeld`: not the bound of its key made it wait. */
  #isTooLate({ sinceMs, isBegun }: Waiting, queue: Queue, wasFull: boolean, wasHeld: boolean): boolean {
    const nowMs = performance.now()
    if (!wasFull || nowMs - sinceMs <= this.#all.waitMs) queue.lateSinceMs = undefined
    else if (wasHeld) queue.lateSinceMs ??= nowMs
    return !isBegun && queue.lateSinceMs !== undefined && nowMs - queue.lateSinceMs > this.#all.overloadMs
  }

  /** Finds out whether a key is ready, or has nothing left, after a change of its queue. */
  #updateReady(key: string, queue: Queue): void {
    const isWaiting = !queue.urgent.isEmpty || !queue.others.isEmpty
    if (isWaiting && queue.running < this.#atOnce) this.#ready.add(key)
    else this.#ready.delete(key)
    if (!isWaiting && queue.running === 0) this.#keys.delete(key)
  }
}

function newQueue(): Queue {
  return { running: 0, lateSinceMs: undefined, wasUrgent: false, urgent: new Lane(), others: new Lane() }
}

/** The one of the highest cost; `own` if no other costs more. */
function largest<T extends { readonly cost: number }>(all: Iterable<T>, own: T): T {
  let most = own
  for (const candidate of all) if (candidate.cost > most.cost) most = candidate
  return most
}

/** What waits, by caller. The next turn is that of the first caller in the map. */
class Lane {
  readonly #callers = new Map<string, { cost: number; readonly tasks: Waiting[] }>()
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

  /** False if it does not wait here. */
  remove(task: Waiting): boolean {
    const caller = this.#callers.get(task.caller)
    const at = caller?.tasks.indexOf(task) ?? -1
    if (caller === undefined || at < 0) return false
    caller.tasks.splice(at, 1)
    caller.cost -= task.cost
    this.cost -= task.cost
    if (caller.tasks.length === 0) this.#callers.delete(task.caller)
    return true
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

  /** Takes the newest task of the caller that costs the most; of `own` if no other costs more. */
  takeNewestOfLargest(own: string): Waiting {
    const callers = [...this.#callers.values()]
    const { tasks } = largest(callers, this.#callers.get(own) ?? callers[0]!)
    const task = tasks.findLast(({ cost }) => cost > 0)!
    this.remove(task)
    return task
  }
}
