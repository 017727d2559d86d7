/**
 * Nine guests boot while a tenth floods.
 */
import { execFileSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Seen } from '../programs/booters.ts'
import { startHeld } from '../programs/processes.ts'

/** The ways in which a guest can flood; null means that it does not. */
export const FLOODS = [null, 'keep-alive', 'pipelining', 'new connections', 'slow headers', 'bodies', 'never reading'] as const

const FLOODER = new URL('../programs/flooder.ts', import.meta.url).pathname
const BOOTERS = new URL('../programs/booters.ts', import.meta.url).pathname

/** What nine guests saw within `seconds`, and how many responses the flooder got. The flood begins a second earlier. */
export async function bootUnder(flood: typeof FLOODS[number], port: number, flooder: string, guests: readonly string[], seconds: number): Promise<Seen & { readonly flooded: number }> {
  const attacker = flood === null ? null : await startHeld([process.execPath, FLOODER, flood, String(port), flooder])
  if (attacker !== null) execFileSync('renice', ['-n', '19', '-p', String(attacker.pid)], { stdio: 'ignore' }) // it shares a core with the processes that are measured
  await sleep(1_000)
  const booters = await startHeld([process.execPath, BOOTERS, String(port), ...guests])
  await sleep(seconds * 1_000)
  const seen = JSON.parse(await lastLine(booters)) as Seen
  const flooded = attacker === null ? 0 : Number(await lastLine(attacker))
  return { ...seen, flooded }
}

async function lastLine(held: Awaited<ReturnType<typeof startHeld>>): Promise<string> {
  const line = new Promise<string>((resolve) => { held.listen(resolve) })
  const ended = held.release()
  const said = await line
  await ended
  return said
}
