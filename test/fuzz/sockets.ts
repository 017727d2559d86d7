/**
 * Fuzzes the guest listener: sends inputs from hundreds of addresses over raw sockets, checks each connection, and
 * checks the daemon at the end.
 */
import { diceOf, escaped } from './dice.ts'
import type { FuzzHost, Memory } from './host.ts'
import { inputOf, TOKEN } from './inputs.ts'
import { checkAnswers } from './oracle.ts'
import { planOf, send } from './send.ts'

/**
 * The settings of a run. `holds`: how many of 10,000 connections stay open until the daemon closes them. `index`: the
 * only input to send.
 */
export interface SocketRun {
  readonly seed: number
  readonly requests: number
  readonly holds: number
  readonly index?: number
}

/** The figures and the failures of a run. */
export interface SocketReport {
  readonly tried: number
  readonly bytes: number
  readonly families: ReadonlyMap<string, number>
  readonly statuses: ReadonlyMap<number, number>
  /** Connections that the daemon reset, so that a response may have been lost. */
  readonly resets: number
  readonly grew: Memory
  readonly failures: readonly string[]
}

const CLIENTS = 48
/** The largest number of connections with the plan `hold` at a time, in addition to the clients. */
const MAX_HELD_OPEN = 400
const MAX_FAILURES = 10
const MAX_GROWTH = 20 * 2 ** 20
/** The share of the inputs that is sent before memory is first measured. */
const WARM_UP = 0.2

/** Runs inputs 0 to `requests`, or the one with `index`. */
export async function fuzzSockets(host: FuzzHost, { seed, requests, holds, index }: SocketRun): Promise<SocketReport> {
  const { daemon, guests, token } = host
  const [families, statuses] = [new Map<string, number>(), new Map<number, number>()]
  const failures: string[] = []
  const heldOpen = new Set<Promise<void>>()
  let [tried, bytes, resets] = [0, 0, 0]

  const one = async (n: number) => {
    const dice = diceOf(seed, n)
    const guest = dice.pick(guests)
    const made = inputOf(dice)
    const input = { ...made, bytes: made.bytes.replaceAll(TOKEN, token) }
    const plan = planOf(dice, input.bytes.length, holds)
    const job = send(daemon.guestPort, guest.address, input.bytes, plan).then((sent) => {
      tried += 1
      bytes += input.bytes.length
      resets += Number(sent.broken && plan.then !== 'reset')
      count(families, input.family)
      const verdict = checkAnswers(input, guest, sent)
      for (const status of verdict.statuses) count(statuses, status)
      if (verdict.wrong === undefined && index === undefined) return
      failures.push(
        [
          `input ${n} of seed ${seed} (${input.family}, from ${guest.address}, ${guest.role}): ${verdict.wrong ?? 'correct'}`,
          `  to repeat it: npm run fuzz -- --seed ${seed} --index ${n}`,
          `  plan: ${JSON.stringify(plan)}`,
          `  sent: ${shortened(input.bytes, index)}`,
          `  got:  ${shortened(sent.text, index)}`,
        ].join('\n'),
      )
    })
    if (plan.then !== 'hold') return job
    const holding: Promise<void> = job.finally(() => heldOpen.delete(holding))
    heldOpen.add(holding)
    while (heldOpen.size > MAX_HELD_OPEN) await Promise.race(heldOpen)
  }
  const run = async (from: number, to: number) => {
    let next = from
    await Promise.all(
      Array.from({ length: CLIENTS }, async () => {
        while (next < to && failures.length < MAX_FAILURES && daemon.process.exitCode === null) await one(next++)
      }),
    )
    await Promise.all(heldOpen)
  }

  if (index !== undefined) {
    await one(index)
    await Promise.all(heldOpen)
    return { tried, bytes, families, statuses, resets, grew: { heap: 0, resident: 0 }, failures }
  }
  const warm = Math.ceil(requests * WARM_UP)
  const grew = { heap: 0, resident: 0 }
  try {
    await run(0, warm)
    const before = await host.settle()
    await run(warm, requests)
    const after = await host.settle()
    Object.assign(grew, { heap: after.heap - before.heap, resident: after.resident - before.resident })
  } catch (error) {
    // connections that stay open, or a daemon that has ended
    failures.push(String(error))
  }
  for (const [what, by] of Object.entries(grew))
    if (by > MAX_GROWTH) failures.push(`memory (${what}) grew by ${by} bytes`)
  return { tried, bytes, families, statuses, resets, grew, failures: [...failures, ...(await host.problems())] }
}

function count<T>(counts: Map<T, number>, key: T): void {
  counts.set(key, (counts.get(key) ?? 0) + 1)
}

/** Bytes as text, shortened unless only one input is sent. */
function shortened(bytes: string, index: number | undefined): string {
  return index !== undefined || bytes.length <= 3_000
    ? escaped(bytes)
    : `${escaped(bytes.slice(0, 3_000))} and ${bytes.length - 3_000} bytes more`
}
