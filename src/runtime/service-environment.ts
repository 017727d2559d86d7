/**
 * The environment of a service as systemd gives it to the service, for commands that run beside it: the variables of
 * its unit and drop-ins, those of its environment file, and the files of its credentials. Variables of the command's
 * own environment come first.
 */
import { join } from 'node:path'
import type { Parsed } from '../metadata/parsed.ts'
import { askSystemd, valueOf, type AskSystemd } from './systemd-units.ts'
import { setVariables, type Environment } from './variables.ts'
import { readTextFile } from './text-file.ts'

/** What systemd has of a service. `files`: its unit and drop-ins. */
interface ServiceUnit {
  readonly files: readonly string[]
  readonly user: string | undefined
  /** The directory that systemd creates for the service and gives to its user. */
  readonly stateDirectory: string | undefined
  readonly environment: Readonly<Record<string, string>>
  readonly environmentFiles: readonly string[]
  /** LoadCredential=: the path that the service sees -> the file that systemd loads. */
  readonly credentials: ReadonlyMap<string, string>
  readonly needsReload: boolean
}

/** Where a service has its variables. `file`: its environment file if there is no unit. */
export interface Service {
  readonly name: string
  readonly file: string
}
export const IMDS_SERVICE: Service = { name: 'imds.service', file: '/etc/imds/imds.env' }
export const IMDS_API_SERVICE: Service = { name: 'imds-api.service', file: '/etc/imds/imds-api.env' }

const PROPERTIES = [
  'LoadState',
  'FragmentPath',
  'DropInPaths',
  'NeedDaemonReload',
  'User',
  'StateDirectory',
  'Environment',
  'EnvironmentFiles',
]
/** An assignment of a list that systemctl prints: a word, of which parts may be in quotes. */
const WORD = /(?:"(?:\\.|[^"\\])*"|\\.|[^\s"\\])+/g

/** Asks systemd for a service; undefined if its unit is not installed, or systemd does not answer. */
export function askService(name: string, ask: AskSystemd): ServiceUnit | undefined {
  const [unit] = ask([name], PROPERTIES) ?? []
  const property = (key: string) => valueOf(unit, key)
  if (property('LoadState') !== 'loaded') return undefined
  const files = [property('FragmentPath'), ...property('DropInPaths').split(' ')].filter((path) => path !== '')
  const assignments = (property('Environment').match(WORD) ?? []).map((word) => unquoteWord(word).split(/=(.*)/s))
  const [stateDirectory = ''] = property('StateDirectory').split(' ')
  return {
    files,
    user: property('User') || undefined,
    stateDirectory: stateDirectory === '' ? undefined : join('/var/lib', stateDirectory),
    environment: Object.fromEntries(assignments.map(([variable = '', value = '']) => [variable, value])),
    environmentFiles: (unit?.get('EnvironmentFiles') ?? []).map((text) => text.replace(/ \(ignore_errors=\w+\)$/, '')),
    credentials: new Map(credentialsOf(files).map(([id, path]) => [`/run/credentials/${name}/${id}`, path])),
    needsReload: property('NeedDaemonReload') === 'yes',
  }
}

function unquoteWord(word: string): string {
  return word.replace(/\\(.)|"/g, '$1')
}

/** LoadCredential= of a unit and its drop-ins, which systemctl does not print. An empty one discards those before it. */
function credentialsOf(files: readonly string[]): (readonly [id: string, path: string])[] {
  const all: (readonly [id: string, path: string])[] = []
  for (const line of files.flatMap((path) => (read(path).text ?? '').split('\n'))) {
    const [isSet, id, path] = /^LoadCredential\s*=\s*(?:([^:\s]+):(\S+))?/.exec(line) ?? []
    if (id !== undefined && path !== undefined) all.push([id, path])
    else if (isSet !== undefined) all.length = 0
  }
  return all
}

/** Variables of files that belong to a store. */
const OF_A_STORE = /^IMDS_(REDIS_\w+|RECORD_KEYS)_FILE$/

export interface ServiceEnvironment {
  /** Where a variable names a credential, its value is the file that systemd loads. */
  readonly variables: Environment
  /** The files of those variables. systemd reads them as root; the user of the service does not need to. */
  readonly credentials: ReadonlySet<string>
  readonly files: readonly string[]
  /** Of the service, if systemd has it. */
  readonly unit: ServiceUnit | undefined
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
  file: string | undefined,
  ownEnvironment: Environment,
  storeOption: boolean,
  ask: AskSystemd = askSystemd,
): Parsed<ServiceEnvironment, string> {
  const env = setVariables(ownEnvironment)
  const hasStore = storeOption || env['IMDS_STORE'] !== undefined
  const unit = askService(service.name, ask)
  const notes: string[] = []
  if (unit?.needsReload === true)
    notes.push(`${service.name} has changed, and systemd has not read it: systemctl daemon-reload`)
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
    value: { variables: { ...Object.fromEntries(resolved), ...env }, credentials, files, unit, replaced, notes },
  }
}

function read(path: string): { readonly text?: string; readonly reason?: string } {
  try {
    return { text: readTextFile(path) }
  } catch (error) {
    return { reason: (error as NodeJS.ErrnoException).code ?? (error as Error).message }
  }
}

/**
 * The variables of a file, and the names that systemd ignores because no variable can have them, such as `export NAME`.
 */
interface ParsedEnvironmentFile {
  readonly variables: Readonly<Record<string, string>>
  readonly ignored: readonly string[]
}

/** One comment or line, after white space. A backslash joins lines, in comments too (before systemd 254). */
const ITEM =
  /\s*(?:[#;](?:\\[^]?|[^\\\n\r])*|([^\s#;][^=\n\r]*)(?:=((?:[ \t]*(?:'[^']*(?:'|$)|"(?:\\[^]|[^"\\])*(?:"|\\?$)))*)[ \t]*((?:\\[^]?|[^\\\n\r])*))?)/gy
const QUOTED = /'([^']*)'?|"((?:\\[^]|[^"\\])*)\\?"?/g
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/

/**
 * Parses a file of variables as systemd does for EnvironmentFile= (systemd.exec(5)): comments begin with # or ;, a
 * value may have parts in quotes at its beginning, a backslash escapes the next character or joins lines, and nothing
 * is expanded. Neither a shell nor node:util's parseEnv agrees with that. A test compares this parser with systemd. The
 * last value of a variable counts.
 */
export function parseEnvironmentFile(text: string): ParsedEnvironmentFile {
  const variables: Record<string, string> = {}
  const ignored: string[] = []
  for (const [, key, quoted, bare] of text.matchAll(ITEM)) {
    if (key === undefined || quoted === undefined || bare === undefined) continue // a comment, or a line without "="
    const name = key.trimEnd()
    if (NAME.test(name)) variables[name] = unquote(quoted) + unescapeBare(bare)
    else ignored.push(name)
  }
  return { variables, ignored }
}

/** Joins the quoted parts. In double quotes a backslash escapes only ", \, ` and $, and joins lines. */
function unquote(parts: string): string {
  return Array.from(
    parts.matchAll(QUOTED),
    ([, single, double = '']) => single ?? double.replace(/\\(?:(["\\`$])|\n)/g, '$1'),
  ).join('')
}

/** A value without quotes. White space at its end is not part of it, unless it is escaped. */
function unescapeBare(text: string): string {
  const characters = text.match(/\\[^]?|[^\\]/g) ?? []
  while (/^[ \t]$/.test(characters.at(-1) ?? '')) characters.pop()
  return characters.map((character) => character.replace(/^\\[\n\r]?/, '')).join('')
}
