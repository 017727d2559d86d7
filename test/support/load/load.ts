/** Requests from a guest without a pause, while a test does something else. */
import { until } from '../programs/daemon.ts'
import { startChild } from '../programs/processes.ts'
import { SERVICE, type Guest } from '../netns/namespaces.ts'

/**
 * The clients of one guest, each with a connection per request (as cloud-init) or a keep-alive connection. A request
 * fails if its connection receives nothing for 30 s.
 */
export interface Load {
  readonly clients: number
  readonly keepAlive: boolean
  readonly localPort?: number
}

/** A request without a 200: its status or error code, and when it began and ended (Unix time). */
export interface Failure {
  readonly path: string
  readonly what: string
  readonly startedMs: number
  readonly endedMs: number
}

/**
 * The figures of a load. `retried` counts requests that were repeated because the server had already closed the
 * keep-alive connection.
 */
export interface Figures {
  readonly requests: number
  readonly retried: number
  readonly slowestMs: number
  readonly failed: readonly Failure[]
  /** The bodies (latin1) of each path. */
  readonly answers: Readonly<Record<string, readonly string[]>>
}

const AGENT = new URL('../programs/load-agent.ts', import.meta.url).pathname

/** A load that runs. */
export interface RunningLoad {
  /** Resolves after the given number of further requests. */
  more(requests: number): Promise<void>
  /** Waits for in-flight requests and returns the figures. */
  stop(): Promise<Figures>
}

/** Starts a load. */
export async function startLoad({ within }: Guest, load: Load): Promise<RunningLoad> {
  const child = await startChild([...within, process.execPath, AGENT, SERVICE, JSON.stringify(load)])
  let onReply: (line: string) => void = () => undefined
  child.onLine((line) => onReply(line))
  const ended = child.ended.then(() => {
    throw new Error('the load agent has ended')
  })
  ended.catch(() => undefined)
  const command = (text: string) =>
    Promise.race([
      ended,
      new Promise<string>((resolve) => {
        onReply = resolve
        child.writeLine(text)
      }),
    ])
  return {
    more: async (requests) => {
      const before = Number(await command('count'))
      await until(async () => Number(await command('count')) >= before + requests, `${requests} more requests`, 30_000)
    },
    stop: async () => {
      const figures = JSON.parse(await command('stop')) as Figures
      await child.stop()
      return figures
    },
  }
}

/** The figures as one line of text. */
export function summary({ requests, retried, slowestMs, failed }: Figures): string {
  const kinds = [...Map.groupBy(failed, ({ what }) => what)].map(([what, { length }]) => `${length} ${what}`).join(', ')
  const retries = retried > 0 ? `, ${retried} retried because their connection had been closed` : ''
  return `${requests} requests, ${failed.length} failed${kinds && ` (${kinds})`}${retries}; the slowest took ${slowestMs} ms`
}
