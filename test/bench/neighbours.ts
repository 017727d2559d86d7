/**
 * Was the machine ours?
 *
 * What other processes, or other guests of the same machine, took of the two cores that a round runs on. A round that they disturbed
 * says little about a server: it is taken again, when they are quiet.
 */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { cpuSeconds, LOAD_CORE, SERVER_CORE, TICKS_PER_SECOND } from './processes.ts'

/** Of the CPU time of one core. */
const QUIET_SHARE = 0.05
const ATTEMPTS = 3
/** How long to wait for quiet before an attempt is made anyway. */
const PATIENCE_MS = 5_000
const SAMPLE_MS = 500

/** Runs something until it was not disturbed, at most three times, and gives the least disturbed run, with the others' share of a core during it. */
export async function undisturbed<T>(serverPid: number, run: () => Promise<T>): Promise<T & { readonly othersShare: number }> {
  let best: T & { othersShare: number } | undefined
  for (let attempt = 0; attempt < ATTEMPTS && (best === undefined || best.othersShare > QUIET_SHARE); attempt++) {
    for (const startedMs = performance.now(); performance.now() - startedMs < PATIENCE_MS;) {
      if ((await observed(serverPid, () => sleep(SAMPLE_MS))).othersShare <= QUIET_SHARE) break
    }
    const { result, othersShare } = await observed(serverPid, run)
    if (best === undefined || othersShare < best.othersShare) best = { ...result, othersShare }
  }
  return best!
}

async function observed<T>(serverPid: number, run: () => Promise<T>): Promise<{ result: T, othersShare: number }> {
  const [startedMs, before] = [performance.now(), othersSeconds(serverPid)]
  const result = await run()
  return { result, othersShare: Math.max(0, (othersSeconds(serverPid) - before) / (performance.now() - startedMs) * 1000) }
}

/** CPU time on both cores that was neither the server's nor ours; wrk's is ours once it has ended. */
function othersSeconds(serverPid: number): number {
  return busySeconds(SERVER_CORE) + busySeconds(LOAD_CORE) - cpuSeconds(serverPid) - cpuSeconds(process.pid, true)
}

function busySeconds(core: string): number {
  const line = readFileSync('/proc/stat', 'utf8').split('\n').find((text) => text.startsWith(`cpu${core} `)) ?? ''
  const [, user, nice, system, , , irq, softirq, steal] = line.split(' ').map(Number)
  return (user! + nice! + system! + irq! + softirq! + steal!) / TICKS_PER_SECOND
}
