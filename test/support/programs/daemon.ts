/** Starts the daemon as a child process, as an operator runs it, and sends requests to it. */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { get, type IncomingHttpHeaders, type RequestOptions } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { IMDSD, programEnvironment } from './imds.ts'

/** One line of the daemon's log. */
export type LogLine = Readonly<Record<string, unknown>> & { readonly level: string; readonly msg: string }

/** A response as on the wire. */
export interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  readonly body: Buffer
}

/** A running daemon. */
export interface TestDaemon {
  readonly process: ChildProcess
  /** The ports of the first guest listener and of the operator API. */
  readonly guestPort: number
  readonly operatorPort: number
  /** The unix socket of the operator API, as imdsctl's --operator takes it. */
  readonly operatorSocket: string
  readonly log: readonly LogLine[]
  /** The temporary directory of this daemon: its state directory, unless the environment names another. */
  readonly directory: string
  /** GET as a guest at `from` (default 127.0.0.1). */
  get(path: string, from?: string): Promise<Answer>
  /** GET of the operator API, on its unix socket. */
  operator(path: string): Promise<Answer>
  /** The value of a metric, with its labels as Prometheus prints them: `imds_resyncs_total{result="completed"}`. */
  metric(name: string): Promise<number>
  /** The text of a condition that the daemon finds now, or undefined. */
  condition(code: string): Promise<string | undefined>
  /** Sends SIGTERM and waits for the end. Returns the exit status. */
  stop(): Promise<number | null>
}

/** Runs the daemon until it ends, for tests of a failing start. `meanwhile` is called with its process. */
export async function runDaemon(
  env: Readonly<Record<string, string>>,
  meanwhile?: (child: ChildProcess) => Promise<void>,
): Promise<{ status: number | null; stdout: string; stderr: string }> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-daemon-'))
  const child = spawn(process.execPath, [IMDSD], {
    env: {
      ...programEnvironment(),
      IMDS_STATE_DIR: directory,
      IMDS_OPERATOR_SOCKET: join(directory, 'operator.sock'),
      ...env,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  await meanwhile?.(child).catch((error: unknown) => {
    child.kill('SIGKILL')
    throw error
  })
  const [stdout, stderr] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => Buffer.concat(await stream.toArray()).toString()),
  )
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  rmSync(directory, { recursive: true })
  return { status: child.exitCode, stdout: stdout ?? '', stderr: stderr ?? '' }
}

/** Settings for tests and benchmarks whose guests send more requests than the default share. */
export const ENDLESS_SHARE = { IMDS_GUEST_BURST: '1000000000', IMDS_GUEST_CONNECTIONS: '65536' }

/**
 * Options of a daemon besides its environment: the entry point of another build, and file descriptors to inherit (the
 * first becomes 3).
 */
export interface DaemonOptions {
  readonly main?: string
  readonly fds?: readonly number[]
}

/**
 * Starts a daemon on free ports of 127.0.0.1 and waits until it listens. It stops with the test, if there is one. Its
 * guests have an unlimited share. `env` adds to these settings or overrides them; `within` is a command that runs another
 * one, such as `ip netns exec NAME`.
 */
export async function startDaemon(
  t: Pick<Test, 'teardown'> | undefined,
  env: Readonly<Record<string, string>>,
  within: readonly string[] = [],
  { main = IMDSD, fds = [] }: DaemonOptions = {},
): Promise<TestDaemon> {
  const directory = mkdtempSync(join(tmpdir(), 'imds-daemon-'))
  const args = [
    ...within,
    process.execPath,
    '--max-semi-space-size=2',
    '--max-old-space-size=1024',
    '--no-parallel-scavenge',
    '--no-concurrent-recompilation',
    main,
  ]
  const child = spawn(args[0]!, args.slice(1), {
    env: {
      ...programEnvironment(),
      IMDS_LISTEN: '127.0.0.1:0',
      IMDS_OPERATOR_LISTEN: '127.0.0.1:0',
      IMDS_OPERATOR_SOCKET: join(directory, 'operator.sock'),
      IMDS_STATE_DIR: directory,
      ...ENDLESS_SHARE,
      ...env,
    },
    stdio: ['ignore', 'pipe', 'inherit', ...fds],
  })
  const log: LogLine[] = []
  createInterface({ input: child.stdout! }).on('line', (line) => log.push(JSON.parse(line) as LogLine))
  await until(
    () => log.some(({ msg }) => msg === 'listening') || child.exitCode !== null,
    'the daemon to listen',
  ).catch((error: unknown) => {
    child.kill('SIGKILL') // otherwise it would keep the test's output open, and tap would wait for it
    throw error
  })
  const listening = log.find(({ msg }) => msg === 'listening')
  if (listening === undefined) throw new Error(`the daemon did not start: ${JSON.stringify(log)}`)
  const port = (place: unknown) => Number(/:(\d+)$/.exec(String(place))?.[1])
  const guestPort = port((listening['guests'] as string[])[0])
  const operatorPort = port(listening['operator'])
  const socketPath = String(listening['operatorSocket'])
  const operator = (path: string) => answerOf({ socketPath, path })
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) {
      child.kill('SIGTERM')
      await once(child, 'exit')
    }
    rmSync(directory, { recursive: true, force: true })
    return child.exitCode
  }
  t?.teardown(stop)
  return {
    process: child,
    guestPort,
    operatorPort,
    operatorSocket: `unix:${socketPath}`,
    log,
    directory,
    operator,
    get: (path, from) => request(guestPort, path, from),
    metric: async (name) => {
      const line = (await operator('/metrics')).body
        .toString()
        .split('\n')
        .find((text) => text.startsWith(`${name} `))
      return line === undefined ? NaN : Number(line.slice(name.length + 1))
    },
    condition: async (code) => {
      const { conditions } = JSON.parse((await operator('/readyz')).body.toString()) as {
        readonly conditions: readonly { readonly code: string; readonly text: string }[]
      }
      return conditions.find((one) => one.code === code)?.text
    },
    stop,
  }
}

/** Sends one GET on a new connection from a loopback address. */
export async function request(port: number, path: string, localAddress = '127.0.0.1'): Promise<Answer> {
  return answerOf({ host: '127.0.0.1', port, path, localAddress })
}

async function answerOf(options: RequestOptions): Promise<Answer> {
  return new Promise((resolve, reject) => {
    get({ ...options, agent: false }, (response) => {
      response.toArray().then((chunks) => {
        const answer = {
          status: response.statusCode ?? 0,
          headers: response.headers,
          body: Buffer.concat(chunks as Buffer[]),
        }
        setImmediate(resolve, answer) // by then this process has read the lines that the daemon logged before
      }, reject)
    }).on('error', reject)
  })
}

/** Resolves with an answer, or undefined if it was reset: the instance left the view meanwhile (contract E6). */
export async function unlessReset(answer: Promise<Answer>): Promise<Answer | undefined> {
  return answer.catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code !== 'ECONNRESET') throw error
    return undefined
  })
}

/** Waits until a condition holds. Rejects after `timeoutMs`, naming `what`. */
export async function until(
  condition: () => boolean | Promise<boolean>,
  what: string,
  timeoutMs = 30_000,
): Promise<void> {
  for (const startedMs = performance.now(); ;) {
    if (await condition()) return
    const waitedMs = performance.now() - startedMs
    if (waitedMs > timeoutMs) throw new Error(`waited ${timeoutMs} ms in vain for ${what}`)
    // a condition that starts a process would use a whole core without a pause
    await sleep(Math.min(5 + waitedMs / 10, 100))
  }
}
