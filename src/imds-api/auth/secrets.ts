/**
 * Random secrets and their digests. The database holds only digests: a secret of 128 bits or more needs no slow hash.
 */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'

/**
 * Bytes of a client's secret: 160 bits, 27 characters. fog's HTTP library refuses an Authorization header for more than
 * 35 characters.
 */
const SECRET_BYTES = 20
const TOKEN_BYTES = 32

/** A new secret of an API client or application, or FTP password of an account. */
export function newSecret(): string {
  return randomBytes(SECRET_BYTES).toString('base64url')
}

/** A new access token, refresh token or console token. */
export function newToken(): string {
  return randomBytes(TOKEN_BYTES).toString('base64url')
}

/** The digest of a secret, as the database holds it. */
export function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest()
}

/** Compares a secret with a digest, in constant time. */
export function hasDigest(secret: string, sha256: Buffer): boolean {
  return timingSafeEqual(digest(secret), sha256)
}
