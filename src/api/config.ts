/**
 * The configuration of imds-api: parses the environment into a frozen ApiConfig, or lists everything that is wrong with
 * it. Pure: it opens nothing. API_SETTINGS lists all variables; a test compares docs/configuration.md with it. Those of
 * the store are the same as imdsctl's.
 */
import { UNIX_PROXIES } from './http/server.ts'
import { Address4, Address6 } from 'ip-address'
import { LOG_LEVELS, type LogLevel } from '../runtime/log.ts'
import {
  formatHostPort,
  formatPlace,
  isLoopback,
  parseAddressPort,
  parseUnixSocket,
  type HostPort,
  type Place,
} from '../runtime/host-port.ts'
import { describeUnknown } from '../runtime/nearest.ts'
import { parseWhole, wholeFault } from '../runtime/whole-number.ts'
import { parseStoreSettings, STORE_SETTINGS, USER_DATA_MAX_BYTES, type StoreSettings } from '../store/settings.ts'
import { COMPUTE_SETTINGS, parseComputeListener, type ComputeListener } from './compute/settings.ts'
import type { ComputeMode } from './changes/actions.ts'
import type { DatabaseSettings } from './database/open.ts'
import { parseMailSettings, type MailSettings } from './mail/settings.ts'
import { faultOfWebUrl } from './model/web-url.ts'

/** The whole configuration of imds-api. */
export interface ApiConfig {
  /** At least one. */
  readonly listen: readonly Place[]
  readonly operator: HostPort
  /** The beginning of every `url` in a representation, without a final slash. */
  readonly baseUrl: string
  /** Files of the certificate and its key; undefined: plain HTTP, for a proxy on this host. */
  readonly tls: { readonly certificate: string; readonly key: string } | undefined
  /** Addresses and networks. The entry `unix:` trusts every process that connects to a unix socket. */
  readonly trustedProxies: readonly string[]
  /** The most connections of one address that is no trusted proxy. */
  readonly connectionsPerAddress: number
  readonly database: DatabaseSettings
  readonly store: StoreSettings
  readonly accessTokenSeconds: number
  readonly refreshTokenSeconds: number
  /**
   * The request headers that may carry a user's one-time password, in order of preference. Lower case, as in
   * `request.headers`.
   */
  readonly otpHeaders: readonly string[]
  /** Undefined: invitations are not sent. */
  readonly mail: MailSettings | undefined
  /** The file of the audit lines; undefined: standard error. */
  readonly auditFile: string | undefined
  /** How actions on servers are carried out. */
  readonly compute: ComputeMode
  /** Used with `reported`. */
  readonly computeListener: ComputeListener
  readonly logLevel: LogLevel
}

/** Something wrong with one variable. */
export interface ApiConfigFault {
  readonly variable: string
  readonly message: string
}
/** The result of `parseApiConfig`. `unknown`: variables that start with IMDS_API_ and do not exist, for a warning. */
export type ParsedApiConfig =
  | { readonly ok: true; readonly value: ApiConfig; readonly unknown: readonly string[] }
  | { readonly ok: false; readonly faults: readonly ApiConfigFault[] }

/** Every variable that only imds-api reads, with its default. */
export const API_SETTINGS = {
  IMDS_API_LISTEN: '127.0.0.1:8170',
  IMDS_API_OPERATOR_LISTEN: '127.0.0.1:9170',
  IMDS_API_BASE_URL: undefined,
  IMDS_API_TLS_CERT_FILE: undefined,
  IMDS_API_TLS_KEY_FILE: undefined,
  IMDS_API_TRUSTED_PROXIES: '',
  IMDS_API_CONNECTIONS_PER_ADDRESS: '256',
  IMDS_API_DATABASE: undefined,
  IMDS_API_DATABASE_PASSWORD_FILE: undefined,
  IMDS_API_STATE_DIR: '/var/lib/imds-api',
  IMDS_API_ACCESS_TOKEN_SECONDS: '7200',
  IMDS_API_REFRESH_TOKEN_SECONDS: '2592000',
  IMDS_API_OTP_HEADERS: 'X-Service-OTP,X-Brightbox-OTP',
  IMDS_API_SMTP: undefined,
  IMDS_API_SMTP_PASSWORD_FILE: undefined,
  IMDS_API_MAIL_FROM: undefined,
  IMDS_API_INVITATION_URL: undefined,
  IMDS_API_AUDIT_FILE: undefined,
  IMDS_API_COMPUTE: 'none',
  ...COMPUTE_SETTINGS,
  IMDS_API_LOG_LEVEL: 'info',
} as const satisfies Record<string, string | undefined>

/** `token` of RFC 9110, in lower case. */
const HEADER_NAME = /^[a-z0-9!#$%&'*+.^_`|~-]+$/
/**
 * Headers that clients, proxies or imds-api use for something else. A one-time password is asked for in the same header
 * of a response.
 */
const TAKEN_HEADER = new RegExp(
  `^(?:${[
    '(?:accept|access-control|cache|content|if|keep|proxy|sec|transfer|x-forwarded)-.*',
    'accept',
    'allow',
    'authorization',
    'connection',
    'cookie',
    'date',
    'etag',
    'expect',
    'expires',
    'forwarded',
    'from',
    'host',
    'idempotency-key',
    'last-modified',
    'link',
    'location',
    'origin',
    'pragma',
    'prefer',
    'preference-applied',
    'range',
    'referer',
    'retry-after',
    'server',
    'set-cookie',
    'strict-transport-security',
    'te',
    'traceparent',
    'tracestate',
    'trailer',
    'upgrade',
    'user-agent',
    'vary',
    'via',
    'warning',
    'www-authenticate',
    'x-oauth-scopes',
    'x-real-ip',
    'x-request-id',
  ].join('|')})$`,
)

const COMPUTE_MODES: readonly ComputeMode[] = ['none', 'reported']

type Variable = keyof typeof API_SETTINGS
type Environment = Readonly<Record<string, string | undefined>>

/** Parses the environment. */
export function parseApiConfig(env: Environment): ParsedApiConfig {
  const faults: ApiConfigFault[] = []
  const fault = (variable: string, message: string) => {
    faults.push({ variable, message })
  }
  const read = (variable: Variable): string | undefined => valueOf(env, variable) ?? API_SETTINGS[variable]
  const oneOf = <T extends string>(values: readonly T[], variable: Variable): T | undefined => {
    const value = values.find((one) => one === read(variable))
    if (value === undefined) fault(variable, `must be one of ${values.join(', ')}`)
    return value
  }
  const whole = (variable: Variable, least: number, most: number): number => {
    const value = parseWhole(read(variable)!, least, most)
    if (value === undefined) fault(variable, wholeFault(least, most))
    return value ?? NaN
  }

  const operator = parseAddressPort(read('IMDS_API_OPERATOR_LISTEN')!)
  if (operator === undefined) fault('IMDS_API_OPERATOR_LISTEN', 'must be ADDRESS:PORT, such as 127.0.0.1:9170')

  const [certificate, key] = [read('IMDS_API_TLS_CERT_FILE'), read('IMDS_API_TLS_KEY_FILE')]
  if (certificate !== undefined && key === undefined)
    fault('IMDS_API_TLS_KEY_FILE', 'is not set: IMDS_API_TLS_CERT_FILE needs the file of its private key')
  if (key !== undefined && certificate === undefined)
    fault('IMDS_API_TLS_CERT_FILE', 'is not set: IMDS_API_TLS_KEY_FILE needs the file of its certificate')
  const tls = certificate === undefined || key === undefined ? undefined : { certificate, key }
  const listen = parseListen(read('IMDS_API_LISTEN')!, certificate !== undefined || key !== undefined, fault)

  const baseUrl = parseBaseUrl(read('IMDS_API_BASE_URL') ?? defaultBaseUrl(listen, tls !== undefined), fault)

  const trustedProxies = list(read('IMDS_API_TRUSTED_PROXIES'))
  for (const proxy of trustedProxies) {
    if (proxy !== UNIX_PROXIES && !Address4.isValid(proxy) && !Address6.isValid(proxy)) {
      fault('IMDS_API_TRUSTED_PROXIES', `"${proxy}" is not an address, a network or ${UNIX_PROXIES}`)
    }
  }

  const connectionsPerAddress = whole('IMDS_API_CONNECTIONS_PER_ADDRESS', 1, 4_096)

  const store = parseStore(env, fault)
  const database = parseDatabase(env, store, fault)
  const accessTokenSeconds = whole('IMDS_API_ACCESS_TOKEN_SECONDS', 60, 86_400)
  const refreshTokenSeconds = whole('IMDS_API_REFRESH_TOKEN_SECONDS', 3_600, 31_536_000)
  const otpHeaders = parseOtpHeaders(read('IMDS_API_OTP_HEADERS')!, fault)
  const mail = parseMailSettings(read, fault)
  const auditFile = read('IMDS_API_AUDIT_FILE')
  if (auditFile?.startsWith('/') === false) fault('IMDS_API_AUDIT_FILE', 'must be an absolute path')
  const compute = oneOf(COMPUTE_MODES, 'IMDS_API_COMPUTE')
  const computeListener = parseComputeListener(read, fault)
  const logLevel = oneOf(LOG_LEVELS, 'IMDS_API_LOG_LEVEL')

  const unknown = unknownOf(env)
  if (
    faults.length > 0 ||
    operator === undefined ||
    baseUrl === undefined ||
    database === undefined ||
    store === undefined ||
    compute === undefined ||
    computeListener === undefined ||
    logLevel === undefined
  ) {
    return { ok: false, faults: [...faults, ...unknown.map((variable) => ({ variable, message: 'is unknown' }))] }
  }
  const value = Object.freeze({
    listen,
    operator,
    baseUrl,
    tls,
    trustedProxies,
    connectionsPerAddress,
    database,
    store,
    accessTokenSeconds,
    refreshTokenSeconds,
    otpHeaders,
    mail,
    auditFile,
    compute,
    computeListener,
    logLevel,
  })
  return { ok: true, value, unknown }
}

function unknownOf(env: Environment): string[] {
  return Object.keys(env)
    .filter((variable) => variable.startsWith('IMDS_API_') && !(variable in API_SETTINGS))
    .map((variable) => describeUnknown(variable, Object.keys(API_SETTINGS)))
}

function valueOf(env: Environment, variable: string): string | undefined {
  const value = env[variable]?.trim()
  return value === '' ? undefined : value
}

function parseStore(env: Environment, fault: (variable: string, message: string) => void): StoreSettings | undefined {
  const texts = Object.entries(STORE_SETTINGS).filter(([setting]) => setting !== 'userDataMaxBytes')
  const settings: Record<string, string | undefined> = Object.fromEntries(
    texts.map(([setting, { variable }]) => [setting, valueOf(env, variable)]),
  )
  const parsed = parseStoreSettings(settings)
  if (!parsed.ok) for (const { setting, message } of parsed.faults) fault(STORE_SETTINGS[setting].variable, message)
  return parsed.ok ? { url: '', ...settings, userDataMaxBytes: USER_DATA_MAX_BYTES } : undefined
}

/**
 * With Redis, IMDS_API_DATABASE must be set. A forgotten variable must not start a new, empty database for a store that
 * has records.
 */
function parseDatabase(
  env: Environment,
  store: StoreSettings | undefined,
  fault: (variable: string, message: string) => void,
): DatabaseSettings | undefined {
  const value = valueOf(env, 'IMDS_API_DATABASE')
  const stateDirectory = valueOf(env, 'IMDS_API_STATE_DIR') ?? API_SETTINGS.IMDS_API_STATE_DIR
  if (!stateDirectory.startsWith('/')) fault('IMDS_API_STATE_DIR', 'must be an absolute path')
  if (value === undefined && store !== undefined && !store.url.startsWith('file:')) {
    fault(
      'IMDS_API_DATABASE',
      'is not set: with Redis it must be postgres://USER@HOST/DATABASE, or embedded for a PostgreSQL server in IMDS_API_STATE_DIR',
    )
    return undefined
  }
  const passwordFile = valueOf(env, 'IMDS_API_DATABASE_PASSWORD_FILE')
  if (value === undefined || value === 'embedded') {
    if (passwordFile !== undefined)
      fault('IMDS_API_DATABASE_PASSWORD_FILE', 'is for postgres://...: the embedded PostgreSQL needs no password')
    return { kind: 'embedded', stateDirectory }
  }
  if (/^postgres(ql)?:\/\//.test(value) && URL.canParse(value)) {
    if (hasPassword(value))
      fault(
        'IMDS_API_DATABASE',
        'must not have a password in it, since other programs can read it: name its file in IMDS_API_DATABASE_PASSWORD_FILE',
      )
    return { kind: 'server', url: value, passwordFile }
  }
  fault('IMDS_API_DATABASE', 'must be postgres://USER@HOST/DATABASE, or embedded')
  return undefined
}

function parseOtpHeaders(value: string, fault: (variable: string, message: string) => void): readonly string[] {
  const names = [...new Set(list(value).map((name) => name.toLowerCase()))]
  if (names.length === 0)
    fault('IMDS_API_OTP_HEADERS', 'must be the names of one or more headers, such as X-Service-OTP')
  for (const name of names) {
    if (!HEADER_NAME.test(name)) fault('IMDS_API_OTP_HEADERS', `"${name}" is not the name of a header`)
    if (TAKEN_HEADER.test(name))
      fault(
        'IMDS_API_OTP_HEADERS',
        `"${name}" has another meaning in HTTP: use a header of your own, such as X-Service-OTP`,
      )
  }
  return names
}

function hasPassword(url: string): boolean {
  const { password, searchParams } = new URL(url)
  return password !== '' || searchParams.has('password')
}

function parseListen(
  value: string,
  isTls: boolean,
  fault: (variable: string, message: string) => void,
): readonly Place[] {
  const texts = list(value)
  if (texts.length === 0) fault('IMDS_API_LISTEN', 'names no address')
  const places: Place[] = []
  for (const text of texts) {
    const place = parseUnixSocket(text) ?? parseAddressPort(text)
    if (place === undefined)
      fault(
        'IMDS_API_LISTEN',
        `"${text}" is not ADDRESS:PORT or unix:PATH, such as 127.0.0.1:8170, [::1]:8170 or unix:/run/imds-api/api.sock`,
      )
    else places.push(place)
    if (!isTls && place !== undefined && place.path === undefined && !isLoopback(place.host)) {
      fault(
        'IMDS_API_LISTEN',
        `"${text}" must be a loopback address or a unix socket without TLS, since secrets travel: set IMDS_API_TLS_CERT_FILE and IMDS_API_TLS_KEY_FILE, or put a proxy in front`,
      )
    }
  }
  const fixed = places.filter((place) => place.path !== undefined || place.port !== 0).map(formatPlace)
  if (new Set(fixed).size < fixed.length) fault('IMDS_API_LISTEN', 'names one place twice')
  return places
}

/** The URL of the first listener with an address. Undefined: all are unix sockets. */
function defaultBaseUrl(listen: readonly Place[], isTls: boolean): string | undefined {
  if (listen.length === 0) return 'http://localhost' // the listeners are faulty
  const address = listen.find((place) => place.path === undefined)
  return address && `${isTls ? 'https' : 'http'}://${formatHostPort(address)}`
}

function parseBaseUrl(
  text: string | undefined,
  fault: (variable: string, message: string) => void,
): string | undefined {
  const message =
    text === undefined
      ? 'is not set: with unix sockets only it must be the URL by which clients reach the proxy'
      : /[?#]/.test(text) || faultOfWebUrl(text) === 'form'
        ? 'must be the URL by which clients reach this API, such as https://api.gb1.example.com'
        : faultOfWebUrl(text) === 'credentials'
          ? 'must not have a user or a password in it, since every response shows it'
          : undefined
  if (message !== undefined) fault('IMDS_API_BASE_URL', message)
  return message === undefined ? text?.replace(/\/+$/, '') : undefined
}

function list(value: string | undefined): string[] {
  return (value ?? '')
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
}
