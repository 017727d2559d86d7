/**
 * The configuration: a table of variables, and the parser of the environment into a frozen Config, or a list of
 * everything that is wrong with it. Pure: it opens nothing; files of keys are read through `readText`. check.ts checks
 * what needs the file system.
 */
import { DEFAULT_LINK, isLinkRule } from './firewall/link.ts'
import { FORWARDED_RULES } from './guest/authorize.ts'
import type { Allowance } from './guest/share.ts'
import { parseTokenKeys } from './guest/token.ts'
import type { IdentitySettings } from '../identity/identity.ts'
import { isIssuer, ISSUER_RULE } from '../identity/issuer.ts'
import { parseIdentityCertificate, parseIdentityKey } from '../identity/key.ts'
import { isName } from '../metadata/identifiers.ts'
import type { Parsed } from '../metadata/parsed.ts'
import { parseListeners, type GuestListeners } from './listeners.ts'
import { parseRecordKeys, type RecordKeys } from '../store/crypto/record-cipher.ts'
import {
  NAME_RULE,
  parseStoreSettings,
  STORE_SETTINGS,
  STORE_VARIABLES,
  storeSettingsOf,
  DEFAULT_USER_DATA_BYTES,
  MAX_USER_DATA_BYTES,
} from '../store/settings.ts'
import type { RedisFiles } from '../store/url.ts'
import { DEFAULT_OPERATOR_LISTEN, DEFAULT_OPERATOR_SOCKET } from './operator/paths.ts'
import { DEFAULT_LISTEN } from '../runtime/guest-listeners.ts'
import {
  formatListenAddress,
  type HostPort,
  isLoopback,
  parseUnixSocket,
  MAX_UNIX_SOCKET_PATH_BYTES,
} from '../runtime/host-port.ts'
import { formatUnreadable } from '../runtime/setting-files.ts'
import type { PassedSocket } from '../runtime/systemd.ts'
import {
  absolutePath,
  addressPort,
  type AddFault,
  type Environment,
  type LogLevel,
  list,
  listOf,
  LOG_LEVELS,
  matching,
  oneOf,
  type ParsedVariables,
  readVariables,
  section,
  anyText,
  type Values,
  whole,
} from '../runtime/variables.ts'
import { isNetwork } from '../metadata/address.ts'

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
  readonly journalMaxAgeMs: number
  /** Keys of session tokens; the first mints. Undefined: use the key in the state directory of this hypervisor. */
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
  /** Undefined: there are no identity documents and tokens. */
  readonly identity: IdentitySettings | undefined
}

const name = matching(isName, `must be ${NAME_RULE}`)

export const VARIABLES = {
  ...section('Store', {
    ...STORE_VARIABLES,
    IMDS_HYPERVISOR: {
      parse: name,
      help: 'the name of this hypervisor in the records; required with Redis. With files, unset: all are served',
    },
    IMDS_USER_DATA_MAX_BYTES: {
      default: String(DEFAULT_USER_DATA_BYTES),
      parse: whole(1, MAX_USER_DATA_BYTES),
      help: 'the limit of user-data, 1 to 16,777,216; a record with more is faulty. Publishers must use the same',
    },
    IMDS_RESYNC_SECONDS: {
      default: '60',
      parse: whole(1, 86_400),
      help: 'the interval of full comparisons with the store, plus or minus a quarter; 1 to 86,400',
    },
  }),
  ...section('Listeners', {
    IMDS_LISTEN: {
      default: DEFAULT_LISTEN,
      parse: anyText,
      help: 'for guests: ADDRESS:PORT or NETWORK=ADDRESS:PORT, ...; the sockets of systemd must be the same',
    },
    IMDS_OPERATOR_SOCKET: {
      default: DEFAULT_OPERATOR_SOCKET,
      parse: matching(
        (path) => parseUnixSocket(formatListenAddress({ path })) !== undefined,
        `must be an absolute path of at most ${MAX_UNIX_SOCKET_PATH_BYTES} bytes, ` +
          `such as ${DEFAULT_OPERATOR_SOCKET}`,
      ),
      help: 'the unix socket for operators',
    },
    IMDS_OPERATOR_LISTEN: {
      default: DEFAULT_OPERATOR_LISTEN,
      parse: addressPort(DEFAULT_OPERATOR_LISTEN),
      help: 'metrics and health for operators, which guests must not reach',
    },
    IMDS_OPERATOR_ALLOW: {
      default: '',
      parse: listOf(
        (text) => text.includes('/') && isNetwork(text),
        'is not a network such as 10.1.0.0/16 or fd00::/8',
      ),
      help: 'the networks that may use that listener, such as 10.1.0.0/16,fd00::/8; required unless it is loopback',
    },
  }),
  ...section('State', {
    IMDS_STATE_DIR: { default: '/var/lib/imds', parse: absolutePath, help: "the daemon's own directory" },
    IMDS_JOURNAL_MAX_AGE_SECONDS: {
      default: '86400',
      parse: whole(1, 31_536_000),
      help: 'a journal that was compared with the store longer ago is not served at a start; 1 to 31,536,000',
    },
    IMDS_TOKEN_KEYS_FILE: {
      parse: anyText,
      help: 'keys of session tokens that all hypervisors share; unset: a guest that migrates needs a new token',
    },
  }),
  // The minimums are those of contract F1: with less, a guest might not boot, because cloud-init gives up after six
  // refusals.
  ...section('Guests', {
    IMDS_GUEST_BURST: {
      default: '600',
      parse: whole(600, 1_000_000_000),
      help: 'requests of an instance at once, at least 600; five times the number of its paths if that is more',
    },
    IMDS_GUEST_REQUESTS_PER_SECOND: {
      default: '100',
      parse: whole(100, 1_000_000_000),
      help: 'requests of an instance per second after that, at least 100; beyond it: 503',
    },
    IMDS_GUEST_CONNECTIONS: {
      default: '64',
      parse: whole(16, 65_536),
      help: 'open connections of an instance, 16 to 65,536; beyond it: 503, beyond four times as many: reset',
    },
    IMDS_FORWARDED: {
      default: 'refuse',
      parse: oneOf(FORWARDED_RULES),
      help: 'a request with X-Forwarded-For or Forwarded: 403; refuse-tokens: only if it concerns tokens; count: served',
    },
    IMDS_SERVICES_DOMAIN: { parse: name, help: 'services/domain in the tree' },
    IMDS_SERVICES_PARTITION: { parse: name, help: 'services/partition in the tree' },
  }),
  ...section('Identity of guests', {
    IMDS_IDENTITY_KEY_FILE: {
      parse: anyText,
      help: 'the private key of identity documents and tokens, PEM: RSA of 2,048 to 4,096 bits, or EC P-256 (tokens only)',
    },
    IMDS_IDENTITY_CERT_FILE: { parse: anyText, help: 'its certificate, PEM; required with the key' },
    IMDS_IDENTITY_ISSUER: {
      parse: matching(isIssuer, `must be ${ISSUER_RULE}`),
      help: 'the issuer of identity tokens, an https URL without a final slash; unset: there are no tokens',
    },
  }),
  ...section('Firewall and log', {
    IMDS_FIREWALL: {
      default: 'off',
      parse: matching((value) => value === 'off' || value === 'required', 'must be off or required'),
      help: 'required: a new address is served, and imdsctl wait returns, once the firewall admits the guest',
    },
    IMDS_LINK: {
      default: DEFAULT_LINK,
      parse: matching(
        isLinkRule,
        'must be a link name of at most 15 characters, with {interfaceId} or {network} if each guest or each network ' +
          'has its own link, such as tap-{interfaceId}',
      ),
      help: "the rule for the names of guests' links, with {interfaceId}, {interfaceId:11} or {network}",
    },
    IMDS_LOG_LEVEL: { default: 'info', parse: oneOf(LOG_LEVELS), help: `${LOG_LEVELS.join(', ')} (every request)` },
  }),
}

export type VariableName = keyof typeof VARIABLES
type Fault = AddFault<VariableName>
type FileVariable = Extract<VariableName, `${string}_FILE`>

/** Variables that begin with IMDS_API_ are those of imds-api: both programs may have the same environment. */
const OWN = /^IMDS_(?!API_)/

/** Parses the environment. `passed`: the sockets of systemd. `readText` returns a file's text, or throws. */
export function parseConfig(
  env: Environment,
  passed: readonly PassedSocket[] = [],
  readText: (path: string) => string = noFiles,
): ParsedVariables<Config> {
  const { values, fault, result } = readVariables(VARIABLES, env, OWN)
  const secretOf = <T>(variable: FileVariable, parse: (text: string) => Parsed<T, string>): T | undefined => {
    const path = values[variable]
    if (path === undefined) return undefined
    try {
      const parsed = parse(readText(path))
      if (parsed.ok) return parsed.value
      for (const message of parsed.faults) fault(variable, message)
    } catch (error) {
      fault(variable, formatUnreadable(path, error))
    }
    return undefined
  }
  const isFirewallRequired = values.IMDS_FIREWALL === 'required'
  const listeners = parseListeners(list(values.IMDS_LISTEN), passed, isFirewallRequired, (message) =>
    fault('IMDS_LISTEN', message),
  )
  const [operator, allow] = [values.IMDS_OPERATOR_LISTEN, values.IMDS_OPERATOR_ALLOW]
  if (!isLoopback(operator.host) && allow.length === 0)
    fault(
      'IMDS_OPERATOR_ALLOW',
      'must list the networks that may use it, since IMDS_OPERATOR_LISTEN is not a loopback address',
    )
  const recordKeys = secretOf('IMDS_RECORD_KEYS_FILE', parseRecordKeys)
  const tokenKeys = secretOf('IMDS_TOKEN_KEYS_FILE', parseTokenKeys)
  const key = secretOf('IMDS_IDENTITY_KEY_FILE', parseIdentityKey)
  const certificate = secretOf('IMDS_IDENTITY_CERT_FILE', parseIdentityCertificate)
  const identity = key && certificate && { key, certificate, issuer: values.IMDS_IDENTITY_ISSUER }
  checkIdentity(values, identity, fault)
  const store = parseStore(values, recordKeys, fault)
  const [domain, partition] = [values.IMDS_SERVICES_DOMAIN, values.IMDS_SERVICES_PARTITION]
  return result<Config>(
    store && {
      ...listeners,
      operator: { ...operator, allow },
      operatorSocket: values.IMDS_OPERATOR_SOCKET,
      store,
      stateDirectory: values.IMDS_STATE_DIR,
      logLevel: values.IMDS_LOG_LEVEL,
      userDataMaxBytes: values.IMDS_USER_DATA_MAX_BYTES,
      share: {
        burst: values.IMDS_GUEST_BURST,
        perSecond: values.IMDS_GUEST_REQUESTS_PER_SECOND,
        connections: values.IMDS_GUEST_CONNECTIONS,
      },
      forwarded: values.IMDS_FORWARDED,
      tokenKeys,
      resyncMs: values.IMDS_RESYNC_SECONDS * 1000,
      journalMaxAgeMs: values.IMDS_JOURNAL_MAX_AGE_SECONDS * 1000,
      firewall: { required: isFirewallRequired, link: values.IMDS_LINK },
      provider: { ...(domain !== undefined && { domain }), ...(partition !== undefined && { partition }) },
      identity,
    },
  )
}

/** Reports settings of the identity of guests that do not belong together. `identity`: if both files are valid. */
function checkIdentity(values: Values<typeof VARIABLES>, identity: IdentitySettings | undefined, fault: Fault): void {
  const [key, certificate] = [values.IMDS_IDENTITY_KEY_FILE, values.IMDS_IDENTITY_CERT_FILE]
  if (key === undefined && certificate !== undefined)
    fault('IMDS_IDENTITY_KEY_FILE', 'is not set: it must name the key of the certificate in IMDS_IDENTITY_CERT_FILE')
  if (key !== undefined && certificate === undefined)
    fault('IMDS_IDENTITY_CERT_FILE', 'is not set: it must name the certificate of the key in IMDS_IDENTITY_KEY_FILE')
  if (key === undefined && values.IMDS_IDENTITY_ISSUER !== undefined)
    fault('IMDS_IDENTITY_ISSUER', 'needs a key: set IMDS_IDENTITY_KEY_FILE and IMDS_IDENTITY_CERT_FILE')
  if (identity?.certificate.checkPrivateKey(identity.key) === false)
    fault('IMDS_IDENTITY_CERT_FILE', 'is not the certificate of the key in IMDS_IDENTITY_KEY_FILE')
}

function parseStore(
  values: Values<typeof VARIABLES>,
  recordKeys: RecordKeys | undefined,
  fault: Fault,
): StoreConfig | undefined {
  const hypervisor = values.IMDS_HYPERVISOR
  const settings = storeSettingsOf(values)
  const parsed = parseStoreSettings({ ...settings, recordKeysFile: recordKeys && settings.recordKeysFile })
  const kind = parsed.ok ? parsed.value.kind : parsed.kind
  if (kind === 'files' && settings.region !== undefined && !isName(settings.region))
    fault('IMDS_REGION', `must be ${NAME_RULE}`) // not used with files, but probably a mistake
  if (!parsed.ok) for (const { setting, message } of parsed.faults) fault(STORE_SETTINGS[setting].variable, message)
  if (kind === 'redis' && hypervisor === undefined)
    fault('IMDS_HYPERVISOR', 'is not set: with Redis it must be the name of this hypervisor, as in the records')
  if (!parsed.ok) return undefined
  const { value: store } = parsed
  if (store.kind === 'files') return { kind: 'files', directory: store.directory, hypervisor }
  const { region } = store
  return { ...settings, kind: 'redis', url: settings.url ?? '', region, hypervisor: hypervisor ?? '', recordKeys }
}

function noFiles(): never {
  throw new Error('no function to read files was given')
}
