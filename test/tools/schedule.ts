/**
 * Runs tasks beside each other, as many as the cores can carry. Tasks that mostly wait run beside those that compute,
 * and long tasks start first, so that no core waits for one at the end. What a task needs is known from an earlier run
 * (weights.json, which `npm test -- --learn` writes).
 */
import { availableParallelism } from 'node:os'

/** The wall time and the CPU time of a task, in seconds. */
export interface Weight {
  readonly wall: number
  readonly cpu: number
}

/**
 * A task by its name. `after`: the name of a task that must end before it starts. `run` resolves with the CPU time that it
 * took, in seconds.
 */
export interface Task {
  readonly name: string
  readonly after?: string
  run(): Promise<number>
}

/** Of a task that no earlier run had. */
const UNKNOWN: Weight = { wall: 20, cpu: 10 }
/** Above the number of cores, since the load of a task is an average. */
const SPARE_LOAD = 0.5
/**
 * The load of a task is too low if it was learned beside too many others, which then become more: on a slow machine
 * they took three times their CPU time, and time limits ran out.
 */
const MAX_TASKS = 2 * availableParallelism()

/** Runs all tasks. Returns what they took. */
export async function runTasks(
  tasks: readonly Task[],
  weights: ReadonlyMap<string, Weight>,
): Promise<ReadonlyMap<string, Weight>> {
  const weightOf = ({ name }: Task) => weights.get(name) ?? UNKNOWN
  const loadOf = (task: Task) => weightOf(task).cpu / weightOf(task).wall
  const waiting = tasks.toSorted((a, b) => weightOf(b).wall - weightOf(a).wall)
  const running = new Map<Task, Promise<void>>()
  const taken = new Map<string, Weight>()
  let load = 0
  const fits = (task: Task) =>
    (task.after === undefined || taken.has(task.after)) &&
    (running.size === 0 || load + loadOf(task) <= availableParallelism() + SPARE_LOAD)
  while (waiting.length > 0 || running.size > 0) {
    const next = running.size < MAX_TASKS ? waiting.findIndex(fits) : -1
    if (next === -1) {
      await Promise.race(running.values())
      continue
    }
    const [task] = waiting.splice(next, 1) as [Task]
    load += loadOf(task)
    const startedMs = performance.now()
    running.set(
      task,
      task.run().then((cpu) => {
        load -= loadOf(task)
        running.delete(task)
        taken.set(task.name, { wall: (performance.now() - startedMs) / 1000, cpu })
      }),
    )
  }
  return taken
}
