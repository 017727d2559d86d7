/**
 * The entry of `npm start`. Runs the daemon with its demo instance as a child process, and imds-api with a demo account
 * in this process, which publishes into the daemon's store. Both end together, and their temporary directory is
 * deleted.
 *
 * With `--daemon-only`, or if IMDS_STORE names a store (which may be a real one), it is the same as `imdsd --demo`.
 */
import { STOP_SIGNALS } from './runtime/signals.ts' // first: it catches SIGUSR1
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { prepareDemo } from './imdsd/demo.ts'
import { startPostgres } from './postgres.ts'
import { buildLog, standardOutput, terminalOutput } from './runtime/log.ts'
import { EXIT } from './runtime/exit-status.ts'
import { formatHostPort } from './runtime/host-port.ts'
import { StartFailure } from './runtime/listen.ts'

/** V8's options for the daemon, as in systemd/imds.service. They would slow down the start of imds-api. */
const DAEMON_OPTIONS = [
  '--max-semi-space-size=2',
  '--max-old-space-size=1024',
  '--no-parallel-scavenge',
  '--no-concurrent-recompilation',
]

const args = process.argv.slice(2)
const isDaemonOnly = args.includes('--daemon-only')
if (args.length > Number(isDaemonOnly)) {
  console.error('usage: npm start [-- --daemon-only]')
  process.exit(EXIT.usage)
}
if (isDaemonOnly || (process.env['IMDS_STORE'] ?? '') !== '') {
  process.argv.splice(2, Infinity, '--demo')
  await import('./imdsd/main.ts')
} else await startBoth()

async function startBoth(): Promise<void> {
  const demo = await prepareDemo(process.env)
  chmodSync(demo.directory, 0o711) // as root, PostgreSQL runs as another user
  const postgres = startPostgres(join(demo.directory, 'postgres'), ['fsync=off']) // it is deleted at the end
  postgres.catch(() => undefined) // `starting` fails too
  const output = process.stdout.isTTY ? await terminalOutput() : standardOutput(process.env['JOURNAL_STREAM'])
  const log = buildLog('info', output)

  const daemon = spawn(process.execPath, [...DAEMON_OPTIONS, new URL('./imdsd/main.ts', import.meta.url).pathname], {
    env: demo.env,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const daemonEnded = once(daemon, 'exit')
  const daemonListens = new Promise<{ guests: readonly string[]; operator: string | undefined }>((resolve) => {
    createInterface({ input: daemon.stdout }).on('line', (line) => {
      output.write(`${line}\n`)
      const { msg, guests, operator } = JSON.parse(line) as {
        msg: string
        guests: readonly string[]
        operator?: string
      }
      if (msg === 'listening') resolve({ guests, operator })
    })
  })
  const starting = startApi()

  let ending = false as boolean // TypeScript does not see that `end` sets it
  const end = async (status: number) => {
    if (ending) return
    ending = true
    await starting.then(
      (api) => api.stop(),
      () => undefined, // it has cleaned up
    )
    await postgres.then(
      (server) => server.stop(),
      () => undefined,
    )
    daemon.kill('SIGTERM')
    await daemonEnded
    demo.clean()
    process.exit(status)
  }
  for (const signal of STOP_SIGNALS) process.on(signal, () => void end(0))
  void daemonEnded.then(() => end(daemon.exitCode ?? 1))
  try {
    const [
      {
        guests: [guest],
        operator,
      },
      api,
    ] = await Promise.all([daemonListens, starting])
    if (guest !== undefined && !ending) {
      demo.announce(guest, operator)
      const { tryLines } = await import('./imds-api/demo.ts')
      const address = api.listening.find((place) => place.path === undefined)
      if (address !== undefined) console.log(`${tryLines(formatHostPort(address), guest).join('\n')}\n`)
    }
    await (
      await postgres
    ).ended
    if (!ending) console.error('PostgreSQL has ended')
  } catch (error) {
    if (!ending)
      log.fatal(
        { code: 'start-failed', ...(error instanceof StartFailure ? { reason: error.message } : { err: error }) },
        'imds-api cannot start; npm start -- --daemon-only starts the daemon alone',
      )
  }
  await end(1)

  async function startApi() {
    const loading = import('./imds-api/service/service.ts') // while initdb runs
    const { demoEnvironment, prepareDatabase } = await import('./imds-api/demo.ts')
    const env = demoEnvironment(demo.env, (await postgres).url)
    const faults = await prepareDatabase(env)
    if (faults.length > 0)
      throw new StartFailure(faults.map(({ variable, message }) => `${variable} ${message}`).join('; '))
    const parsed = (await import('./imds-api/service/config.ts')).parseApiConfig(env)
    if (!parsed.ok) throw new Error('the configuration was good before')
    return (await loading).startApi(parsed.value, log)
  }
}
