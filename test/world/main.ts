/**
 * The seeded world: real code in a simulated region, and its promises (checks.ts) checked after every step.
 *
 *   npm run world -- --minutes 60     all seeds that once failed, then new ones for so long (CPU time; default: 1)
 *   npm run world -- --seeds 300      the same with so many new seeds
 *   npm run world -- --publisher      the publishers of imds-api instead (publisher.ts), with each of these options
 *   npm run world -- --from N         the new seeds begin with this one
 *   npm run world -- --seed N         one seed; with --log, all that happens; with --only 3,17,40, only these events
 *
 * A broken promise is printed with its seed, the few events that it needs, and the command that repeats it.
 */
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { shrink, type Ran } from './run.ts'
import { replaceNode } from './time.ts'
import { run } from './world.ts'

/** The longest time for which events are removed from a seed, in seconds. */
const SHRINK_SECONDS = 60
const LAST_LINES = 25

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '1' },
    seeds: { type: 'string' },
    seed: { type: 'string' },
    only: { type: 'string' },
    log: { type: 'boolean', default: false },
    publisher: { type: 'boolean', default: false },
    from: { type: 'string', default: String(Date.now() % 1_000_000_000) },
  },
})
Error.stackTraceLimit = values.log ? 10 : 0 // errors of disks and of the store are many
const publishers = values.publisher ? await (await import('./publisher.ts')).startPublishers() : undefined
const [kind, seedsFile] = publishers === undefined ? ['', 'seeds'] : ['--publisher ', 'publisher-seeds']
const runWorld = publishers?.run ?? run
replaceNode()
let unhandled: string | undefined
process.on('unhandledRejection', (reason) => {
  unhandled ??= `no promise rejects unhandled: ${reason instanceof Error ? (reason.stack ?? '') : String(reason)}`
})

/** The CPU time of this process. */
function cpuSeconds(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000_000
}

async function runSeed(seed: number, only?: ReadonlySet<number>): Promise<Ran> {
  unhandled = undefined
  const ran = await runWorld(seed, only)
  return { ...ran, broken: ran.broken ?? unhandled }
}

/** Prints a broken promise. */
async function report(seed: number, { broken = '', events: all }: Ran): Promise<void> {
  console.log(`\nseed ${seed}, after ${cpuSeconds().toFixed(0)} s of CPU time: ${broken}`)
  const end = cpuSeconds() + SHRINK_SECONDS
  const least = await shrink(runSeed, seed, broken, [...all.keys()], () => cpuSeconds() > end)
  const { events, lines } = least
  console.log(`With ${events.size} of ${all.size} events: ${least.broken ?? ''}`)
  for (const [index, words] of events) console.log(`  ${String(index).padStart(3)}  ${words}`)
  console.log('The last that happened:')
  for (const line of lines.slice(-LAST_LINES)) console.log(`  ${line}`)
  console.log(`Repeat: npm run world -- ${kind}--seed ${seed} --only ${[...events.keys()].join(',')} --log`)
}

/** Runs the seeds that once failed, and new ones until one fails. True: every promise is kept. */
async function runSeeds(): Promise<boolean> {
  const failed = readFileSync(new URL(seedsFile, import.meta.url), 'utf8').match(/^\d+/gm) ?? []
  const [first, endSeconds, most] = [Number(values.from), Number(values.minutes) * 60, Number(values.seeds)]
  const isOver = (n: number) => (values.seeds === undefined ? cpuSeconds() >= endSeconds : n >= most)
  let [steps, hours, runs] = [0, 0, 0]
  for (let n = 0; n < failed.length || !isOver(n - failed.length); n++) {
    const seed = n < failed.length ? Number(failed[n]) : first + n - failed.length
    const ran = await runSeed(seed)
    if (n === 0 && ran.digest !== (await runSeed(seed)).digest) ran.broken ??= 'the same seed gives the same run'
    steps += ran.steps
    hours += ran.hours
    runs += 1
    if (ran.broken === undefined) continue
    await report(seed, ran)
    return false
  }
  console.log(
    `${runs} seeds, ${steps} events, ${hours.toFixed(0)} simulated hours: ` +
      `${(steps / cpuSeconds()).toFixed(0)} events a second of CPU time. The new seeds began with ${first}`,
  )
  return true
}

async function runOne(seed: number): Promise<boolean> {
  const only = values.only === undefined ? undefined : new Set(values.only.split(',').map(Number))
  const { broken, lines, digest } = await runSeed(seed, only)
  if (values.log) console.log(lines.join('\n'))
  console.log(`${broken ?? 'every promise is kept'}\nSHA-256 of the log: ${digest}`)
  return broken === undefined
}

const isKept = await (values.seed === undefined ? runSeeds() : runOne(Number(values.seed)))
await publishers?.stop()
process.exit(isKept ? 0 : 1)
