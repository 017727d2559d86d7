/**
 * The entry of imdsd: reads arguments and environment, starts the daemon, handles signals, and sets the exit status.
 *
 * Exit status: 0 after SIGTERM, SIGINT or SIGHUP; 1 if the service cannot continue; of sysexits.h 64 (EX_USAGE) for wrong
 * arguments, 69 (EX_UNAVAILABLE) if --check --connect cannot use the store, and 78 (EX_CONFIG) for an invalid
 * configuration, before anything listens. (dist/main.js ends with 70 if Node.js is too old: rolldown.config.js.) With
 * `--demo`: a store with one instance for 127.0.0.1 unless the environment names another store, and readable log lines
 * on a terminal.
 */
import { STOP_SIGNALS } from '../runtime/signals.ts' // first: it catches SIGUSR1
import { setTimeout as sleep } from 'node:timers/promises'
import type { Arguments } from './arguments.ts'
import { EXIT } from '../runtime/exit-status.ts'
import { missingFile } from '../runtime/installation.ts'
import type { Output } from '../runtime/output.ts'
import { parseConfig } from './config.ts'
import { startDaemon } from './daemon.ts'
import { formatHostPort } from '../runtime/host-port.ts'
import { StartFailure } from '../runtime/listen.ts'
import { buildLog, standardOutput, terminalOutput } from '../runtime/log.ts'
import { inheritedSockets, superviseBy } from '../runtime/systemd.ts'
import { turnOffPretenuring } from './pretenuring.ts'
import type { VariableFault } from '../runtime/variables.ts'
import { readTextFile } from '../runtime/text-file.ts'

/**
 * The delay of an exit for an invalid configuration, in ms. While guests wait in its sockets, systemd restarts the
 * daemon at once; the delay bounds that rate.
 */
const BAD_CONFIG_DELAY_MS = 2_000

turnOffPretenuring()
const args = process.argv.length > 2 ? await readArguments() : {}
const demo = args.demo === true ? await (await import('./demo.ts')).prepareDemo(process.env) : undefined
const env = demo?.env ?? process.env
const passed = inheritedSockets(env, process.pid)
const parsed = parseConfig(env, passed, readTextFile)
if (!parsed.ok) {
  demo?.clean()
  printFaults(parsed.faults)
  if (passed.length > 0) await sleep(BAD_CONFIG_DELAY_MS)
  process.exit(EXIT.badConfig)
}
const log = buildLog(
  parsed.value.logLevel,
  demo !== undefined && process.stdout.isTTY ? await terminalOutput() : standardOutput(process.env['JOURNAL_STREAM']),
)
if (parsed.unknown.length > 0)
  log.warn({ code: 'variables-unknown', variables: parsed.unknown }, 'unknown variables are ignored')

const end = (status: number) => {
  demo?.clean()
  process.exit(status)
}
process.on('uncaughtException', (error) => {
  log.fatal({ code: 'unexpected-error', err: error }, 'unexpected error')
  end(1)
})
const starting = startDaemon(parsed.value, log)
let stopping = false as boolean // TypeScript does not see that `stop` sets it
const stop = (signal: string) => {
  if (stopping) return
  stopping = true
  log.info({ signal }, 'stopping')
  starting
    .then((daemon) => daemon.stop())
    .then(
      () => end(0),
      (error: unknown) => {
        log.fatal({ code: 'stop-failed', err: error }, 'could not stop cleanly')
        end(1)
      },
    )
}
// Registered early, because guests are served before the start is complete.
for (const signal of STOP_SIGNALS) process.on(signal, stop)
try {
  const daemon = await starting
  if (!stopping) {
    superviseBy(env, log)
    const [guest] = daemon.guests
    if (guest !== undefined) demo?.announce(formatHostPort(guest), daemon.operator && formatHostPort(daemon.operator))
  }
} catch (error) {
  const path = missingFile(error)
  const reason =
    path !== undefined
      ? `cannot load ${path}: if imds was just upgraded, start it again; otherwise install it again`
      : error instanceof StartFailure
        ? error.message
        : undefined
  log.fatal({ code: 'start-failed', ...(reason === undefined ? { err: error } : { reason }) }, 'could not start')
  end(1)
}

function printFaults(faults: readonly VariableFault[]): void {
  console.error('imds: the configuration is invalid:')
  for (const { variable, message } of faults) console.error(`  ${variable} ${message}`)
}

/** Parses the arguments. Ends the process after an option that only prints, such as --check. */
async function readArguments(): Promise<Arguments> {
  const { Output } = await import('../runtime/output.ts')
  const output = new Output('imds', process.stdout, process.stderr, (status) => process.exit(status))
  const parsed = await (await import('./arguments.ts')).parseArguments(process.argv, output)
  if (parsed.check === true) process.exit(await output.finish(await check(output, parsed)))
  return parsed
}

/** Runs `--check`: prints what it finds, and returns the exit status. */
async function check(output: Output, { environmentFile, connect }: Arguments): Promise<number> {
  output.use({ json: false, continues: true })
  const { checkService } = await import('./check.ts')
  const checked = checkService(process.env, environmentFile, Date.now())
  if (!checked.ok) {
    output.warn(checked.faults.join())
    return EXIT.noInput
  }
  const { faults, notes, config } = checked.value
  for (const note of notes) console.error(`note: ${note}`)
  if (config === undefined || faults.length > 0) {
    printFaults(faults)
    return EXIT.badConfig
  }
  output.print('imds: the configuration is valid')
  if (connect !== true) return EXIT.done
  const { printProbe, probeStore } = await import('../store/probe.ts')
  return printProbe(output, await probeStore(config.store), 'imds: ')
}
