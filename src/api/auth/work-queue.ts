/** A queue for work that takes much memory or time. Few tasks run at once, and a limited number of others wait in order. */

/** Runs at most `atOnce` tasks at once, while at most `waiting` others wait. */
export class WorkQueue {
  readonly #atOnce: number
  readonly #waiting: number
  readonly #queue: (() => void)[] = []
  #running = 0

  constructor(atOnce: number, waiting: number) {
    this.#atOnce = atOnce
    this.#waiting = waiting
  }

  /** Runs a task when its turn comes. Undefined: too many wait, and the task never runs. */
  run<T>(task: () => Promise<T>): Promise<T> | undefined {
    if (this.#running < this.#atOnce) return this.#start(task)
    if (this.#queue.length >= this.#waiting) return undefined
    return new Promise<T>((resolve, reject) => {
      this.#queue.push(() => { this.#start(task).then(resolve, reject) })
    })
  }

  async #start<T>(task: () => Promise<T>): Promise<T> {
    this.#running++
    try {
      return await task()
    } finally {
      this.#running--
      this.#queue.shift()?.()
    }
  }
}
