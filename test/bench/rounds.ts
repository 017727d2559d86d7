/**
 * Compares servers: they take turns on one core, in rounds of alternating order, so that other load affects all of
 * them.
 */
import type { Server } from './processes.ts'
import { runWrk, type Connections } from './wrk.ts'

/** The length of a measurement. */
export interface Effort {
  readonly seconds: number
  /** The number of processes of each program, where their differences matter. */
  readonly processes: number
}

/**
 * Loads every server in turn by wrk with the same options. Returns the requests per second of each round, for each
 * server.
 */
export async function takeTurns(
  servers: readonly Server[],
  path: string,
  connections: Connections,
  { warmUpSeconds, rounds, seconds }: Readonly<Record<'warmUpSeconds' | 'rounds' | 'seconds', number>>,
): Promise<readonly (readonly number[])[]> {
  const results = servers.map((): number[] => [])
  for (const { port } of servers) await runWrk(urlOf(port, path), connections, warmUpSeconds)
  for (let n = 0; n < rounds; n++) {
    const turns = [...servers.keys()]
    for (const i of n % 2 === 0 ? turns : turns.reverse())
      results[i]!.push(await runWrk(urlOf(servers[i]!.port, path), connections, seconds))
  }
  return results
}

function urlOf(port: number, path: string): string {
  return `http://127.0.0.1:${port}${path}`
}
