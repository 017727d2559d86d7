/**
 * The secrets that this hypervisor has, so that a bug report can be searched for them, and the variables that may be in
 * it.
 */
import { VARIABLES } from '../../imdsd/config.ts'
import { parseEnvironmentFile } from '../../runtime/environment-file.ts'
import { readSettingFile } from '../../runtime/regular-file.ts'
import { IMDS_SERVICE } from '../../runtime/service-environment.ts'
import type { Unit } from '../../runtime/unit-file.ts'
import type { Environment } from '../../runtime/variables.ts'
import { SECRET_FILES, secretFiles } from '../../imdsd/checks/checks-of-files.ts'
import type { HostState } from '../../imdsd/checks/host-state.ts'
import { REMOVED } from './redact.ts'

/** The services that may have variables. */
export const SERVICES = [IMDS_SERVICE.name, 'imds-firewall.service', 'imds-address.service']
/** Variables besides the daemon's own whose values are no secrets. */
const HARMLESS = ['NODE_ENV', 'NODE_COMPILE_CACHE', 'NODE_OPTIONS', 'ADDRESSES']
/** A value of another variable that is shorter is removed beside its name only: it may be an ordinary word. */
const DISTINCTIVE = 8

/** The whole environment of the service, with variables that are not for imds. */
export function serviceVariables(
  unit: Unit | undefined,
  environmentFile: string | undefined,
  own: Environment,
): Environment {
  const files = environmentFile === undefined ? (unit?.environmentFiles ?? [IMDS_SERVICE.file]) : [environmentFile]
  const read = files.map((path) => parseEnvironmentFile(textOf(path) ?? '').variables)
  const ofImds = Object.entries(own).filter(([name]) => name.startsWith('IMDS_'))
  return { ...unit?.environment, ...Object.assign({}, ...read), ...Object.fromEntries(ofImds) } as Environment
}

/** The variables as a bug report has them: only with values that are public. */
export function formatVariables(variables: Environment): string {
  return Object.entries(variables)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value = '']) => `${name}=${isPublic(name, value) ? value : REMOVED}`)
    .join('\n')
}

/**
 * Every secret that can be found: in the key files of the services and of this command, in the services' credentials, in
 * variables that are not public, and in URLs. `units`: the services, with their variables.
 */
export function findSecrets(
  settings: HostState['settings'],
  units: readonly (readonly [Unit | undefined, Environment])[],
): string[] {
  const files = new Set([
    ...secretFiles(settings),
    ...units.flatMap(([unit, variables]) => [
      ...secretFiles({ ...settings, variables }),
      ...(unit?.credentials.values() ?? []),
    ]),
  ])
  const all = units.flatMap(([, variables]) => Object.entries(variables))
  const inFiles = [...files].flatMap((path) => partsOf(textOf(path) ?? ''))
  const unknown = all.flatMap(([name, value = '']) =>
    !isPublic(name, value) && (value.length >= DISTINCTIVE || isSecretFile(name)) ? [value] : [],
  )
  const inUrls = [...all, ...Object.entries(settings.variables)].flatMap(([, value = '']) => {
    const password = /:\/\/[^:@/]*:(.+)@/s.exec(value)?.[1]
    return password === undefined ? [] : [password]
  })
  return [...inFiles, ...unknown, ...inUrls]
}

/** The lines of a file of secrets, and what follows the name in `NAME:BASE64`. */
function partsOf(text: string): string[] {
  const lines = text.split(/\r?\n/).map((line) => line.trim())
  return lines.filter((line) => line !== '').flatMap((line) => [line, /^[\w.-]+:(.+)$/.exec(line)?.[1] ?? line])
}

/** True for a value that a report may have. A variable that names a file may have been given the secret itself. */
export function isPublic(name: string, value: string): boolean {
  return isSecretFile(name) ? /^(?:%\w)?\//.test(value) : Object.hasOwn(VARIABLES, name) || HARMLESS.includes(name)
}

function isSecretFile(name: string): boolean {
  return (SECRET_FILES as readonly string[]).includes(name)
}

function textOf(path: string): string | undefined {
  try {
    return readSettingFile(path).toString()
  } catch {
    return undefined
  }
}
