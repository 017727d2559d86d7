/**
 * imdsd --check: checks a configuration without listening, connecting or writing. It checks the variables, that the
 * user of the service can read the files that they name, and that these are valid. systemd reads credentials as root.
 * (With --connect, store/probe.ts tries the store afterwards.)
 */
import { closeSync, constants, existsSync, openSync, readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseConfig, VARIABLES, type Config, type VariableName } from './config.ts'
import { findConditions } from '../conditions/condition.ts'
import { IDENTITY } from './conditions/host.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { compareListeners, parseGuestListeners, type GuestListenAddress } from '../runtime/guest-listeners.ts'
import { askSockets, askSystemd, NO_SYSTEMD } from '../runtime/systemd-units.ts'
import { settingFileFaults } from '../runtime/setting-files.ts'
import { asUser } from '../runtime/other-user.ts'
import { IMDS_SERVICE, readServiceEnvironment } from '../runtime/service-environment.ts'
import { setVariables, textOf, type Environment, type VariableFault } from '../runtime/variables.ts'
import { parseStoreUrl } from '../store/url.ts'
import { readTextFile } from '../runtime/text-file.ts'

/** open(2): Linux's flag for an unnamed file in a directory, O_DIRECTORY included. */
const O_TMPFILE = 0o20200000
/** Those of identity, tokens and records are checked with the configuration. */
const REDIS_FILES = [
  'IMDS_REDIS_PASSWORD_FILE',
  'IMDS_REDIS_SENTINEL_PASSWORD_FILE',
  'IMDS_REDIS_CA_FILE',
  'IMDS_REDIS_CERT_FILE',
  'IMDS_REDIS_KEY_FILE',
] as const

/**
 * The result of a check. `notes` are warnings; `unknown`: variables that are ignored; `config` may be present although
 * there are faults of files.
 */
export interface Checked {
  readonly faults: readonly VariableFault[]
  readonly notes: readonly string[]
  readonly unknown: readonly string[]
  readonly config: Config | undefined
}

/** The configuration of a service. `replaced`: variables that the command has in place of the service's. */
export interface Settings extends Checked {
  readonly variables: Environment
  readonly replaced: readonly string[]
}

/** Who will run the daemon. `user` undefined: the user of this process. */
export interface DaemonUser {
  readonly user: string | undefined
  /** Files that systemd reads for the daemon, as root. */
  readonly credentials: ReadonlySet<string>
  /** The directory that systemd creates for that user. */
  readonly stateDirectory: string | undefined
  /** Where sockets of systemd listen in place of the daemon. */
  readonly sockets: readonly GuestListenAddress[]
}

/**
 * Checks the configuration with which imds.service would start: variables of `env`, then those of the service, whose
 * environment file `environmentFile` replaces; the result is a fault if that cannot be read. As root, files are read as
 * the user of the service.
 */
export function checkService(
  env: Environment,
  environmentFile: string | undefined,
  nowMs: number,
): Parsed<Settings, string> {
  const read = readServiceEnvironment(IMDS_SERVICE, environmentFile, env, false)
  if (!read.ok) return read
  const service = read.value
  const { unit } = service
  const sockets = askSockets(IMDS_SERVICE.name, askSystemd)
  const user = process.getuid?.() === 0 ? unit?.user : undefined
  const runner = {
    user,
    credentials: service.credentials,
    stateDirectory: unit?.stateDirectory,
    sockets: sockets ?? [],
  }
  const checked = checkConfiguration(service.variables, nowMs, runner)
  const sources = service.files.length > 0 ? [`variables from ${service.files.join(', ')}`] : []
  const files = [...service.credentials].map((path) => `credential ${path}, which systemd reads as root`)
  const as = user === undefined ? [] : [`files checked as user ${user}, as in ${IMDS_SERVICE.name}`]
  const unasked = sockets === undefined ? [NO_SYSTEMD] : []
  const notes = [...unasked, ...sources, ...files, ...as, ...service.notes, ...checked.notes]
  return { ok: true, value: { ...checked, notes, variables: service.variables, replaced: service.replaced } }
}

/** Checks a configuration for a runner, at a time (milliseconds since 1970). */
export function checkConfiguration(env: Environment, nowMs: number, runner: DaemonUser): Checked {
  const who = runner.user === undefined ? 'this user' : `user ${runner.user}`
  const asRunner = <T>(use: () => T): T => (runner.user === undefined ? use() : asUser(runner.user, use))
  const readText = (path: string) =>
    runner.credentials.has(path) ? readTextFile(path) : asRunner(() => readTextFile(path))
  const passed = runner.sockets.map(({ network: name }, i) => ({ fd: i, name })) // as they would be
  const parsed = parseConfig(env, passed, readText)
  const unknown = parsed.ok ? parsed.unknown : []
  const notes = unknown.length > 0 ? [`unknown variables, which are ignored: ${unknown.join(', ')}`] : []
  notes.push(...listenNotes(env, runner.sockets))
  const certificate = parsed.ok ? parsed.value.identity?.certificate : undefined
  notes.push(
    ...findConditions(IDENTITY, { certificate, wallMs: nowMs }).map(({ text, remedy }) => `${text}: ${remedy}`),
  )
  const faults = [
    ...(parsed.ok ? [] : parsed.faults),
    ...settingFileFaults(REDIS_FILES, setVariables(env), nowMs, readText),
    ...asRunner(() => stateFaults(env, runner.stateDirectory, who)),
  ]
  const store = parseStoreUrl(textOf(VARIABLES, env, 'IMDS_STORE') ?? '')
  if (store?.kind === 'files') {
    if (!existsSync(store.directory))
      notes.push(`IMDS_STORE: ${store.directory} does not exist yet; the first publish creates it`)
    else faults.push(...asRunner(() => accessFaults('IMDS_STORE', store.directory, 'read', who)))
  }
  return { faults, notes, unknown, config: parsed.ok ? parsed.value : undefined }
}

/** How IMDS_LISTEN differs from the sockets of systemd that are enabled, and replace it. */
function listenNotes({ IMDS_LISTEN: text = '' }: Environment, sockets: DaemonUser['sockets']): string[] {
  if (sockets.length === 0 || text === '') return []
  const { unserved, unlisted } = compareListeners(parseGuestListeners(text), sockets)
  return [
    ...unserved.map(
      (place) => `IMDS_LISTEN names ${place}, and no socket of systemd that is enabled: guests are not served there`,
    ),
    ...unlisted.map(
      (place) =>
        `IMDS_LISTEN does not name ${place} of an enabled socket of systemd: imds-firewall admits no guest there`,
    ),
  ]
}

/**
 * The daemon creates a missing directory, so its nearest existing parent is checked. `managed`: systemd creates it, and
 * gives it to the user.
 */
function stateFaults(env: Environment, managed: string | undefined, who: string): VariableFault[] {
  let path = textOf(VARIABLES, env, 'IMDS_STATE_DIR')!
  if (!path.startsWith('/') || path === managed) return []
  while (!existsSync(path)) path = dirname(path)
  return accessFaults('IMDS_STATE_DIR', path, 'write', who)
}

/**
 * Tries it, since access(2) does not answer for the effective user. An unnamed temporary file (O_TMPFILE) leaves
 * nothing behind.
 */
function accessFaults(variable: VariableName, path: string, verb: 'read' | 'write', who: string): VariableFault[] {
  try {
    if (!statSync(path).isDirectory()) return [{ variable, message: `${path} is not a directory` }]
    readdirSync(path)
    statSync(join(path, '.'))
    if (verb === 'write') closeSync(openSync(path, O_TMPFILE | constants.O_WRONLY, 0o600))
    return []
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    if (code === 'EOPNOTSUPP' || code === 'EISDIR') return [] // this file system has no unnamed files
    return [{ variable, message: `${who} cannot ${verb} ${path}: ${code}` }]
  }
}
