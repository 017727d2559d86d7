/** Runs wrk and parses its output. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

/** How connections are used. `reconnect`: one connection per request, as cloud-init does. */
export type Connections = 'keep-alive' | 'reconnect'

/** The figures of one run of wrk. */
export interface WrkRun {
  readonly requestsPerSecond: number
  readonly requests: number
  readonly p50Ms: number
  readonly p99Ms: number
}

const CONNECTIONS = 32
const MS: Readonly<Record<string, number>> = { us: 0.001, ms: 1, s: 1000, m: 60_000 }

/**
 * Loads a URL from one thread with 32 connections. Rejects if any status was not 200, because the figures would mean
 * nothing.
 */
export async function runWrk(url: string, connections: Connections, seconds: number): Promise<WrkRun> {
  const args = [
    '-t1',
    `-c${CONNECTIONS}`,
    `-d${seconds}s`,
    '--latency',
    ...(connections === 'reconnect' ? ['-H', 'Connection: close'] : []),
    url,
  ]
  const { stdout } = await promisify(execFile)('wrk', args)
  if (/Socket errors|Non-2xx/.test(stdout)) throw new Error(`wrk ${args.join(' ')} had errors:\n${stdout}`)
  const read = (pattern: RegExp) => pattern.exec(stdout)?.slice(1) ?? []
  const time = ([value, unit]: readonly string[]) => Number(value) * (MS[unit ?? ''] ?? NaN)
  return {
    requestsPerSecond: Number(read(/Requests\/sec:\s+([\d.]+)/)[0]),
    requests: Number(read(/(\d+) requests in/)[0]),
    p50Ms: time(read(/50%\s+([\d.]+)(us|ms|s|m)/)),
    p99Ms: time(read(/99%\s+([\d.]+)(us|ms|s|m)/)),
  }
}
