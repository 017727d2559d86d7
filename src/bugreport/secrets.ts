/** The secrets that this machine has, so that a bug report can be searched for them, and the variables that may be in it. */
import { unescape } from 'node:querystring'
import { readSettingFile } from '../runtime/regular-file.ts'
import { namesSecrets } from '../runtime/secret-file.ts'
import type { Unit } from '../runtime/unit-file.ts'
import type { Environment, VariableTable } from '../runtime/variables.ts'
import type { IsPublic } from './assignments.ts'
import { REMOVED } from './redact.ts'

/** Variables besides those of imds whose values are no secrets. */
const HARMLESS = ['NODE_ENV', 'NODE_COMPILE_CACHE', 'NODE_OPTIONS', 'ADDRESSES']
/** A value of another variable that is shorter is removed beside its name only: it may be an ordinary word. */
const DISTINCTIVE = 8
/** A password in a URL, such as that of a store or a database. */
const IN_URL = /:\/\/[^:@/]*:(.+)@|[?&]password=([^&#\s]+)/gs

/**
 * Returns a function that is true for a value that a report may have: that of a variable of the table. One that names a
 * file may have been given the secret itself.
 */
export function publicVariables(table: VariableTable): IsPublic {
  return (name, value) =>
    (Object.hasOwn(table, name) || HARMLESS.includes(name)) && (!namesSecrets(name) || /^(?:%\w)?\//.test(value))
}

/** The variables as a bug report has them: only with values that are public. */
export function formatVariables(variables: Environment, isPublic: IsPublic): string {
  return Object.entries(variables)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value = '']) => `${name}=${isPublic(name, value) ? value : REMOVED}`)
    .join('\n')
}

/**
 * Every secret that can be found: in `files` and those that variables name, in the services' credentials, in variables
 * that are not public, and in URLs.
 */
export function findSecrets(
  units: readonly (Unit | undefined)[],
  environments: readonly Environment[],
  files: readonly string[],
  isPublic: IsPublic,
): string[] {
  const all = environments.flatMap((environment) => Object.entries(environment))
  const paths = new Set([
    ...files,
    ...units.flatMap((unit) => [...(unit?.credentials.values() ?? [])]),
    ...all.flatMap(([name, path = '']) => (namesSecrets(name) ? [path] : [])),
  ])
  const inFiles = [...paths].flatMap((path) => partsOf(readIfPossible(path) ?? ''))
  const unknown = all.flatMap(([name, value = '']) =>
    !isPublic(name, value) && (value.length >= DISTINCTIVE || namesSecrets(name)) ? [value] : [],
  )
  const inUrls = all.flatMap(([, value = '']) =>
    [...value.matchAll(IN_URL)].flatMap(([, ofUser, parameter = '']) => [
      ofUser ?? parameter,
      unescape(ofUser ?? parameter),
    ]),
  )
  return [...inFiles, ...unknown, ...inUrls]
}

/** The lines of a file of secrets, and what follows the name in `NAME:BASE64`. */
function partsOf(text: string): string[] {
  const lines = text.split(/\r?\n/).map((line) => line.trim())
  return lines.filter((line) => line !== '').flatMap((line) => [line, /^[\w.-]+:(.+)$/.exec(line)?.[1] ?? line])
}

/** The text of a file; undefined if it cannot be read. */
export function readIfPossible(path: string): string | undefined {
  try {
    return readSettingFile(path).toString()
  } catch {
    return undefined
  }
}
