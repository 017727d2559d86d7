/** Runs the events of a seed in a world, and finds the few events that a broken promise needs. */
import { createHash } from 'node:crypto'
import { diceOf, type Dice } from '../fuzz/dice.ts'
import type { Time } from './time.ts'

/** A kind of event: how often it happens, and its words. */
export interface Kind<Run> {
  readonly weight: number
  readonly words: string
  readonly run: Run
}

/** One of some kinds, each as often as it weighs. */
export function pickKind<Run>(kinds: readonly Kind<Run>[], dice: Dice): Kind<Run> {
  let at = dice.below(kinds.reduce((sum, { weight }) => sum + weight, 0))
  return kinds.find(({ weight }) => (at -= weight) < 0)!
}

/** What happens next, in words with the names of all that it concerns. */
export interface Chosen {
  readonly words: string
  readonly run: () => unknown
}

/** A world in which events happen. All choices of an event come from its own dice. */
export interface Eventful {
  readonly time: Time
  /** How long it takes until the next event. */
  pauseMs(dice: Dice): number
  /** Chooses an event. */
  choose(dice: Dice): Chosen
  /** Lets time pass, step by step. */
  until(atMs: number): Promise<void>
  /** Ends all faults, and checks the promises of a quiet world. */
  calm(): Promise<void>
}

/** Runs a seed. `only`: the numbers of the events that happen; undefined: all. */
export type RunSeed = (seed: number, only?: ReadonlySet<number>) => Promise<Ran>

export interface Ran {
  /** The promise that was broken. */
  broken: string | undefined
  /** Steps of the simulation: each event, timer, and operation of a disk or of the store. */
  readonly steps: number
  readonly hours: number
  readonly lines: readonly string[]
  /** What happened, by the number of the event. */
  readonly events: ReadonlyMap<number, string>
  readonly digest: string
}

/** Lets events happen in a new world, and then everything become quiet. */
export async function play(world: Eventful, seed: number, count: number, only?: ReadonlySet<number>): Promise<Ran> {
  const { time } = world
  const events = new Map<number, string>()
  let atMs = 1_000
  for (let index = 0; index < count; index++) {
    const dice = diceOf(seed, index)
    atMs += world.pauseMs(dice)
    if (only?.has(index) === false) continue
    time.later(atMs, () => {
      time.dice = dice
      const { words, run } = world.choose(dice)
      events.set(index, `${(time.nowMs / 1_000).toFixed(3)} s: ${words}`)
      time.note(`# ${words}`)
      run()
    })
  }
  try {
    await world.until(atMs)
    if (time.broken === undefined) await world.calm()
  } catch (error) {
    time.break((error as Error).message)
  }
  const { broken, lines } = time
  const digest = createHash('sha256').update(lines.join('\n')).digest('hex')
  return { broken, steps: time.steps, hours: time.nowMs / 3_600_000, lines, events, digest }
}

/** Removes events as long as the same promise is broken. `isOver`: it takes too long. */
export async function shrink(
  run: RunSeed,
  seed: number,
  broken: string,
  all: readonly number[],
  isOver: () => boolean,
): Promise<Ran> {
  const promiseOf = (text: string | undefined) => text?.split(':')[0]
  let kept = [...all]
  let best = await run(seed, new Set(kept))
  for (let part = Math.ceil(kept.length / 2); part >= 1; part = part === 1 ? 0 : Math.ceil(part / 2)) {
    for (let at = 0; at < kept.length && !isOver();) {
      const fewer = [...kept.slice(0, at), ...kept.slice(at + part)]
      const ran = await run(seed, new Set(fewer))
      if (promiseOf(ran.broken) === promiseOf(broken)) {
        kept = fewer.filter((index) => ran.events.has(index))
        best = ran
      } else at += part
    }
  }
  return best
}
