/**
 * The time of the world: one queue of tasks, in the order of their simulated times. It replaces the timers and clocks of
 * Node, and everything random, so that the code under test runs on it unchanged and the same seed gives the same run.
 *
 * A task belongs to a process. When a process is killed, its tasks never run: its promises stay pending for ever, as if
 * it had ended between two of its steps.
 *
 * Home-made, because fast-check's scheduler has no clock (the code under test waits for minutes) and no processes.
 */
import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import timersPromises from 'node:timers/promises'
import { diceOf, type Dice } from '../fuzz/dice.ts'

/** A program that runs, on a host with a clock of its own. */
export interface Process {
  isAlive: boolean
  readonly host: { wallOffsetMs: number }
}

interface Task {
  readonly atMs: number
  readonly order: number
  readonly of: Process
  run: (() => void) | undefined
}

const START_MS = Date.parse('2026-11-20T12:00:00Z')
const real = { Date, setImmediate }
let active: Time
const activate = (time: Time) => {
  active = time
}

/** Lets all promises that can settle do so. */
export const turn = (): Promise<void> =>
  new Promise((resolve) => {
    real.setImmediate(resolve)
  })

export class Time {
  nowMs = 0
  /** The choices of the environment until the next event. */
  dice: Dice
  /** Of what is random in the code under test. */
  readonly #secrets: Dice
  readonly outside: Process = { isAlive: true, host: { wallOffsetMs: 0 } }
  current: Process = this.outside
  /** The number of tasks that ran. */
  steps = 0
  #order = 0
  readonly #heap: Task[] = []

  constructor(seed: number) {
    this.dice = diceOf(seed, -1)
    this.#secrets = diceOf(seed, -2)
    activate(this)
  }

  /** Schedules a task. The returned function cancels it. */
  after(delayMs: number, run: () => void, of: Process = this.current): () => void {
    const task: Task = { atMs: this.nowMs + Math.max(0, delayMs), order: this.#order++, of, run }
    this.#push(task)
    return () => {
      task.run = undefined
    }
  }

  /** The time of the next task, if there is one. */
  get nextMs(): number {
    for (let first = this.#heap[0]; first !== undefined; first = this.#heap[0]) {
      if (first.run !== undefined && first.of.isAlive) return first.atMs
      this.#pop()
    }
    return Infinity
  }

  /** Runs the next task of a process that lives. */
  step(): void {
    if (this.nextMs === Infinity) return
    const { atMs, of, run } = this.#pop()!
    this.nowMs = Math.max(this.nowMs, atMs)
    this.as(of, run!)
    this.steps += 1
  }

  /** Runs something as a process. What it schedules belongs to that process. */
  as<T>(of: Process, run: () => T): T {
    this.current = of
    return run()
  }

  /** The time of day on the host of the process that runs. */
  wallMs(): number {
    return Math.floor(START_MS + this.nowMs + this.current.host.wallOffsetMs)
  }

  /** How many timers and operations of a process are pending. */
  pendingOf(process: Process): number {
    return this.#heap.filter(({ of, run }) => of === process && run !== undefined).length
  }

  /** How long a step of the environment takes: mostly a millisecond, sometimes a hundred, rarely seconds. */
  latencyMs(): number {
    const { dice } = this
    const kind = dice.below(100)
    if (kind < 70) return 0.05 + dice.below(20) / 10
    return kind < 97 ? dice.below(200) : dice.below(3_000)
  }

  random(): number {
    return this.#secrets.below(1_000_000) / 1_000_000
  }

  #push(task: Task): void {
    const heap = this.#heap
    let at = heap.push(task) - 1
    while (at > 0) {
      const parent = (at - 1) >>> 1
      if (!isBefore(task, heap[parent]!)) break
      heap[at] = heap[parent]!
      at = parent
    }
    heap[at] = task
  }

  #pop(): Task | undefined {
    const heap = this.#heap
    const first = heap[0]
    const last = heap.pop()
    if (last === undefined || last === first) return first
    let at = 0
    for (;;) {
      let child = 2 * at + 1
      if (child >= heap.length) break
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child += 1
      if (!isBefore(heap[child]!, last)) break
      heap[at] = heap[child]!
      at = child
    }
    heap[at] = last
    return first
  }
}

function isBefore(one: Task, other: Task): boolean {
  return one.atMs < other.atMs || (one.atMs === other.atMs && one.order < other.order)
}

/** A timer as Node returns it. */
class Timer {
  cancel: () => void = () => undefined
  ref(): this {
    return this
  }
  unref(): this {
    return this
  }
}

/** Replaces the timers, the clocks and the randomness of Node in this process, for good. */
export function replaceNode(): void {
  const setTimer = (run: () => void, delayMs = 0) => {
    const timer = new Timer()
    timer.cancel = active.after(delayMs, run)
    return timer
  }
  const clear = (timer: Timer | undefined) => {
    timer?.cancel()
  }
  const setRepeated = (run: () => void, delayMs: number) => {
    const timer = new Timer()
    const repeat = () => {
      timer.cancel = active.after(delayMs, () => {
        repeat()
        run()
      })
    }
    repeat()
    return timer
  }
  const sleep = (delayMs: number, value: unknown, { signal }: { signal?: AbortSignal } = {}) =>
    new Promise((resolve, reject) => {
      const cancel = active.after(delayMs, () => {
        resolve(value)
      })
      const abort = () => {
        cancel()
        reject(new Error('aborted'))
      }
      if (signal?.aborted === true) abort()
      else signal?.addEventListener('abort', abort, { once: true })
    })
  Object.assign(globalThis, {
    setTimeout: setTimer,
    clearTimeout: clear,
    setInterval: setRepeated,
    clearInterval: clear,
    setImmediate: (run: () => void) => setTimer(run),
    clearImmediate: clear,
    Date: new Proxy(real.Date, {
      construct: (date, args) => Reflect.construct(date, args.length === 0 ? [active.wallMs()] : args) as object,
    }),
  })
  real.Date.now = () => active.wallMs()
  performance.now = () => active.nowMs
  Math.random = () => active.random()
  Object.assign(timersPromises, { setTimeout: sleep, setImmediate: () => sleep(0, undefined) })
  Object.assign(crypto, {
    randomBytes: (size: number) => Buffer.from(Array.from({ length: size }, () => Math.floor(active.random() * 256))),
  })
  syncBuiltinESMExports()
}
