/**
 * The configuration: parses the environment into a frozen Config, or lists everything that is wrong with it, so that an
 * operator corrects all at once. Pure: it opens nothing; files of keys are read through `readText`. check.ts checks
 * what needs the file system. SETTINGS lists all variables; a test compares docs/configuration.md with it.
 */
import { Address4, Address6 } from 'ip-address'
import { DEFAULT_LINK, isLinkRule } from '../firewall/link.ts'
import { FORWARDED_RULES } from '../guest/authorize.ts'
import type { Allowance } from '../guest/share.ts'
import { parseTokenKeys } from '../guest/token.ts'
import { isName } from '../metadata/identifiers.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { parseListeners, type GuestListeners } from './listeners.ts'
import { LOG_LEVELS, type LogLevel } from '../runtime/log.ts'
import { parseRecordKeys, type RecordKeys } from '../store/crypto/record-cipher.ts'
import {
  NAME_RULE,
  parseStoreSettings,
  redisFilesOf,
  STORE_SETTINGS,
  USER_DATA_MAX_BYTES,
  USER_DATA_MAX_BYTES_LIMIT,
  type StoreSettings,
} from '../store/settings.ts'
import type { RedisFiles } from '../store/url.ts'
import { DEFAULT_OPERATOR_LISTEN, DEFAULT_OPERATOR_SOCKET } from '../operator/paths.ts'
import { DEFAULT_LISTEN } from '../runtime/guest-listeners.ts'
import {
  formatPlace,
  type HostPort,
  isLoopback,
  parseAddressPort,
  parseUnixSocket,
  UNIX_SOCKET_PATH_MAX_BYTES,
} from '../runtime/host-port.ts'
import { describeUnknown } from '../runtime/nearest.ts'
import { unreadable } from '../runtime/secret-file.ts'
import { NO_SOCKETS, type SystemdSockets } from '../runtime/systemd.ts'
import { parseWhole, wholeFault } from '../runtime/whole-number.ts'

/**
 * The store. `hypervisor` undefined: the daemon serves every record in the store. `recordKeys` undefined: records are
 * plain.
 */
export type StoreConfig =
  | ({
      readonly kind: 'redis'
      readonly url: string
      readonly region: string
      readonly hypervisor: string
      readonly recordKeys: RecordKeys | undefined
    } & RedisFiles)
  | { readonly kind: 'files'; readonly directory: string; readonly hypervisor: string | undefined }

/** The whole configuration of a daemon. */
export interface Config extends GuestListeners {
  /** The operators' listener on TCP. */
  readonly operator: HostPort & { readonly allow: readonly string[] }
  /** The path of the operators' unix socket. */
  readonly operatorSocket: string
  readonly store: StoreConfig
  readonly stateDirectory: string
  readonly logLevel: LogLevel
  readonly userDataMaxBytes: number
  readonly resyncMs: number
  readonly snapshotMaxAgeMs: number
  /** Keys of session tokens; the first one mints. Undefined: use the key in the state directory of this hypervisor. */
  readonly tokenKeys: readonly Uint8Array[] | undefined
  /** The rate limits of each guest. */
  readonly share: Allowance
  readonly forwarded: (typeof FORWARDED_RULES)[number]
  /**
   * `required`: the launch gate waits until the firewall admits a guest. `link`: the rule for the names of guests'
   * links.
   */
  readonly firewall: { readonly required: boolean; readonly link: string }
  readonly provider: { readonly domain?: string; readonly partition?: string }
}

/** Something wrong with one variable. */
export interface ConfigFault {
  readonly variable: string
  readonly message: string
}
/**
 * The result of `parseConfig`. `unknown`: variables that begin with IMDS_ and do not exist, for a warning. Those of
 * imds-api (IMDS_API_) are not among them, because both programs may have the same environment.
 */
export type ParsedConfig =
  | { readonly ok: true; readonly value: Config; readonly unknown: readonly string[] }
  | { readonly ok: false; readonly faults: readonly ConfigFault[] }

/** Every variable, with its default. */
export const SETTINGS = {
  IMDS_LISTEN: DEFAULT_LISTEN,
  IMDS_OPERATOR_SOCKET: DEFAULT_OPERATOR_SOCKET,
  IMDS_OPERATOR_LISTEN: DEFAULT_OPERATOR_LISTEN,
  IMDS_OPERATOR_ALLOW: '',
  IMDS_STORE: undefined,
  IMDS_REGION: undefined,
  IMDS_HYPERVISOR: undefined,
  IMDS_REDIS_PASSWORD_FILE: undefined,
  IMDS_REDIS_SENTINEL_PASSWORD_FILE: undefined,
  IMDS_REDIS_CA_FILE: undefined,
  IMDS_REDIS_CERT_FILE: undefined,
  IMDS_REDIS_KEY_FILE: undefined,
  IMDS_RECORD_KEYS_FILE: undefined,
  IMDS_STATE_DIR: '/var/lib/imds',
  IMDS_SNAPSHOT_MAX_AGE_SECONDS: '86400',
  IMDS_TOKEN_KEYS_FILE: undefined,
  IMDS_FORWARDED: 'refuse',
  IMDS_GUEST_BURST: '600',
  IMDS_GUEST_REQUESTS_PER_SECOND: '100',
  IMDS_GUEST_CONNECTIONS: '64',
  IMDS_LOG_LEVEL: 'info',
  IMDS_USER_DATA_MAX_BYTES: String(USER_DATA_MAX_BYTES),
  IMDS_RESYNC_SECONDS: '60',
  IMDS_FIREWALL: 'off',
  IMDS_LINK: DEFAULT_LINK,
  IMDS_SERVICES_DOMAIN: undefined,
  IMDS_SERVICES_PARTITION: undefined,
} as const satisfies Record<string, string | undefined>

/** The name of a variable. */
export type Variable = keyof typeof SETTINGS

/** The value of a variable, or its default. An empty value counts as not set. */
export function settingOf(env: Readonly<Record<string, string | undefined>>, variable: Variable): string | undefined {
  const value = env[variable]?.trim()
  return value === undefined || value === '' ? SETTINGS[variable] : value
}

/** Parses the environment. Sockets of systemd replace IMDS_LISTEN. `readText` returns a file's text, or throws. */
export function parseConfig(
  env: Readonly<Record<string, string | undefined>>,
  systemd: SystemdSockets = NO_SOCKETS,
  readText: (path: string) => string = noFiles,
): ParsedConfig {
  const faults: ConfigFault[] = []
  const fault = (variable: Variable, message: string) => {
    faults.push({ variable, message })
  }
  const read = (variable: Variable) => settingOf(env, variable)
  const name = (variable: Variable): string | undefined => {
    const value = read(variable)
    if (value !== undefined && !isName(value)) fault(variable, `must be ${NAME_RULE}`)
    return value
  }
  const whole = (variable: Variable, least: number, most: number): number => {
    const value = parseWhole(read(variable) ?? '', least, most)
    if (value === undefined) fault(variable, wholeFault(least, most))
    return value ?? NaN
  }

  const keysOf = <T>(variable: Variable, parse: (text: string) => Parsed<T, string>): T | undefined => {
    const path = read(variable)
    if (path === undefined) return undefined
    try {
      const parsed = parse(readText(path))
      if (parsed.ok) return parsed.value
      for (const message of parsed.faults) fault(variable, message)
    } catch (error) {
      fault(variable, unreadable(path, error))
    }
    return undefined
  }

  const listeners = parseListeners(
    list(read('IMDS_LISTEN')),
    (env['IMDS_LISTEN'] ?? '') !== '',
    systemd,
    read('IMDS_FIREWALL') === 'required',
    (message) => {
      fault('IMDS_LISTEN', message)
    },
  )
  const operators = parseOperators(read, fault)

  const recordKeys = keysOf('IMDS_RECORD_KEYS_FILE', parseRecordKeys)
  const tokenKeys = keysOf('IMDS_TOKEN_KEYS_FILE', parseTokenKeys)
  const store = parseStore(read, name, recordKeys, fault)
  const stateDirectory = read('IMDS_STATE_DIR') ?? ''
  if (!stateDirectory.startsWith('/')) fault('IMDS_STATE_DIR', 'must be an absolute path')
  const logLevel = LOG_LEVELS.find((level) => level === read('IMDS_LOG_LEVEL'))
  if (logLevel === undefined) fault('IMDS_LOG_LEVEL', `must be one of ${LOG_LEVELS.join(', ')}`)
  const forwarded = FORWARDED_RULES.find((rule) => rule === read('IMDS_FORWARDED'))
  if (forwarded === undefined) fault('IMDS_FORWARDED', `must be one of ${FORWARDED_RULES.join(', ')}`)
  // The minimums of contract F1: with less, a guest might not boot, because cloud-init gives up after six refusals.
  const share = {
    burst: whole('IMDS_GUEST_BURST', 600, 1_000_000_000),
    perSecond: whole('IMDS_GUEST_REQUESTS_PER_SECOND', 100, 1_000_000_000),
    connections: whole('IMDS_GUEST_CONNECTIONS', 16, 65_536),
  }
  const userDataMaxBytes = whole('IMDS_USER_DATA_MAX_BYTES', 1, USER_DATA_MAX_BYTES_LIMIT)
  const resyncSeconds = whole('IMDS_RESYNC_SECONDS', 1, 86_400)
  const snapshotMaxAgeSeconds = whole('IMDS_SNAPSHOT_MAX_AGE_SECONDS', 1, 31_536_000)
  const firewall = read('IMDS_FIREWALL')
  if (firewall !== 'off' && firewall !== 'required') fault('IMDS_FIREWALL', 'must be off or required')
  const link = read('IMDS_LINK') ?? ''
  if (!isLinkRule(link))
    fault(
      'IMDS_LINK',
      'must be a link name of at most 15 characters, with {interfaceId} or {network} if each guest or each network has its own link, such as tap-{interfaceId}',
    )
  const domain = name('IMDS_SERVICES_DOMAIN')
  const partition = name('IMDS_SERVICES_PARTITION')

  const unknown = Object.keys(env)
    .filter((variable) => variable.startsWith('IMDS_') && !variable.startsWith('IMDS_API_') && !(variable in SETTINGS))
    .map((variable) => describeUnknown(variable, Object.keys(SETTINGS)))
  if (
    faults.length > 0 ||
    operators === undefined ||
    store === undefined ||
    logLevel === undefined ||
    forwarded === undefined
  ) {
    return { ok: false, faults: [...faults, ...unknown.map((variable) => ({ variable, message: 'is unknown' }))] }
  }
  const config: Config = {
    ...listeners,
    ...operators,
    store,
    stateDirectory,
    logLevel,
    userDataMaxBytes,
    share,
    forwarded,
    tokenKeys,
    resyncMs: resyncSeconds * 1000,
    snapshotMaxAgeMs: snapshotMaxAgeSeconds * 1000,
    firewall: { required: firewall === 'required', link },
    provider: { ...(domain !== undefined && { domain }), ...(partition !== undefined && { partition }) },
  }
  return { ok: true, value: Object.freeze(config), unknown }
}

/** The operators' listeners. Undefined if the one on TCP has no valid address. */
function parseOperators(
  read: (variable: Variable) => string | undefined,
  fault: (variable: Variable, message: string) => void,
): Pick<Config, 'operator' | 'operatorSocket'> | undefined {
  const operatorSocket = read('IMDS_OPERATOR_SOCKET') ?? ''
  if (parseUnixSocket(formatPlace({ path: operatorSocket })) === undefined)
    fault(
      'IMDS_OPERATOR_SOCKET',
      `must be an absolute path of at most ${String(UNIX_SOCKET_PATH_MAX_BYTES)} bytes, such as ${DEFAULT_OPERATOR_SOCKET}`,
    )
  const operator = parseAddressPort(read('IMDS_OPERATOR_LISTEN') ?? '')
  const allow = list(read('IMDS_OPERATOR_ALLOW'))
  for (const network of allow) {
    if (!isNetwork(network))
      fault('IMDS_OPERATOR_ALLOW', `"${network}" is not a network such as 10.1.0.0/16 or fd00::/8`)
  }
  if (operator === undefined) {
    fault('IMDS_OPERATOR_LISTEN', 'must be ADDRESS:PORT, such as 127.0.0.1:9169')
    return undefined
  }
  if (!isLoopback(operator.host) && allow.length === 0)
    fault(
      'IMDS_OPERATOR_ALLOW',
      'must list the networks that may use it, since IMDS_OPERATOR_LISTEN is not a loopback address',
    )
  return { operator: { ...operator, allow }, operatorSocket }
}

function parseStore(
  read: (variable: Variable) => string | undefined,
  name: (variable: Variable) => string | undefined,
  recordKeys: RecordKeys | undefined,
  fault: (variable: Variable, message: string) => void,
): StoreConfig | undefined {
  const hypervisor = name('IMDS_HYPERVISOR')
  const settings: Partial<StoreSettings> = Object.fromEntries(
    Object.entries(STORE_SETTINGS).map(([setting, { variable }]) => [setting, read(variable)]),
  )
  const parsed = parseStoreSettings({ ...settings, recordKeysFile: recordKeys && settings.recordKeysFile })
  const kind = parsed.ok ? parsed.value.kind : parsed.kind
  if (kind === 'files') name('IMDS_REGION') // not used with files, but reports an invalid name
  if (!parsed.ok) for (const { setting, message } of parsed.faults) fault(STORE_SETTINGS[setting].variable, message)
  if (kind === 'redis' && hypervisor === undefined)
    fault('IMDS_HYPERVISOR', 'is not set: with Redis it must be the name of this hypervisor, as in the records')
  if (!parsed.ok) return undefined
  const { value: store } = parsed
  if (store.kind === 'files') return { kind: 'files', directory: store.directory, hypervisor }
  return {
    kind: 'redis',
    url: settings.url ?? '',
    region: store.region,
    hypervisor: hypervisor ?? '',
    recordKeys,
    ...redisFilesOf(settings),
  }
}

function noFiles(): never {
  throw new Error('no function to read files was given')
}

function list(value: string | undefined): string[] {
  return value === undefined
    ? []
    : value
        .split(',')
        .map((part) => part.trim())
        .filter((part) => part !== '')
}

function isNetwork(text: string): boolean {
  return text.includes('/') && (Address4.isValid(text) || Address6.isValid(text))
}
