/** The URL of a PostgreSQL server, as node-postgres reads it: `postgres://imds@db1:5433/imds`. */

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
