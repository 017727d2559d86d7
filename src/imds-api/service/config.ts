/**
 * The configuration of imds-api: a table of variables, and the parser of the environment into a frozen ApiConfig, or a
 * list of everything that is wrong with it. Pure: it opens nothing. The variables of the store are the same as
 * imdsctl's.
 */
import {
  LOG_LEVELS,
  addressPort,
  anyText,
  oneOf,
  readVariables,
  section,
  type LogLevel,
  type AddFault,
  type Environment,
  type ParsedVariables,
  type Values,
} from '../../runtime/variables.ts'
import type { HostPort } from '../../runtime/host-port.ts'
import {
  parseStoreSettings,
  STORE_SETTINGS,
  STORE_VARIABLES,
  storeSettingsOf,
  DEFAULT_USER_DATA_BYTES,
  type StoreSettings,
} from '../../store/settings.ts'
import { parseTokenSettings, TOKEN_VARIABLES, type TokenSettings } from '../auth/settings.ts'
import type { ComputeMode } from '../changes/actions.ts'
import { COMPUTE_VARIABLES, computeListenerOf, type ComputeListener } from '../compute/settings.ts'
import { DATABASE_VARIABLES, type DatabaseSettings } from '../database/settings.ts'
import { CLIENT_VARIABLES, clientSettingsOf, type ClientSettings } from '../http/settings.ts'
import { MAIL_VARIABLES, mailSettingsOf, type MailSettings } from '../mail/settings.ts'

export interface ApiConfig extends ClientSettings, TokenSettings {
  /** `passwordFile` undefined: it needs no password. */
  readonly operator: HostPort & { readonly passwordFile: string | undefined }
  readonly database: DatabaseSettings
  readonly store: StoreSettings
  /** Undefined: invitations are not sent. */
  readonly mail: MailSettings | undefined
  /** How actions on servers are carried out. */
  readonly compute: ComputeMode
  /** Used with `reported`. */
  readonly computeListener: ComputeListener
  readonly logLevel: LogLevel
}

const COMPUTE_MODES: readonly ComputeMode[] = ['none', 'reported']

export const API_VARIABLES = {
  ...section('Store', STORE_VARIABLES),
  ...section('Clients', CLIENT_VARIABLES),
  ...section('Database', DATABASE_VARIABLES),
  ...section('Tokens', TOKEN_VARIABLES),
  ...section('Invitations', MAIL_VARIABLES),
  ...section('Hypervisors', {
    IMDS_API_COMPUTE: {
      default: 'none',
      parse: oneOf(COMPUTE_MODES),
      help: 'who carries out actions: none (they succeed at once), or hypervisors: reported',
    },
    ...COMPUTE_VARIABLES,
  }),
  ...section('Operators', {
    IMDS_API_OPERATOR_LISTEN: {
      default: '127.0.0.1:9170',
      parse: addressPort('127.0.0.1:9170'),
      help: 'metrics and health for operators',
    },
    IMDS_API_OPERATOR_PASSWORD_FILE: {
      parse: anyText,
      help: 'the password of that listener, in the first line of a file; unset: it needs none',
    },
    IMDS_API_LOG_LEVEL: {
      default: 'info',
      parse: oneOf(LOG_LEVELS),
      help: `${LOG_LEVELS.join(', ')}; above info there are no audit lines`,
    },
  }),
}

type ApiValues = Values<typeof API_VARIABLES>
type Fault = AddFault<keyof typeof API_VARIABLES>

export function parseApiConfig(env: Environment): ParsedVariables<ApiConfig> {
  const { values, fault, result } = readVariables(API_VARIABLES, env, /^IMDS_API_/)
  const clients = clientSettingsOf(values, fault)
  return result<ApiConfig>({
    ...clients,
    ...parseTokenSettings(values, clients.baseUrl, fault),
    operator: { ...values.IMDS_API_OPERATOR_LISTEN, passwordFile: values.IMDS_API_OPERATOR_PASSWORD_FILE },
    database: {
      url: values.IMDS_API_DATABASE,
      passwordFile: values.IMDS_API_DATABASE_PASSWORD_FILE,
      connections: values.IMDS_API_DATABASE_CONNECTIONS,
    },
    store: storeOf(values, fault),
    mail: mailSettingsOf(values, fault),
    compute: values.IMDS_API_COMPUTE,
    computeListener: computeListenerOf(values, fault),
    logLevel: values.IMDS_API_LOG_LEVEL,
  })
}

/** Why IMDS_REGION does not fit to a region that `holder` names; undefined: it does, or is not set. */
export function regionFault({ store }: Pick<ApiConfig, 'store'>, region: string, holder: string): string | undefined {
  return store.region === undefined || store.region === region
    ? undefined
    : `IMDS_REGION is ${store.region}, and ${holder} ${region}: correct one of them`
}

function storeOf(values: ApiValues, fault: Fault): StoreSettings {
  const settings = storeSettingsOf(values)
  const parsed = parseStoreSettings(settings)
  if (!parsed.ok) for (const { setting, message } of parsed.faults) fault(STORE_SETTINGS[setting].variable, message)
  return { url: '', ...settings, userDataMaxBytes: DEFAULT_USER_DATA_BYTES }
}
