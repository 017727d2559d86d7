/** The credentials of HTTP Basic (RFC 7617), also as OAuth clients send them (RFC 6749, 2.3.1). */

/** A client's id and secret. */
export interface Credentials {
  readonly id: string
  readonly secret: string
}

/** Control characters are not allowed (RFC 7617, 2). PostgreSQL has no U+0000 either. */
// eslint-disable-next-line no-control-regex
const CONTROL = /[\x00-\x1f\x7f]/

/** Parses an Authorization header. Undefined: it has no credentials of HTTP Basic. */
export function parseBasic(header: string | undefined): Credentials | undefined {
  const [, base64] = /^basic +([A-Za-z0-9+/]+={0,2}) *$/i.exec(header ?? '') ?? []
  if (base64 === undefined) return undefined
  const text = Buffer.from(base64, 'base64').toString('utf8')
  const colon = text.indexOf(':')
  return colon === -1 || CONTROL.test(text) ? undefined : { id: text.slice(0, colon), secret: text.slice(colon + 1) }
}

/**
 * Decodes a form-encoded id or secret. RFC 6749 (2.3.1) demands that clients encode both, but not all do. Text that
 * cannot be decoded stays as it is.
 */
export function formDecoded(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '))
  } catch {
    return text
  }
}
