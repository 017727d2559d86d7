/** The settings of the database: the rows of their variables. Pure. */
import { anyText, checked, whole } from '../../runtime/variables.ts'

/**
 * Where the database is. `passwordFile`: read at each connection, so a password can be changed while imds-api
 * runs. `connections`: the most for requests.
 */
export interface DatabaseSettings {
  readonly url: string
  readonly passwordFile?: string | undefined
  readonly connections?: number
}

/** The most connections for requests, unless the settings have another number. */
export const DEFAULT_CONNECTIONS = 16

export const DATABASE_VARIABLES = {
  IMDS_API_DATABASE: {
    required:
      'make a database (createdb --owner=imds --encoding=UTF8 --template=template0 imds), and name it: ' +
      'postgres://imds@HOST/imds',
    parse: checked(faultOfServerUrl),
    help: 'postgres://USER@HOST/DATABASE, of the encoding UTF8, on PostgreSQL 15 or newer; required',
  },
  IMDS_API_DATABASE_PASSWORD_FILE: {
    parse: anyText,
    help: 'the password of USER, in the first line of a file; read at each connection',
  },
  IMDS_API_DATABASE_CONNECTIONS: {
    default: String(DEFAULT_CONNECTIONS),
    parse: whole(1, 64),
    help: 'connections to the database for requests, 1 to 64; there are ten more for other work',
  },
}

/** Scheme, user, host with its port, and the rest. */
const FORM = /^(postgres(?:ql)?:\/\/)([^@/?#]*@)?([^/?#]*)(.*)$/s

/** Returns why a URL cannot be used. The reason repeats no part of the URL, since it may have a password. */
export function faultOfServerUrl(text: string): string | undefined {
  const [, scheme, user = '', host = '', rest = ''] = FORM.exec(text) ?? []
  // WHATWG's parser takes no user without a host, which node-postgres has for ?host=/run/postgresql
  const parsable = host === '' ? `${scheme ?? ''}${user}localhost${rest}` : text
  const isOne = !/[,@]/.test(host) && new URLSearchParams(rest.split('?')[1]).get('host')?.includes(',') !== true
  if (scheme !== undefined && !isOne) return 'must name one server: with standbys, the address that follows the primary'
  if (scheme === undefined || !URL.canParse(parsable)) return 'must be postgres://USER@HOST/DATABASE'
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
