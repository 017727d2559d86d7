/**
 * The settings of a store, declared once for the daemon (variables), imdsctl (options and the same variables) and the
 * library (fields), with the checks that all three need. Pure: opens and reads nothing. IMDS_HYPERVISOR is not among
 * them, because only the daemon needs it.
 */
import { isName } from '../metadata/identifiers.ts'
import { anyText, type Variable } from '../runtime/variables.ts'
import {
  fileFaults,
  hasPassword,
  parseStoreUrl,
  STORE_URL_FORMS,
  type FileStore,
  type RedisFiles,
  type RedisStore,
} from './url.ts'

/** The most that IMDS_USER_DATA_MAX_BYTES can be set to, for a daemon. */
export const MAX_USER_DATA_BYTES = 16 * 1024 * 1024
/** The default limit of user-data in bytes, which is EC2's (docs/contract.md#notes-on-ec2). */
export const DEFAULT_USER_DATA_BYTES = 16384

/** The form of a region's name, and of every other name, in words. */
export const NAME_RULE = 'one word of letters, digits, ".", "_" and "-", at most 63'

export interface StoreSettings extends RedisFiles {
  /** Redis in any shape, or `file:` with a directory (url.ts). */
  readonly url: string
  /** The region of the instances; required for Redis. */
  readonly region?: string | undefined
  /** Default DEFAULT_USER_DATA_BYTES. */
  readonly userDataMaxBytes?: number | undefined
  /**
   * A file of record keys (record-cipher.ts), for Redis only. The first key encrypts, and plain records are rejected.
   * Read once.
   */
  readonly recordKeysFile?: string | undefined
}

/** The settings that are texts: the variable, the flags of imdsctl's option, and the help of both. */
const TEXTS = {
  url: { variable: 'IMDS_STORE', flags: '-s, --store <url>', help: STORE_URL_FORMS },
  region: {
    variable: 'IMDS_REGION',
    flags: '-r, --region <name>',
    help: 'the region, as the keys in Redis name it; required with Redis',
  },
  passwordFile: {
    variable: 'IMDS_REDIS_PASSWORD_FILE',
    flags: '--password-file <path>',
    help: 'a file with the password of Redis in its first line',
  },
  sentinelPasswordFile: {
    variable: 'IMDS_REDIS_SENTINEL_PASSWORD_FILE',
    flags: '--sentinel-password-file <path>',
    help: 'the same for Sentinels',
  },
  caFile: {
    variable: 'IMDS_REDIS_CA_FILE',
    flags: '--ca-file <path>',
    help: "the authorities that sign the servers' certificates, PEM",
  },
  certFile: {
    variable: 'IMDS_REDIS_CERT_FILE',
    flags: '--cert-file <path>',
    help: 'the client certificate for Redis, PEM',
  },
  keyFile: {
    variable: 'IMDS_REDIS_KEY_FILE',
    flags: '--key-file <path>',
    help: 'its private key, PEM',
  },
  recordKeysFile: {
    variable: 'IMDS_RECORD_KEYS_FILE',
    flags: '--record-keys <path>',
    help: 'a file of record keys, one NAME:BASE64 per line: values that are not encrypted are rejected',
  },
} as const
type TextVariable = (typeof TEXTS)[keyof typeof TEXTS]['variable']

/** The variable, the flags of imdsctl's option and its help for each setting. */
export const STORE_SETTINGS = {
  ...TEXTS,
  userDataMaxBytes: {
    variable: 'IMDS_USER_DATA_MAX_BYTES',
    flags: '--user-data-max-bytes <n>',
    help: `the limit of user-data in bytes (default: ${DEFAULT_USER_DATA_BYTES})`,
  },
} as const satisfies Readonly<Record<keyof StoreSettings, Readonly<Record<'variable' | 'flags' | 'help', string>>>>

/** The variables of a store, as rows of a table. `parseStoreSettings` checks them together. */
export const STORE_VARIABLES = Object.fromEntries(
  Object.values(TEXTS).map(({ variable, help }) => [variable, { parse: anyText, help }]),
) as Readonly<Record<TextVariable, Variable<string>>>

export function storeSettingsOf(values: Readonly<Record<TextVariable, string | undefined>>): Partial<StoreSettings> {
  return Object.fromEntries(Object.entries(TEXTS).map(([setting, { variable }]) => [setting, values[variable]]))
}

const PASSWORD_IN_URL =
  'must not have a password in it, since other programs can read it: name its file in ' +
  `${STORE_SETTINGS.passwordFile.variable} (--password-file)`

/** What is wrong with a setting; `message` continues its name. */
export interface SettingFault {
  readonly setting: keyof typeof TEXTS
  readonly message: string
}

export type ParsedStore =
  | { readonly ok: true; readonly value: FileStore | (RedisStore & { readonly region: string }) }
  | { readonly ok: false; readonly faults: readonly SettingFault[]; readonly kind: 'files' | 'redis' | undefined }

/** Parses the URL and checks the settings that belong to it. */
export function parseStoreSettings({ url, region, recordKeysFile, ...files }: Partial<StoreSettings>): ParsedStore {
  const refused = (kind: 'files' | 'redis' | undefined, ...faults: SettingFault[]) =>
    ({ ok: false, faults, kind }) as const
  const regionRule = region === undefined || region === '' ? 'is not set' : `must be ${NAME_RULE}`
  const regionFaults: SettingFault[] =
    region !== undefined && isName(region)
      ? []
      : [{ setting: 'region', message: `${regionRule}: Redis needs the name of the region` }]
  if (url !== undefined && hasPassword(url))
    return refused('redis', { setting: 'url', message: PASSWORD_IN_URL }, ...regionFaults)
  const store = url === undefined ? undefined : parseStoreUrl(url)
  if (store === undefined) {
    const message = `${url === undefined ? 'is not set:' : 'must be'} ${STORE_URL_FORMS}`
    return refused(undefined, { setting: 'url', message })
  }
  if (store.kind === 'files') {
    if (recordKeysFile === undefined) return { ok: true, value: store }
    const message = 'is for Redis: records in files are not encrypted'
    return refused('files', { setting: 'recordKeysFile', message })
  }
  const faults = [...regionFaults, ...fileFaults(store, files).map(({ file, message }) => ({ setting: file, message }))]
  return faults.length > 0 ? refused('redis', ...faults) : { ok: true, value: { ...store, region: region ?? '' } }
}

/** The faults as one message for the users of imdsctl and the library. */
export function formatSettingFaults(faults: readonly SettingFault[]): string {
  return faults
    .map(({ setting, message }) => {
      const { flags, variable } = STORE_SETTINGS[setting]
      return `${setting} (${/--[a-z-]+/.exec(flags)![0]}, ${variable}) ${message}`
    })
    .join('; ')
}
