/**
 * The secrets that this hypervisor has, so that a bug report can be searched for them, and the variables that may be in
 * it.
 */
import { VARIABLES } from '../daemon/config.ts'
import { parseEnvironmentFile } from '../runtime/environment-file.ts'
import { readSettingFile } from '../runtime/regular-file.ts'
import { IMDS_SERVICE } from '../runtime/service-environment.ts'
import type { Unit } from '../runtime/unit-file.ts'
import type { Environment } from '../runtime/variables.ts'
import { secretFiles } from '../checks/checks-of-files.ts'
import type { Look } from '../checks/look.ts'
import { REMOVED } from './redact.ts'

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

/** The variables as a bug report has them: values of variables that imds does not know are removed. */
export function formatVariables(variables: Environment): string {
  return Object.entries(variables)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value = '']) => `${name}=${isKnown(name) ? value : REMOVED}`)
    .join('\n')
}

/**
 * Every secret that can be found: in the key files of the service and of this command, in the service's credentials, in
 * variables that imds does not know, and in URLs.
 */
export function findSecrets(settings: Look['settings'], unit: Unit | undefined, variables: Environment): string[] {
  const files = new Set([
    ...secretFiles(settings),
    ...secretFiles({ ...settings, variables }),
    ...(unit?.credentials.values() ?? []),
  ])
  const inFiles = [...files].flatMap((path) => partsOf(textOf(path) ?? ''))
  const unknown = Object.entries(variables).flatMap(([name, value = '']) =>
    !isKnown(name) && value.length >= DISTINCTIVE ? [value] : [],
  )
  const inUrls = Object.values({ ...variables, ...settings.variables }).flatMap((value = '') => {
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

function isKnown(name: string): boolean {
  return name in VARIABLES || HARMLESS.includes(name)
}

function textOf(path: string): string | undefined {
  try {
    return readSettingFile(path).toString()
  } catch {
    return undefined
  }
}
