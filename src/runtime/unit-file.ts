/**
 * Reads what a unit of systemd and its drop-ins say about the environment of a service, from the directories of
 * systemd.unit(5). It asks no running systemd, so it sees a drop-in before `systemctl daemon-reload`.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { DEFAULT_NETWORK } from '../metadata/identifiers.ts'
import { parseGuestListener, type GuestListenAddress } from './guest-listeners.ts'
import { namesIn, UNIT_DIRECTORIES } from './systemd.ts'

/** The service of a unit. `files`: those that were read. */
export interface Unit {
  readonly files: readonly string[]
  readonly user: string | undefined
  /** The directory that systemd creates for the service and gives to its user. */
  readonly stateDirectory: string | undefined
  /** Environment=, with the specifiers for directories replaced. */
  readonly environment: Readonly<Record<string, string>>
  readonly environmentFiles: readonly string[]
  /** LoadCredential=: the path that the service sees -> the file that systemd loads. */
  readonly credentials: ReadonlyMap<string, string>
}

/** One assignment of Environment=: a word, of which parts may be in quotes. */
const WORD = /(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'])+/g

/** Reads a unit; undefined if it is not installed. */
export function readUnit(name: string, directories: readonly string[] = UNIT_DIRECTORIES): Unit | undefined {
  const unit = directories.map((directory) => join(directory, name)).find((path) => unitText(path) !== undefined)
  if (unit === undefined) return undefined
  const files = [unit, ...dropInsOf(name, directories)]
  const settings = files.flatMap((path) => parseSection('Service', unitText(path) ?? ''))
  const listOf = (key: string) => valuesOf(settings, key)
  const specifiers: Readonly<Record<string, string>> = {
    '%%': '%',
    '%C': '/var/cache',
    '%L': '/var/log',
    '%S': '/var/lib',
    '%d': `/run/credentials/${name}`,
    '%t': '/run',
    '%E': '/etc',
  }
  const expand = (text: string) => text.replace(/%./g, (one) => specifiers[one] ?? one)
  const assignments = listOf('Environment')
    .flatMap((value) => value.match(WORD) ?? [])
    .map((word) => expand(unquote(word)).split(/=(.*)/s))
  const [stateDirectory] = listOf('StateDirectory').flatMap((value) => value.split(' '))
  return {
    files,
    user: listOf('User').at(-1),
    stateDirectory: stateDirectory && join('/var/lib', stateDirectory),
    environment: Object.fromEntries(assignments.map(([variable = '', value = '']) => [variable, value])),
    environmentFiles: listOf('EnvironmentFile').map((path) => expand(path.replace(/^-/, ''))),
    credentials: new Map(
      listOf('LoadCredential')
        .map((value) => value.split(/:(.*)/s))
        .map(([id = '', path = '']) => [expand(`%d/${id}`), expand(path)]),
    ),
  }
}

/** Where a socket of the daemon listens, for which network; none if its unit is not installed. */
export function readSocketUnit(name: string, directories: readonly string[] = UNIT_DIRECTORIES): GuestListenAddress[] {
  const template = name.replace(/@.*(?=\.)/, '@')
  const unit = directories.map((directory) => join(directory, template)).find((path) => unitText(path) !== undefined)
  if (unit === undefined) return []
  const files = [unit, ...new Set([template, name].flatMap((one) => dropInsOf(one, directories)))]
  const instance = /@(.*)\./.exec(name)?.[1] ?? ''
  const settings = files
    .flatMap((path) => parseSection('Socket', unitText(path) ?? ''))
    .map(([key, value]) => [key, value.replaceAll('%i', instance)] as const)
  const network = settings.findLast(([key]) => key === 'FileDescriptorName')?.[1] ?? DEFAULT_NETWORK
  return valuesOf(settings, 'ListenStream')
    .map((value) => parseGuestListener(`${network}=${value}`))
    .filter((place) => place !== undefined)
}

/** The drop-ins of a unit, in the order in which systemd applies them. */
function dropInsOf(name: string, directories: readonly string[]): string[] {
  const paths = new Map<string, string>()
  for (const directory of directories.map((one) => join(one, `${name}.d`)).reverse()) {
    for (const file of namesIn(directory)) if (file.endsWith('.conf')) paths.set(file, join(directory, file))
  }
  return [...paths].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, path]) => path)
}

/** The settings in a section, in order. */
function parseSection(name: string, text: string): (readonly [key: string, value: string])[] {
  const lines = text
    .split(/\r?\n/)
    .filter((line) => !/^\s*[#;]/.test(line))
    .join('\n')
    .replace(/\\\n/g, ' ')
    .split('\n')
    .map((line) => line.trim())
  let section = ''
  return lines.flatMap((line) => {
    if (line.startsWith('[')) section = line
    const [, key, value] = /^([A-Za-z]+)\s*=\s*(.*)$/.exec(line) ?? []
    return section === `[${name}]` && key !== undefined && value !== undefined ? [[key, value] as const] : []
  })
}

/** The values of a setting that may be repeated. An empty value discards those before it. */
function valuesOf(settings: readonly (readonly [key: string, value: string])[], key: string): string[] {
  return settings.reduce<string[]>(
    (list, [one, value]) => (one !== key ? list : value === '' ? [] : [...list, value]),
    [],
  )
}

function unquote(word: string): string {
  return word.replace(
    /"((?:\\.|[^"\\])*)"|'([^']*)'/g,
    (_all, double?: string, single = '') => double?.replace(/\\(.)/g, '$1') ?? String(single),
  )
}

function unitText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}
