/**
 * Removes secrets from the texts of a bug report.
 *
 * It removes each secret of this machine that is known, in every encoding in which a program could print it, and then
 * whatever looks like a secret. It removes too much rather than too little.
 */

export const REMOVED = '[removed]'

/** A shorter text would remove ordinary words. */
const SHORTEST = 4
/** Of the random part of a token or a key. A digest or an id in lower case stays. */
const RANDOM = /[A-Za-z0-9+_-]{24,}={0,2}/g

/** What looks like a secret; `keep` is the part of the match that stays. */
const PATTERNS: readonly (readonly [pattern: RegExp, keep: string])[] = [
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[^]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g, ''],
  [/([a-z][a-z0-9+-]*:\/\/[^\s:@/"']*:)[^\s"']+(?=@)/gi, '$1'],
  [/\b((?:proxy-)?authorization["']?\s*[:=]\s*["']?(?:basic|bearer)?)[^\r\n"']*/gi, '$1'],
  [/\b((?:set-)?cookie["']?\s*[:=]\s*["']?)[^\r\n"']*/gi, '$1'],
  [/\b(bearer\s+)[^\s"',;]+/gi, '$1'],
  [
    /([\w.-]*(?:password|passwd|passphrase|secret|token|credential|api[_-]?key)["']?\s*[=:]\s*)(?:"[^"\n]*"|'[^'\n]*'|[^\s"',;}]+)/gi,
    '$1',
  ],
  // an audit line of imds-api, and the row that PostgreSQL adds to an error
  [/(\]: )\{"time":.*/g, '$1'],
  [/("detail":)"(?:\\.|[^"\\])*"/g, '$1'],
  // an e-mail address: no name of a unit, and no user in a URL
  [/(?<![/\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.(?!(?:service|socket)\b)[a-z]{2,}\b/gi, ''],
]

/** Returns a function that removes the known secrets, and what looks like one, from a text. */
export function buildRedaction(secrets: Iterable<string>): (text: string) => string {
  const forms = new Set([...secrets].filter(({ length }) => length >= SHORTEST).flatMap(formsOf))
  // the longest first: a shorter one may be a part of it
  const sorted = [...forms].filter(({ length }) => length >= SHORTEST).sort((a, b) => b.length - a.length)
  return (text) => {
    const known = sorted.reduce((rest, form) => rest.replaceAll(form, REMOVED), text)
    const likely = PATTERNS.reduce((rest, [pattern, keep]) => rest.replace(pattern, `${keep}${REMOVED}`), known)
    return likely.replace(RANDOM, (run) => (isRandom(run) ? REMOVED : run))
  }
}

/** A secret as text, in JSON, in a URL, in base64 and in hexadecimal; if it is base64, also its bytes in these. */
function formsOf(secret: string): string[] {
  const decoded = Buffer.from(secret, 'base64')
  const isBase64 =
    decoded.length >= SHORTEST && decoded.toString('base64').replace(/=+$/, '') === secret.replace(/=+$/, '')
  return [
    secret,
    JSON.stringify(secret).slice(1, -1),
    encodeURIComponent(secret),
    ...[Buffer.from(secret), ...(isBase64 ? [decoded] : [])].flatMap((bytes) => [
      bytes.toString('base64'),
      bytes.toString('base64').replace(/=+$/, ''),
      bytes.toString('base64url'),
      bytes.toString('hex'),
      bytes.toString('hex').toUpperCase(),
    ]),
  ]
}

/** True for a text with upper case, lower case and digits, as random base64 has. */
function isRandom(text: string): boolean {
  return /[A-Z]/.test(text) && /[a-z]/.test(text) && /\d/.test(text)
}
