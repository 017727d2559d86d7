/** The passwords and second factors of the users of a region file. */
import { sql } from 'kysely'
import { hashPassword, verifyPassword } from '../auth/password.ts'
import { revokeFamilies } from '../auth/token-families.ts'
import type { Change } from '../database/transaction.ts'
import type { RegionFile } from './schema.ts'
import type { RegionSecrets } from './secrets.ts'

/** The password and the second factor of a user, as the database has them and as the file wants them. */
export interface Credentials {
  readonly id: string
  readonly isChanged: boolean
  readonly isTotpChanged: boolean
  readonly passwordHash: string | null
  readonly totpSecret: string | null
}

/** In the order of the file's users. A password that is right keeps its hash: applied again, it is no difference. */
export async function wantedCredentials(change: Change, file: RegionFile, { passwords, totpSecrets }: RegionSecrets): Promise<readonly Credentials[]> {
  const stored = new Map((await change.selectFrom('users').select(['id', 'password_hash', 'totp_secret']).execute()).map((row) => [row.id, row]))
  const credentials: Credentials[] = []
  for (const { id, password_hash } of file.users) { // one after the other: each hash takes 32 MiB
    const [before, password, totpSecret] = [stored.get(id), passwords.get(id), totpSecrets.get(id) ?? null]
    const isKept = password !== undefined && before !== undefined && await verifyPassword(password, before.password_hash ?? undefined)
    const passwordHash = isKept ? before.password_hash : password === undefined ? password_hash ?? null : await hashPassword(password)
    const isTotpChanged = before !== undefined && totpSecret !== before.totp_secret
    const isChanged = before !== undefined && (passwordHash !== before.password_hash || isTotpChanged)
    credentials.push({ id, passwordHash, totpSecret, isChanged, isTotpChanged })
  }
  return credentials
}

/** Users whose password or second factor has changed must sign in again. A code that was used stays used, unless there is a new secret. */
export async function endSessions(change: Change, credentials: readonly Credentials[]): Promise<void> {
  const idsOf = (some: readonly Credentials[]) => some.map(({ id }) => id)
  const [changed, withNewTotp] = [idsOf(credentials.filter(({ isChanged }) => isChanged)), idsOf(credentials.filter(({ isTotpChanged }) => isTotpChanged))]
  if (changed.length > 0) await revokeFamilies(change, 'user_id', changed)
  if (withNewTotp.length > 0) await sql`update users set totp_last_step = null where id = any(${withNewTotp})`.execute(change)
}
