/**
 * A queue for each key, such as an account. A key has few tasks at once; others wait. Urgent ones go first. Otherwise
 * the callers of a key take turns, each with its oldest task, so a caller with many tasks delays the others by one
 * each.
 *
 * What waits has a cost, and a key has a limit of it. Beyond the limit, the newest task of the caller that costs the
 * most is refused. So a caller never uses the room of one that uses less. Urgent tasks have the same limit again, for
 * themselves.
 */

/**
 * `atOnce`: tasks of a key that run at once. `waitingMax`: the most cost that waits for a key. `timeoutMs`: a task that
 * waits longer is refused.
 */
export interface FairQueueLimits {
  readonly atOnce: number
  readonly waitingMax: number
  readonly timeoutMs: number
}
/** A task that asks for its turn. */
export interface Task {
  readonly key: string
  readonly caller: string
  readonly cost: number
  readonly isUrgent: boolean
}
/** Ends a turn. Only the first call has an effect. */
export type Leave = () => void

interface Waiting extends Task {
  readonly start: () => void
  readonly refuse: () => void
}

export class FairQueue {
  readonly #limits: FairQueueLimits
  readonly #keys = new Map<string, { running: number; readonly urgent: Lane; readonly others: Lane }>()

  constructor(limits: FairQueueLimits) {
    this.#limits = limits
  }

  /** True while a task has its turn or waits. */
  get isBusy(): boolean {
    return this.#keys.size > 0
  }

  /** Waits for a turn, which lasts until the returned function is called. Undefined: refused. */
  enter(task: Task): Promise<Leave | undefined> {
    const { key } = task
    const queue = this.#keys.get(key) ?? { running: 0, urgent: new Lane(), others: new Lane() }
    this.#keys.set(key, queue)
    if (queue.running < this.#limits.atOnce) return Promise.resolve(this.#begin(key))
    const lane = task.isUrgent ? queue.urgent : queue.others
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        lane.remove(waiting)
        resolve(undefined)
      }, this.#limits.timeoutMs)
      const end = (leave: Leave | undefined) => {
        clearTimeout(timer)
        resolve(leave)
      }
      const waiting: Waiting = {
        ...task,
        start: () => {
          end(this.#begin(key))
        },
        refuse: () => {
          end(undefined)
        },
      }
      lane.add(waiting)
      while (lane.cost > this.#limits.waitingMax) lane.takeNewestOfLargest().refuse()
    })
  }

  #begin(key: string): Leave {
    const queue = this.#keys.get(key)!
    queue.running++
    let hasLeft = false
    return () => {
      if (hasLeft) return
      hasLeft = true
      queue.running--
      const next = queue.urgent.takeNext() ?? queue.others.takeNext()
      if (next !== undefined) next.start()
      else if (queue.running === 0) this.#keys.delete(key)
    }
  }
}

/** What waits, by caller. The next turn is that of the first caller in the map. */
class Lane {
  readonly #callers = new Map<string, { cost: number; readonly tasks: Waiting[] }>()
  /** What all of it costs. */
  cost = 0

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
