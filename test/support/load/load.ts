/**
 * A load of requests from a guest while a test does something else.
 */
import { until } from '../programs/daemon.ts'
import { startHeld } from '../programs/processes.ts'
import { SERVICE, type Guest } from '../netns/namespaces.ts'

/**
 * The clients of one guest, each with a connection per request (as cloud-init) or a keep-alive connection. A connection
 * on which nothing arrives for `patienceMs` (default 30 s) counts as failed.
 */
export interface Load { readonly clients: number, readonly keepAlive: boolean, readonly localPort?: number, readonly patienceMs?: number }

/** A request without a 200: the status or the code of the error, and when it was in flight (Unix time). */
export interface Failure { readonly path: string, readonly what: string, readonly startedMs: number, readonly endedMs: number }

/** What a load saw. `retried`: requests that were repeated because the keep-alive connection was already closed. */
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
  /** Resolves after this many more requests. */
  more(requests: number): Promise<void>
  /** Waits for requests in flight, and returns the figures. */
  stop(): Promise<Figures>
}

/** Starts a load. */
export async function startLoad({ within }: Guest, load: Load): Promise<RunningLoad> {
  const held = await startHeld([...within, process.execPath, AGENT, SERVICE, JSON.stringify(load)])
  let heard: (line: string) => void = () => { /* it says nothing unasked */ }
  held.listen((line) => { heard(line) })
  const gone = held.ended.then(() => { throw new Error('the load is gone') })
  gone.catch(() => { /* whoever asks is told */ })
  const tell = (word: string) => Promise.race([gone, new Promise<string>((resolve) => {
    heard = resolve
    held.tell(word)
  })])
  return {
    more: async (requests) => {
      const before = Number(await tell('count'))
      await until(async () => Number(await tell('count')) >= before + requests, `${String(requests)} more requests`, 30_000)
    },
    stop: async () => {
      const figures = JSON.parse(await tell('stop')) as Figures
      await held.release()
      return figures
    },
  }
}

/** The figures in a line. */
export function summary({ requests, retried, slowestMs, failed }: Figures): string {
  const kinds = [...Map.groupBy(failed, ({ what }) => what)].map(([what, { length }]) => `${String(length)} ${what}`).join(', ')
  const found = retried > 0 ? `, ${String(retried)} asked again because their connection had been closed` : ''
  return `${String(requests)} requests, ${String(failed.length)} failed${kinds && ` (${kinds})`}${found}; the slowest took ${String(slowestMs)} ms`
}
