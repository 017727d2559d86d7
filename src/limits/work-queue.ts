/**
 * A queue for work that takes much memory or time. Few tasks run at once, and a limited number of others wait.
 *
 * The places are shared: each task belongs to a subject, and each subject to an owner. Owners take turns, and so do the
 * subjects of an owner. While no place is free, a task takes that of an owner who has at least two more than the task's
 * owner, or else of such a subject of the same owner. So no owner or subject makes others wait for more than one turn,
 * or keeps them out.
 */

interface Waiting {
  start(): void
  drop(): void
}
/** The waiting tasks of an owner, by subject. Whose turn is next is first. None of the lists is empty. */
type Subjects = Map<string, Waiting[]>

/** Runs at most `atOnce` tasks at once, while at most `waiting` others wait. */
export class WorkQueue {
  readonly #atOnce: number
  readonly #waiting: number
  readonly #owners = new Map<string, Subjects>()
  #running = 0

  constructor(atOnce: number, waiting: number) {
    this.#atOnce = atOnce
    this.#waiting = waiting
  }

  /** Runs a task when its turn comes. Undefined: too many wait, and the task never runs. */
  async run<T>(owner: string, subject: string, task: () => Promise<T>): Promise<T | undefined> {
    if (this.#running < this.#atOnce) return this.#start(task)
    const isFull = [...this.#owners.values()].reduce((sum, subjects) => sum + countOf(subjects), 0) >= this.#waiting
    if (isFull && !this.#makeRoom(owner, subject)) return undefined
    return new Promise<T | undefined>((resolve) => {
      const subjects = this.#owners.get(owner) ?? new Map<string, Waiting[]>()
      this.#owners.set(owner, subjects)
      const tasks = subjects.get(subject) ?? []
      subjects.set(subject, tasks)
      tasks.push({
        start: () => {
          resolve(this.#start(task))
        },
        drop: () => {
          resolve(undefined)
        },
      })
    })
  }

  /**
   * Drops the last task of those who have the most places. False: all have as few as this subject, with one more, would
   * have.
   */
  #makeRoom(owner: string, subject: string): boolean {
    const own = this.#owners.get(owner)
    const most = largest(this.#owners, countOf)
    const isOther = most !== undefined && countOf(most.value) > (own === undefined ? 0 : countOf(own)) + 1
    const subjects = isOther ? most.value : own
    const victim = subjects && largest(subjects, ({ length }) => length)
    if (
      subjects === undefined ||
      victim === undefined ||
      (!isOther && victim.value.length <= (subjects.get(subject)?.length ?? 0) + 1)
    )
      return false
    victim.value.pop()!.drop() // at least one stays: of this subject, or of another one of its owner
    if (victim.value.length === 0) subjects.delete(victim.key)
    return true
  }

  async #start<T>(task: () => Promise<T>): Promise<T> {
    this.#running++
    try {
      return await task()
    } finally {
      this.#running--
      this.#takeNext()?.start()
    }
  }

  /** Takes the task whose turn it is. Its owner and its subject are last then. */
  #takeNext(): Waiting | undefined {
    for (const [owner, subjects] of this.#owners) {
      this.#owners.delete(owner)
      for (const [subject, tasks] of subjects) {
        subjects.delete(subject)
        const task = tasks.shift()
        if (tasks.length > 0) subjects.set(subject, tasks)
        if (subjects.size > 0) this.#owners.set(owner, subjects)
        return task
      }
    }
    return undefined
  }
}

function countOf(subjects: Subjects): number {
  return [...subjects.values()].reduce((sum, { length }) => sum + length, 0)
}

/** The entry with the highest count. Undefined: there is none. */
function largest<T>(
  map: ReadonlyMap<string, T>,
  count: (value: T) => number,
): { readonly key: string; readonly value: T } | undefined {
  const [key] = [...map.keys()].sort((a, b) => count(map.get(b)!) - count(map.get(a)!))
  return key === undefined ? undefined : { key, value: map.get(key)! }
}
