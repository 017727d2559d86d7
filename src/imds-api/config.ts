/**
 * The configuration of imds-api: a table of variables, and the parser of the environment into a frozen ApiConfig, or a
 * list of everything that is wrong with it. Pure: it opens nothing. The variables of the store are the same as
 * imdsctl's.
 */
import { UNIX_PROXIES } from './http/server.ts'
import { Address4, Address6 } from 'ip-address'
import { LOG_LEVELS, type LogLevel } from '../runtime/log-level.ts'
import {
  formatHostPort,
  formatListenAddress,
  isLoopback,
  parseAddressPort,
  parseUnixSocket,
  type HostPort,
  type ListenAddress,
} from '../runtime/host-port.ts'
import {
  absolutePath,
  addressPort,
  anyText,
  list,
  listOf,
  oneOf,
  readVariables,
  section,
  whole,
  type AddFault,
  type Environment,
  type ParsedVariables,
  type Values,
} from '../runtime/variables.ts'
import {
  parseStoreSettings,
  STORE_SETTINGS,
  STORE_VARIABLES,
  storeSettingsOf,
  DEFAULT_USER_DATA_BYTES,
  type StoreSettings,
} from '../store/settings.ts'
import { COMPUTE_VARIABLES, parseComputeListener, type ComputeListener } from './compute/settings.ts'
import type { Parsed } from '../metadata/parsed.ts'
import type { ComputeMode } from './changes/actions.ts'
import { FOR_REQUESTS, type DatabaseSettings } from './database/open.ts'
import { faultOfServerUrl } from './database/server-url.ts'
import { MAIL_VARIABLES, parseMailSettings, type MailSettings } from './mail/settings.ts'
import { faultOfWebUrl } from './model/web-url.ts'

/** The whole configuration of imds-api. */
export interface ApiConfig {
  /** At least one. */
  readonly listen: readonly ListenAddress[]
  /** `passwordFile` undefined: it needs no password. */
  readonly operator: HostPort & { readonly passwordFile: string | undefined }
  /** The beginning of every `url` in a representation, without a final slash. */
  readonly baseUrl: string
  /** Files of the certificate and its key; undefined: plain HTTP, for a proxy on this host. */
  readonly tls: { readonly certificate: string; readonly key: string } | undefined
  /** Addresses and networks. The entry `unix:` trusts every process that connects to a unix socket. */
  readonly trustedProxies: readonly string[]
  /** The most connections of one address that is no trusted proxy. */
  readonly connectionsPerAddress: number
  /** How long a process that was told to stop still serves. */
  readonly stopDelaySeconds: number
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
  /** How long a server with `wait_for: boot` waits for its guest. */
  readonly bootSeconds: number
  readonly logLevel: LogLevel
}

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
    'ratelimit(?:-.*)?',
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

export const API_VARIABLES = {
  ...section('Store', STORE_VARIABLES),
  ...section('Clients', {
    IMDS_API_LISTEN: { default: '127.0.0.1:8170', parse: anyText, help: 'for clients: ADDRESS:PORT or unix:PATH, ...' },
    IMDS_API_TLS_CERT_FILE: { parse: anyText, help: 'the certificate of these listeners, PEM' },
    IMDS_API_TLS_KEY_FILE: { parse: anyText, help: 'its private key, PEM' },
    IMDS_API_BASE_URL: { parse: anyText, help: 'the URL at which clients reach the API' },
    IMDS_API_TRUSTED_PROXIES: {
      default: '',
      parse: listOf(
        (proxy) => proxy === UNIX_PROXIES || Address4.isValid(proxy) || Address6.isValid(proxy),
        `is not an address, a network or ${UNIX_PROXIES}`,
      ),
      help: 'addresses and networks of proxies, and unix:',
    },
    IMDS_API_CONNECTIONS_PER_ADDRESS: { default: '256', parse: whole(1, 4_096), help: 'connections of one address' },
    IMDS_API_STOP_DELAY_SECONDS: {
      default: '0',
      parse: whole(0, 30),
      help: 'how long requests are served after SIGTERM, while /readyz is 503',
    },
  }),
  ...section('Database', {
    IMDS_API_DATABASE: { parse: anyText, help: 'postgres://USER@HOST/DATABASE, or embedded; required with Redis' },
    IMDS_API_DATABASE_PASSWORD_FILE: { parse: anyText, help: 'the password of USER, in the first line of a file' },
    IMDS_API_DATABASE_CONNECTIONS: {
      default: String(FOR_REQUESTS),
      parse: whole(1, 64),
      help: 'connections to the database for requests',
    },
    IMDS_API_STATE_DIR: {
      default: '/var/lib/imds-api',
      parse: absolutePath,
      help: 'the directory of the embedded PostgreSQL',
    },
  }),
  ...section('Tokens', {
    IMDS_API_ACCESS_TOKEN_SECONDS: {
      default: '7200',
      parse: whole(60, 86_400),
      help: 'the lifetime of an access token',
    },
    IMDS_API_REFRESH_TOKEN_SECONDS: {
      default: '2592000',
      parse: whole(3_600, 31_536_000),
      help: 'the lifetime of a refresh token',
    },
    IMDS_API_OTP_HEADERS: {
      default: 'X-Service-OTP,X-Brightbox-OTP',
      parse: parseOtpHeaders,
      help: 'the headers of one-time passwords',
    },
  }),
  ...section('Invitations', MAIL_VARIABLES),
  ...section('Hypervisors', {
    IMDS_API_COMPUTE: {
      default: 'none',
      parse: oneOf(COMPUTE_MODES),
      help: 'who carries out actions: none, or reported by hypervisors',
    },
    ...COMPUTE_VARIABLES,
    IMDS_API_BOOT_SECONDS: {
      default: '600',
      parse: whole(1, 86_400),
      help: 'how long a server with wait_for waits for its guest',
    },
  }),
  ...section('Operators', {
    IMDS_API_OPERATOR_LISTEN: {
      default: '127.0.0.1:9170',
      parse: addressPort('127.0.0.1:9170'),
      help: 'metrics and health for operators',
    },
    IMDS_API_OPERATOR_PASSWORD_FILE: {
      parse: anyText,
      help: 'the password of that listener, in the first line of a file',
    },
    IMDS_API_AUDIT_FILE: { parse: absolutePath, help: 'the file of audit lines, in place of standard error' },
    IMDS_API_LOG_LEVEL: { default: 'info', parse: oneOf(LOG_LEVELS), help: LOG_LEVELS.join(', ') },
  }),
}

type ApiValues = Values<typeof API_VARIABLES>
type Fault = AddFault<keyof typeof API_VARIABLES>

export function parseApiConfig(env: Environment): ParsedVariables<ApiConfig> {
  const { values, fault, result } = readVariables(API_VARIABLES, env, /^IMDS_API_/)

  const [certificate, key] = [values.IMDS_API_TLS_CERT_FILE, values.IMDS_API_TLS_KEY_FILE]
  if (certificate !== undefined && key === undefined)
    fault('IMDS_API_TLS_KEY_FILE', 'is not set: IMDS_API_TLS_CERT_FILE needs the file of its private key')
  if (key !== undefined && certificate === undefined)
    fault('IMDS_API_TLS_CERT_FILE', 'is not set: IMDS_API_TLS_KEY_FILE needs the file of its certificate')
  const tls = certificate === undefined || key === undefined ? undefined : { certificate, key }
  const listen = parseListen(values.IMDS_API_LISTEN, certificate !== undefined || key !== undefined, fault)
  const baseUrl = parseBaseUrl(values.IMDS_API_BASE_URL ?? defaultBaseUrl(listen, tls !== undefined), fault)

  const store = parseStore(values, fault)
  const database = parseDatabase(values, store, fault)
  const mail = parseMailSettings(values, fault)
  const computeListener = parseComputeListener(values, fault)
  if (baseUrl === undefined || store === undefined || database === undefined) return result<ApiConfig>(undefined)
  return result<ApiConfig>({
    listen,
    operator: { ...values.IMDS_API_OPERATOR_LISTEN, passwordFile: values.IMDS_API_OPERATOR_PASSWORD_FILE },
    baseUrl,
    tls,
    trustedProxies: values.IMDS_API_TRUSTED_PROXIES,
    connectionsPerAddress: values.IMDS_API_CONNECTIONS_PER_ADDRESS,
    stopDelaySeconds: values.IMDS_API_STOP_DELAY_SECONDS,
    database,
    store,
    accessTokenSeconds: values.IMDS_API_ACCESS_TOKEN_SECONDS,
    refreshTokenSeconds: values.IMDS_API_REFRESH_TOKEN_SECONDS,
    otpHeaders: values.IMDS_API_OTP_HEADERS,
    mail,
    auditFile: values.IMDS_API_AUDIT_FILE,
    compute: values.IMDS_API_COMPUTE,
    computeListener,
    bootSeconds: values.IMDS_API_BOOT_SECONDS,
    logLevel: values.IMDS_API_LOG_LEVEL,
  })
}

function parseStore(values: ApiValues, fault: Fault): StoreSettings | undefined {
  const settings = storeSettingsOf(values)
  const parsed = parseStoreSettings(settings)
  if (parsed.ok) return { url: '', ...settings, userDataMaxBytes: DEFAULT_USER_DATA_BYTES }
  for (const { setting, message } of parsed.faults) fault(STORE_SETTINGS[setting].variable, message)
  return undefined
}

/**
 * With Redis, IMDS_API_DATABASE must be set. A forgotten variable must not start a new, empty database for a store that
 * has records.
 */
function parseDatabase(
  values: ApiValues,
  store: StoreSettings | undefined,
  fault: Fault,
): DatabaseSettings | undefined {
  const value = values.IMDS_API_DATABASE
  if (value === undefined && store !== undefined && !store.url.startsWith('file:')) {
    fault(
      'IMDS_API_DATABASE',
      'is not set: with Redis it must be postgres://USER@HOST/DATABASE, ' +
        'or embedded for a PostgreSQL server in IMDS_API_STATE_DIR',
    )
    return undefined
  }
  const passwordFile = values.IMDS_API_DATABASE_PASSWORD_FILE
  const connections = values.IMDS_API_DATABASE_CONNECTIONS
  if (value === undefined || value === 'embedded') {
    if (passwordFile !== undefined)
      fault('IMDS_API_DATABASE_PASSWORD_FILE', 'is for postgres://...: the embedded PostgreSQL needs no password')
    return { kind: 'embedded', stateDirectory: values.IMDS_API_STATE_DIR, connections }
  }
  const message = faultOfServerUrl(value)
  if (message === undefined) return { kind: 'server', url: value, passwordFile, connections }
  fault('IMDS_API_DATABASE', message)
  return undefined
}

/** The names of headers, in lower case. */
function parseOtpHeaders(text: string): Parsed<readonly string[], string> {
  const value = [...new Set(list(text).map((name) => name.toLowerCase()))]
  const faults = [
    ...(value.length === 0 ? ['must be the names of one or more headers, such as X-Service-OTP'] : []),
    ...value.filter((name) => !HEADER_NAME.test(name)).map((name) => `"${name}" is not the name of a header`),
    ...value
      .filter((name) => TAKEN_HEADER.test(name))
      .map((name) => `"${name}" has another meaning in HTTP: use a header of your own, such as X-Service-OTP`),
  ]
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}

function parseListen(value: string, isTls: boolean, fault: Fault): readonly ListenAddress[] {
  const texts = list(value)
  if (texts.length === 0) fault('IMDS_API_LISTEN', 'names no address')
  const places: ListenAddress[] = []
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
        `"${text}" must be a loopback address or a unix socket without TLS, since secrets travel: set ` +
          'IMDS_API_TLS_CERT_FILE and IMDS_API_TLS_KEY_FILE, or put a proxy in front',
      )
    }
  }
  const fixed = places.filter((place) => place.path !== undefined || place.port !== 0).map(formatListenAddress)
  if (new Set(fixed).size < fixed.length) fault('IMDS_API_LISTEN', 'names one place twice')
  return places
}

/** The URL of the first listener with an address. Undefined: all are unix sockets. */
function defaultBaseUrl(listen: readonly ListenAddress[], isTls: boolean): string | undefined {
  if (listen.length === 0) return 'http://localhost' // the listeners are faulty
  const address = listen.find((place) => place.path === undefined)
  return address && `${isTls ? 'https' : 'http'}://${formatHostPort(address)}`
}

function parseBaseUrl(text: string | undefined, fault: Fault): string | undefined {
  const message = faultOfBaseUrl(text)
  if (message !== undefined) fault('IMDS_API_BASE_URL', message)
  return message === undefined ? text?.replace(/\/+$/, '') : undefined
}

function faultOfBaseUrl(text: string | undefined): string | undefined {
  if (text === undefined)
    return 'is not set: with unix sockets only it must be the URL by which clients reach the proxy'
  const problem = faultOfWebUrl(text)
  if (/[?#]/.test(text) || problem === 'form')
    return 'must be the URL by which clients reach this API, such as https://api.gb1.example.com'
  return problem === 'credentials'
    ? 'must not have a user or a password in it, since every response shows it'
    : undefined
}
