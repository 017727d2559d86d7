/**
 * A load that a guest puts on the service while something happens to it.
 */
import { until } from '../programs/daemon.ts'
import { startHeld } from '../programs/processes.ts'
import { SERVICE, type Guest } from '../netns/namespaces.ts'

/**
 * Who asks: so many clients of one guest at once, each on a connection per request (as cloud-init) or on one that it keeps. A connection
 * on which nothing comes for `patienceMs` (default 30 s) is given up.
 */
export interface Load { readonly clients: number, readonly keepAlive: boolean, readonly localPort?: number, readonly patienceMs?: number }

/** A request that was not answered 200: the status or the error's code, and when it was under way (Unix time). */
export interface Failure { readonly path: string, readonly what: string, readonly startedMs: number, readonly endedMs: number }

/** What a load saw. `retried`: requests on a kept connection that was found closed, which were asked again on another. */
export interface Figures {
  readonly requests: number
  readonly retried: number
  readonly slowestMs: number
  readonly failed: readonly Failure[]
  /** Each body (latin1) that a path was answered with. */
  readonly answers: Readonly<Record<string, readonly string[]>>
}

const AGENT = new URL('../programs/load-agent.ts', import.meta.url).pathname

/** A load that runs. */
export interface RunningLoad {
  /** Resolves once it has asked that many times more. */
  more(requests: number): Promise<void>
  /** Lets the requests that are under way end, and tells. */
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
