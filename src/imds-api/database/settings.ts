/** The settings of the database: parses their variables. Pure. */
import { absolutePath, anyText, whole, type AddFault, type Values } from '../../runtime/variables.ts'

/**
 * Where the database is. `passwordFile`: read at each connection, so a password can be changed while imds-api
 * runs. `connections`: the most for requests.
 */
export type DatabaseSettings = { readonly connections?: number } & (
  | { readonly kind: 'embedded'; readonly stateDirectory: string }
  | { readonly kind: 'server'; readonly url: string; readonly passwordFile: string | undefined }
)

/** The most connections for requests, unless the settings have another number. */
export const DEFAULT_CONNECTIONS = 16

export const DATABASE_VARIABLES = {
  IMDS_API_DATABASE: { parse: anyText, help: 'postgres://USER@HOST/DATABASE, or embedded; required with Redis' },
  IMDS_API_DATABASE_PASSWORD_FILE: { parse: anyText, help: 'the password of USER, in the first line of a file' },
  IMDS_API_DATABASE_CONNECTIONS: {
    default: String(DEFAULT_CONNECTIONS),
    parse: whole(1, 64),
    help: 'connections to the database for requests',
  },
  IMDS_API_STATE_DIR: {
    default: '/var/lib/imds-api',
    parse: absolutePath,
    help: 'the directory of the embedded PostgreSQL',
  },
}

/**
 * Parses the variables. Undefined: there was a fault. With Redis, IMDS_API_DATABASE must be set. A forgotten variable
 * must not start a new, empty database for a store that has records.
 */
export function parseDatabaseSettings(
  values: Values<typeof DATABASE_VARIABLES>,
  isFileStore: boolean,
  fault: AddFault<keyof typeof DATABASE_VARIABLES>,
): DatabaseSettings | undefined {
  const value = values.IMDS_API_DATABASE
  if (value === undefined && !isFileStore) {
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

/** Scheme, user, host with its port, and the rest. */
const FORM = /^(postgres(?:ql)?:\/\/)([^@/?#]*@)?([^/?#]*)(.*)$/s
const NO_URL = 'must be postgres://USER@HOST/DATABASE, or embedded'

/** Returns why a URL cannot be used. The reason repeats no part of the URL, since it may have a password. */
export function faultOfServerUrl(text: string): string | undefined {
  const [, scheme, user = '', host = '', rest = ''] = FORM.exec(text) ?? []
  // WHATWG's parser takes no user without a host, which node-postgres has for ?host=/run/postgresql
  const parsable = host === '' ? `${scheme ?? ''}${user}localhost${rest}` : text
  if (scheme === undefined) return NO_URL
  if (/[,@]/.test(host) || new URLSearchParams(rest.split('?')[1]).get('host')?.includes(',') === true)
    return 'must name one server: with standbys, the address that follows the primary'
  if (!URL.canParse(parsable)) return NO_URL
  const { password, searchParams } = new URL(parsable)
  if (password !== '' || searchParams.has('password'))
    return (
      'must not have a password in it, since other programs can read it: ' +
      'name its file in IMDS_API_DATABASE_PASSWORD_FILE'
    )
  return searchParams.has('target_session_attrs')
    ? 'must not have target_session_attrs, which imds-api does not know: name the address that follows the primary'
    : undefined
}
