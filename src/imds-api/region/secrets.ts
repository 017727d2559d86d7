/**
 * The secrets of a region file. They are in files beside it, so that the region file itself can be shown and kept under
 * version control.
 */
import type { Parsed } from '../../metadata/parsed.ts'
import { NotUtf8 } from '../../runtime/text-file.ts'
import { parseTotpSecret } from '../auth/one-time-password.ts'
import { isPassword } from '../auth/password.ts'
import { digest } from '../auth/secrets.ts'
import type { RegionFile } from './schema.ts'

/** The secrets, each by the id of its owner. */
export interface RegionSecrets {
  /** SHA-256 of the secrets of API clients and applications. */
  readonly digests: ReadonlyMap<string, Buffer>
  readonly passwords: ReadonlyMap<string, string>
  readonly totpSecrets: ReadonlyMap<string, string>
}

/**
 * Loads every file of secrets that a region file names. Reports every fault at once, without the secret. `read`: the
 * text of a file.
 */
export function loadSecrets(
  { users, api_clients, applications = [] }: RegionFile,
  read: (file: string) => string,
): Parsed<RegionSecrets, string> {
  const faults: string[] = []
  const load = <T>(
    owner: string,
    file: string | undefined,
    parse: (text: string) => T | undefined,
    form: string,
  ): [string, T][] => {
    if (file === undefined) return []
    try {
      const value = parse(read(file))
      if (value !== undefined) return [[owner, value]]
      faults.push(`${owner}: ${file} must have ${form}`)
    } catch (error) {
      faults.push(`${owner}: ${file} cannot be read${error instanceof NotUtf8 ? `: ${error.message}` : ''}`)
    }
    return []
  }
  const digests = new Map(
    [...api_clients, ...applications].flatMap(({ id, secret_file }) =>
      load(
        id,
        secret_file,
        parseSecret,
        'a secret of 20 to 35 printable ASCII characters without spaces in its only line',
      ),
    ),
  )
  const passwords = new Map(
    users.flatMap(({ id, password_file }) =>
      load(id, password_file, parsePassword, 'a password of 8 to 72 characters in its only line'),
    ),
  )
  const totpSecrets = new Map(
    users.flatMap(({ id, totp_secret_file }) =>
      load(id, totp_secret_file, parseTotpSecret, 'a secret in base32 with 16 to 128 characters'),
    ),
  )
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value: { digests, passwords, totpSecrets } }
}

/** 128 random bits take 20 characters at least. fog's HTTP library refuses an Authorization header for more than 35. */
function parseSecret(text: string): Buffer | undefined {
  return /^[!-~]{20,35}$/.test(text.trim()) ? digest(text.trim()) : undefined
}

/** Spaces are part of a password, but the line break at its end is not. */
function parsePassword(text: string): string | undefined {
  const password = text.replace(/\r?\n$/, '')
  return isPassword(password) && !/[\r\n]/.test(password) ? password : undefined
}
