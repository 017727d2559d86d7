/** The passwords and TOTP secrets of the users of a region file. */
import { sql } from 'kysely'
import { hashPassword, verifyPassword } from '../auth/password.ts'
import { revokeFamilies } from '../auth/token-families.ts'
import type { Tx } from '../database/transaction.ts'
import type { RegionFile } from './schema.ts'
import type { RegionSecrets } from './secrets.ts'

/**
 * The password hash and the TOTP secret that the database must have for a user, and whether they differ from the stored
 * ones.
 */
export interface RegionCredentials {
  readonly id: string
  readonly isChanged: boolean
  readonly isTotpChanged: boolean
  readonly passwordHash: string | null
  readonly totpSecret: string | null
}

/**
 * Returns the credentials in the order of the file's users. A password that matches the stored hash keeps that hash, so
 * applying it again is no difference.
 */
export async function computeCredentials(
  tx: Tx,
  file: RegionFile,
  { passwords, totpSecrets }: RegionSecrets,
): Promise<readonly RegionCredentials[]> {
  const stored = new Map(
    (await tx.selectFrom('users').select(['id', 'password_hash', 'totp_secret']).execute()).map((row) => [row.id, row]),
  )
  const credentials: RegionCredentials[] = []
  for (const { id, password_hash } of file.users) {
    // one after the other: each hash takes 32 MiB
    const [before, password, totpSecret] = [stored.get(id), passwords.get(id), totpSecrets.get(id) ?? null]
    const isKept =
      password !== undefined &&
      before !== undefined &&
      (await verifyPassword(password, before.password_hash ?? undefined))
    const passwordHash = isKept
      ? before.password_hash
      : password === undefined
        ? (password_hash ?? null)
        : await hashPassword(password)
    const isTotpChanged = before !== undefined && totpSecret !== before.totp_secret
    const isChanged = before !== undefined && (passwordHash !== before.password_hash || isTotpChanged)
    credentials.push({ id, passwordHash, totpSecret, isChanged, isTotpChanged })
  }
  return credentials
}

/**
 * Ends the sign-ins of users whose password or TOTP secret has changed. With a new TOTP secret, the last used code is
 * forgotten too.
 */
export async function endSignIns(tx: Tx, credentials: readonly RegionCredentials[]): Promise<void> {
  const idsOf = (change: 'isChanged' | 'isTotpChanged') => credentials.filter((one) => one[change]).map(({ id }) => id)
  await revokeFamilies(tx, 'user_id', idsOf('isChanged'))
  await sql`update users set totp_last_step = null where id = any(${idsOf('isTotpChanged')})`.execute(tx)
}
