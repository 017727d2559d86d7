/** The issuer of identity tokens: the URL below which its public documents are (OpenID Connect Discovery 1.0, 3). */

/** The form of an issuer, in words. */
export const ISSUER_RULE = 'an https URL without @, query, fragment or final slash, such as https://id.example.com/gb1'

/** Whether a text is an issuer, in the canonical form of a URL, because verifiers compare it as text. */
export function isIssuer(text: string): boolean {
  if (!URL.canParse(text) || text.length > 512 || text.includes('@')) return false
  const { protocol, host, pathname } = new URL(text)
  return protocol === 'https:' && !text.endsWith('/') && text === `https://${host}${pathname.replace(/\/$/, '')}`
}
