/** The credentials of HTTP Basic (RFC 7617), as OAuth clients send them (RFC 6749, 2.3.1). */

/** A client's id and secret. */
export interface Credentials { readonly id: string, readonly secret: string }

/** Parses an Authorization header; undefined: it has no credentials in this form. */
export function parseBasic(header: string | undefined): Credentials | undefined {
  const [, base64] = /^basic +([A-Za-z0-9+/]+={0,2}) *$/i.exec(header ?? '') ?? []
  if (base64 === undefined) return undefined
  const text = Buffer.from(base64, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  return colon === -1 ? undefined : { id: text.slice(0, colon), secret: text.slice(colon + 1) }
}
