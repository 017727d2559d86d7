/**
 * The entry of imdsctl: reads arguments and environment, runs a command, and sets the exit status. No top-level await:
 * it splits chunks, and the start gets slower.
 */
import '../runtime/signals.ts' // first: it catches SIGUSR1
import { existsSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { EXIT } from '../runtime/exit-status.ts'
import { Output } from '../runtime/output.ts'
import { IMDS_API_SERVICE, IMDS_SERVICE, readServiceEnvironment } from '../runtime/service-environment.ts'
import { buildProgram } from './imdsctl.ts'

const output = new Output('imdsctl', process.stdout, process.stderr, (exitStatus) => process.exit(exitStatus))
/** The environment of imdsctl itself, before `readEnvironment` adds that of the service. */
const own = { ...process.env }
let status: number = EXIT.done
readEnvironment()
void buildProgram({
  output,
  env: process.env,
  own,
  onStatus: (of) => {
    status = of
  },
})
  .parseAsync()
  .catch((error: unknown) => {
    const { code, exitCode } = error as { code?: string; exitCode?: number }
    if (code?.startsWith('commander.') !== true) throw error
    status = exitCode === 0 ? EXIT.done : EXIT.usage
  })
  .then(async () => {
    process.exitCode = await output.finish(status)
  })

/**
 * Sets the variables of the service that are not set: of the daemon's, or of imds-api's on a host that has no daemon. Ends
 * the process if --environment-file names a file that
 * cannot be read.
 */
function readEnvironment(): void {
  const options = { 'environment-file': { type: 'string' }, store: { type: 'string', short: 's' } } as const
  const {
    values: { 'environment-file': file, store },
  } = parseArgs({ options, strict: false })
  const isControlPlane = !existsSync(IMDS_SERVICE.file) && existsSync(IMDS_API_SERVICE.file)
  const read = readServiceEnvironment(
    isControlPlane ? IMDS_API_SERVICE : IMDS_SERVICE,
    typeof file === 'string' ? file : undefined,
    process.env,
    store !== undefined,
  )
  if (!read.ok) {
    output.warn(read.faults.join())
    process.exit(EXIT.noInput)
  }
  const { variables } = read.value
  for (const name of Object.keys(process.env)) if (name.startsWith('IMDS_')) Reflect.deleteProperty(process.env, name) // those that are empty too
  Object.assign(process.env, Object.fromEntries(Object.entries(variables).filter(([name]) => name.startsWith('IMDS_'))))
}
