/** One-time passwords of users with two-factor authentication: TOTP (RFC 6238), six digits that change every 30 s. */
import { Secret, TOTP } from 'otpauth'

/** How many steps the clock of a user's device may be ahead or behind (RFC 6238, 5.2). */
const MAX_SKEW = 1
/** RFC 4226 recommends 160 bits; many services give out 80, which are 16 characters. */
const SECRET = /^[A-Z2-7]{16,128}$/

/**
 * Finds the code of a user with two-factor authentication: in a header, or behind the password and a `+`. A client may
 * send it in both places (fog does). If the header has another code, what looks like a code behind the `+` is part of
 * the password. `code`: undefined if there is none.
 */
export function splitCode(
  password: string,
  header: string | undefined,
): { readonly password: string; readonly code: string | undefined } {
  const [, before, code] = /^(.*)\+(\d{6})$/s.exec(password) ?? []
  if (before === undefined || (header !== undefined && header !== code)) return { password, code: header }
  return { password: before, code }
}

/** The step of time to which a code belongs; undefined: it is wrong. `nowMs`: milliseconds since 1970. */
export function stepOfCode(secret: string, code: string, nowMs: number): number | undefined {
  const totp = new TOTP({ secret: Secret.fromBase32(secret), digits: 6, period: 30 })
  const steps = /^\d{6}$/.test(code) ? totp.validate({ token: code, timestamp: nowMs, window: MAX_SKEW }) : undefined
  return typeof steps === 'number' ? totp.counter({ timestamp: nowMs }) + steps : undefined
}

/** Parses a secret. The database has it in base32 without spaces and padding. Undefined: the text is not a secret. */
export function parseTotpSecret(text: string): string | undefined {
  const secret = text.replaceAll(/[\s=]/g, '').toUpperCase()
  // other lengths are no whole bytes
  return SECRET.test(secret) && [0, 2, 4, 5, 7].includes(secret.length % 8) ? secret : undefined
}
