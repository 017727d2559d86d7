/**
 * Repeats a measurement that other processes disturbed.
 *
 * The cores of a round may be used by other processes, or by other guests of this machine's host. Such a round says
 * little about the server: it is repeated when the machine is idle again.
 */
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { cpuSeconds, LOAD_CORE, SERVER_CORE, TICKS_PER_SECOND } from './processes.ts'

/** The largest share of a core that other processes may use during a round. */
const MAX_OTHERS_SHARE = 0.05
const ATTEMPTS = 3
/** How long to wait for an idle machine before a round runs anyway. */
const IDLE_TIMEOUT_MS = 5_000
const SAMPLE_MS = 500

/**
 * Runs something until it was not disturbed, at most three times. Returns the least disturbed run, and the share of a
 * core that other processes used.
 */
export async function undisturbed<T>(
  serverPid: number,
  run: () => Promise<T>,
): Promise<T & { readonly othersShare: number }> {
  let best: (T & { othersShare: number }) | undefined
  for (let attempt = 0; attempt < ATTEMPTS && (best === undefined || best.othersShare > MAX_OTHERS_SHARE); attempt++) {
    for (const startedMs = performance.now(); performance.now() - startedMs < IDLE_TIMEOUT_MS;) {
      if ((await observed(serverPid, () => sleep(SAMPLE_MS))).othersShare <= MAX_OTHERS_SHARE) break
    }
    const { result, othersShare } = await observed(serverPid, run)
    if (best === undefined || othersShare < best.othersShare) best = { ...result, othersShare }
  }
  return best!
}

async function observed<T>(serverPid: number, run: () => Promise<T>): Promise<{ result: T; othersShare: number }> {
  const [startedMs, before] = [performance.now(), otherCpuSeconds(serverPid)]
  const result = await run()
  return {
    result,
    othersShare: Math.max(0, ((otherCpuSeconds(serverPid) - before) / (performance.now() - startedMs)) * 1000),
  }
}

/**
 * CPU time on both cores that neither the server nor this process used. The time of wrk counts for this process once
 * wrk has ended.
 */
function otherCpuSeconds(serverPid: number): number {
  return busySeconds(SERVER_CORE) + busySeconds(LOAD_CORE) - cpuSeconds(serverPid) - cpuSeconds(process.pid, true)
}

function busySeconds(core: string): number {
  const line =
    readFileSync('/proc/stat', 'utf8')
      .split('\n')
      .find((text) => text.startsWith(`cpu${core} `)) ?? ''
  const [, user, nice, system, , , irq, softirq, steal] = line.split(' ').map(Number)
  return (user! + nice! + system! + irq! + softirq! + steal!) / TICKS_PER_SECOND
}
