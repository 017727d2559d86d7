/** Runs wrk and parses its output. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'

/** How connections are used. `reconnect`: one connection per request, as cloud-init does. */
export type Connections = 'keep-alive' | 'reconnect'

const CONNECTIONS = 32

/**
 * Loads a URL from one thread with 32 connections, and returns the requests per second. Rejects if any status was not
 * 200, because the figure would mean nothing.
 */
export async function runWrk(url: string, connections: Connections, seconds: number): Promise<number> {
  const args = [
    '-t1',
    `-c${CONNECTIONS}`,
    `-d${seconds}s`,
    ...(connections === 'reconnect' ? ['-H', 'Connection: close'] : []),
    url,
  ]
  const { stdout } = await promisify(execFile)('wrk', args)
  if (/Socket errors|Non-2xx/.test(stdout)) throw new Error(`wrk ${args.join(' ')} had errors:\n${stdout}`)
  return Number(/Requests\/sec:\s+([\d.]+)/.exec(stdout)?.[1])
}
