/** The URL of a PostgreSQL server, or of several as libpq has it: `postgres://imds@a,b:5433/imds`. */
import type { Parsed } from '../../metadata/parsed.ts'

/** What a server must be to get our connections, in libpq's words. `any`: it is not asked. */
export type SessionAttributes = 'read-write' | 'primary' | 'any'

/** `servers`: the URL of each, in their order. */
export interface ServerUrl {
  readonly servers: readonly string[]
  readonly session: SessionAttributes
}

/** Scheme, user, hosts with their ports, and the rest. */
const FORM = /^(postgres(?:ql)?:\/\/)([^@/?#]*@)?([^/?#]*)(.*)$/s
const NO_URL = 'must be postgres://USER@HOST/DATABASE, or embedded'
const SESSIONS: readonly string[] = ['read-write', 'primary', 'any'] satisfies SessionAttributes[]

/** Parses the URL. No fault repeats a part of it, since it may have a password. */
export function parseServerUrl(text: string): Parsed<ServerUrl, string> {
  const [, scheme, user = '', hosts = '', rest = ''] = FORM.exec(text) ?? []
  if (scheme === undefined) return refuse(NO_URL)
  const servers = hosts.split(',').map((host) => `${scheme}${user}${host}${rest}`)
  // WHATWG's parser takes no user without a host, which libpq has for ?host=/run/postgresql
  const parsable = hosts === '' ? [`${scheme}${user}localhost${rest}`] : servers
  if (!parsable.every((server) => URL.canParse(server)) || (servers.length > 1 && hosts.split(',').includes('')))
    return refuse(NO_URL)
  const urls = parsable.map((server) => new URL(server))
  if (urls.some(({ password, searchParams }) => password !== '' || searchParams.has('password')))
    return refuse(
      'must not have a password in it, since other programs can read it: ' +
        'name its file in IMDS_API_DATABASE_PASSWORD_FILE',
    )
  const parameters = urls[0]!.searchParams
  if (hosts.includes('@') || ['host', 'port'].some((name) => parameters.get(name)?.includes(',') === true))
    return refuse('must name several servers as in postgres://USER@HOST1:5432,HOST2:5432/DATABASE')
  const session = parameters.get('target_session_attrs') ?? (servers.length > 1 ? 'read-write' : 'any')
  if (!SESSIONS.includes(session))
    return refuse(`must have one of ${SESSIONS.join(', ')} as target_session_attrs, since imds-api makes changes`)
  return { ok: true, value: { servers, session: session as SessionAttributes } }
}

function refuse(fault: string): Parsed<never, string> {
  return { ok: false, faults: [fault] }
}
