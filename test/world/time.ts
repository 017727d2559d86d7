/**
 * The time of a world: one queue of tasks, in the order of their simulated times, and the log of what happened. It
 * replaces the timers and clocks of Node, and everything random, so that the code under test runs on it unchanged and the
 * same seed gives the same run.
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
  readonly of: Process
  run: (() => void) | undefined
}

/** More steps at one time are a loop without a pause. */
const MAX_STEPS_AT_ONCE = 100_000
const START_MS = Date.parse('2026-11-20T12:00:00Z')
const real = { Date, setImmediate }
let active: Time
const activate = (time: Time) => {
  active = time
}

/** Lets all promises that can settle do so. */
export const turn = (): Promise<void> => new Promise((resolve) => real.setImmediate(resolve))

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
  #stepsBefore = 0
  /** The next one is the last; of several at one time, the one that was added first. */
  readonly #tasks: Task[] = []
  /** What happened. */
  readonly lines: string[] = []
  /** The first promise that was broken. */
  broken: string | undefined

  constructor(seed: number) {
    this.dice = diceOf(seed, -1)
    this.#secrets = diceOf(seed, -2)
    activate(this)
  }

  note(text: string): void {
    this.lines.push(`${(this.nowMs / 1_000).toFixed(4)} s  ${text}`)
  }

  /** Notes that a promise is broken, and ends the run. */
  break(sentence: string): void {
    this.broken ??= sentence
    this.note(sentence)
  }

  /** Schedules a task. The returned function cancels it. */
  after(delayMs: number, run: () => void, of: Process = this.current): () => void {
    const task: Task = { atMs: this.nowMs + Math.max(0, delayMs), of, run }
    let [low, high] = [0, this.#tasks.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#tasks[middle]!.atMs > task.atMs) low = middle + 1
      else high = middle
    }
    this.#tasks.splice(low, 0, task)
    return () => {
      task.run = undefined
    }
  }

  /** Schedules something that no process does. */
  later(delayMs: number, run: () => void): void {
    this.after(delayMs, run, this.outside)
  }

  /** The time of the next task, if there is one. */
  get nextMs(): number {
    for (let next = this.#tasks.at(-1); next !== undefined; next = this.#tasks.at(-1)) {
      if (next.run !== undefined && next.of.isAlive) return next.atMs
      this.#tasks.pop()
    }
    return Infinity
  }

  /** Lets time pass. Calls `settle` at first and after each step. Ends early when a promise is broken, or `isDone`. */
  async until(atMs: number, settle: () => Promise<void>, isDone = () => false): Promise<void> {
    await settle()
    while (this.nextMs <= atMs && this.broken === undefined && !isDone()) {
      this.#step()
      await settle()
    }
    if (!isDone()) this.nowMs = Math.max(this.nowMs, atMs)
  }

  /** Runs the next task of a process that lives. Throws if too many run without a pause. */
  #step(): void {
    const { atMs, of, run } = this.#tasks.pop()!
    if (atMs > this.nowMs) this.#stepsBefore = this.steps
    this.nowMs = Math.max(this.nowMs, atMs)
    this.as(of, run!)
    if (++this.steps - this.#stepsBefore > MAX_STEPS_AT_ONCE)
      throw new Error(`a run ends: more than ${MAX_STEPS_AT_ONCE} steps ran at ${atMs} ms, the last was ${String(run)}`)
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
    return this.#tasks.filter(({ of, run }) => of === process && run !== undefined).length
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
  const clear = (timer: Timer | undefined) => timer?.cancel()
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
        signal?.removeEventListener('abort', abort) // a signal looks through its listeners for each new one
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
