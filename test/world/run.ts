/** Runs a seed, and finds the few events that a broken promise needs. */
import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { diceOf } from '../fuzz/dice.ts'
import { eventsOf, happen, pauseMs } from './events.ts'
import { World } from './world.ts'

/** For the files that a start of a daemon reads. The daemons get relative paths, so that each run logs the same. */
const directory = mkdtempSync(join(tmpdir(), 'imds-world-'))
process.chdir(directory)
process.on('exit', () => {
  rmSync(directory, { recursive: true })
})
/** Events of a run, before everything becomes quiet. */
const EVENTS = 250

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

export async function run(seed: number, only?: ReadonlySet<number>): Promise<Ran> {
  const world = new World(seed)
  const { time, checks } = world
  const events = new Map<number, string>()
  const kinds = eventsOf(seed)
  let atMs = 1_000
  for (let index = 0; index < EVENTS; index++) {
    const dice = diceOf(seed, index)
    atMs += pauseMs(dice)
    if (only?.has(index) === false) continue
    time.later(atMs, () => {
      time.dice = dice
      events.set(index, `${(time.nowMs / 1_000).toFixed(3)} s: ${happen(world, dice, kinds)}`)
    })
  }
  try {
    await world.until(atMs)
    if (checks.broken === undefined) await world.calm()
  } catch (error) {
    checks.break((error as Error).message)
  }
  const { broken, lines } = checks
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
