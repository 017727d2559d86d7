/**
 * The environment of a service as systemd gives it to the service, for commands that run beside it: the variables of
 * its unit and drop-ins, those of its environment file, and the files of its credentials. Variables of the command's
 * own environment come first.
 */
import type { Parsed } from '../metadata/parsed.ts'
import { parseEnvironmentFile } from './environment-file.ts'
import type { Unit } from './unit-file.ts'
import { setVariables, type Environment } from './variables.ts'
import { readTextFile } from './text-file.ts'

/** Where a service has its variables. `file`: its environment file if there is no unit. */
export interface Service {
  readonly name: string
  readonly file: string
}
export const IMDS_SERVICE: Service = { name: 'imds.service', file: '/etc/imds/imds.env' }
export const IMDS_API_SERVICE: Service = { name: 'imds-api.service', file: '/etc/imds/imds-api.env' }

/** Variables of files that belong to a store. */
const OF_A_STORE = /^IMDS_(REDIS_\w+|RECORD_KEYS)_FILE$/

export interface ServiceEnvironment {
  /** Where a variable names a credential, its value is the file that systemd loads. */
  readonly variables: Environment
  /** The files of those variables. systemd reads them as root; the user of the service does not need to. */
  readonly credentials: ReadonlySet<string>
  readonly files: readonly string[]
  /** Variables of imds that the command has in place of the service's, if there is a service. */
  readonly replaced: readonly string[]
  /** What an operator should know: variables that come from elsewhere, files that cannot be read. */
  readonly notes: readonly string[]
}

/**
 * Reads the environment of a service for a command with the environment `env`. `file` replaces the environment files of
 * the unit; the only fault is that it cannot be read (exit status 66). `storeOption`: the command was given a store by an
 * option. Then, and with a store in `env`, no file of Redis' secrets and certificates, and of record keys, comes from the
 * service, because it belongs to another store.
 */
export function readServiceEnvironment(
  service: Service,
  unit: Unit | undefined,
  file: string | undefined,
  ownEnvironment: Environment,
  storeOption: boolean,
): Parsed<ServiceEnvironment, string> {
  const env = setVariables(ownEnvironment)
  const hasStore = storeOption || env['IMDS_STORE'] !== undefined
  const notes: string[] = []
  const files = [...(unit?.files ?? [])]
  const credentials = new Set<string>()
  const given: Record<string, string> = { ...unit?.environment }
  for (const path of file === undefined ? (unit?.environmentFiles ?? [service.file]) : [file]) {
    const { text, reason } = read(path)
    if (text === undefined && file !== undefined)
      return { ok: false, faults: [`--environment-file ${path} cannot be read: ${String(reason)}`] }
    if (reason !== undefined && reason !== 'ENOENT')
      notes.push(`${path} cannot be read: ${reason}; run this command as root`)
    if (text === undefined) continue
    const { variables, ignored } = parseEnvironmentFile(text)
    for (const name of ignored) notes.push(`${path}: "${name}" is not the name of a variable, and systemd ignores it`)
    Object.assign(given, variables)
    files.push(path)
  }
  const used = Object.entries(setVariables(given) as typeof given).filter(
    ([name]) => name.startsWith('IMDS_') && !(hasStore && OF_A_STORE.test(name)),
  )
  const replaced =
    files.length === 0 ? [] : Object.keys(env).filter((name) => name.startsWith('IMDS_') && env[name] !== given[name])
  if (replaced.length > 0)
    notes.push(`from the environment of this command, not from the service: ${replaced.join(', ')}`)
  const resolved = used.map(([name, value]) => {
    const source = unit?.credentials.get(value)
    if (source?.startsWith('/') !== true) return [name, value] as const
    if (env[name] === undefined) credentials.add(source)
    return [name, source] as const
  })
  return {
    ok: true,
    value: { variables: { ...Object.fromEntries(resolved), ...env }, credentials, files, replaced, notes },
  }
}

function read(path: string): { readonly text?: string; readonly reason?: string } {
  try {
    return { text: readTextFile(path) }
  } catch (error) {
    return { reason: (error as NodeJS.ErrnoException).code ?? (error as Error).message }
  }
}
