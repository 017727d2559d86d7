/** Nine guests boot while a tenth floods. */
import { execFileSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import type { BootFigures } from '../programs/booters.ts'
import { startChild, type Child } from '../programs/processes.ts'

/** The kinds of floods; null: no flood. */
export const FLOODS = [
  null,
  'keep-alive',
  'pipelining',
  'new connections',
  'slow headers',
  'bodies',
  'never reading',
  'malformed',
  'CONNECT',
  'line breaks',
] as const

const FLOODER = new URL('../programs/flooder.ts', import.meta.url).pathname
const BOOTERS = new URL('../programs/booters.ts', import.meta.url).pathname

/**
 * Lets guests boot for `seconds` during a flood, which begins a second earlier. Returns their figures, and the number
 * of responses to the flooder.
 */
export async function bootDuringFlood(
  flood: (typeof FLOODS)[number],
  port: number,
  flooder: string,
  guests: readonly string[],
  seconds: number,
): Promise<BootFigures & { readonly flooded: number }> {
  const attacker = flood === null ? null : await startChild([process.execPath, FLOODER, flood, String(port), flooder])
  // it may share a core with the guests, whose latencies are measured
  if (attacker !== null) execFileSync('renice', ['-n', '19', '-p', String(attacker.pid)], { stdio: 'ignore' })
  await sleep(1_000)
  const booters = await startChild([process.execPath, BOOTERS, String(port), ...guests])
  await sleep(seconds * 1_000)
  const figures = JSON.parse(await stopAndReadLine(booters)) as BootFigures
  const flooded = attacker === null ? 0 : Number(await stopAndReadLine(attacker))
  return { ...figures, flooded }
}

/** Stops a child. Returns the line that it prints then. */
async function stopAndReadLine(child: Child): Promise<string> {
  const line = new Promise<string>((resolve) => child.onLine(resolve))
  await child.stop()
  return line
}
