/** The clients and users that may get a token, with their secrets and passwords. */
import { sql, type Selectable } from 'kysely'
import type { Tables } from '../database/tables.ts'
import { limitsOf, type ClientLimits } from '../model/client-limits.ts'
import { SCOPES, SCOPES_OF_GROUP, type Scope } from '../model/scopes.ts'
import { isIdOf } from '../model/ids.ts'
import type { Tx, Db } from '../database/transaction.ts'

/** An API client acts for its account, an application for the users that sign in with it. */
export type Client =
  | {
      readonly kind: 'api-client'
      readonly id: string
      readonly accountId: string
      readonly scopes: readonly Scope[]
      readonly limits: ClientLimits
    }
  | { readonly kind: 'application'; readonly id: string; readonly accountId: string; readonly scopes: readonly Scope[] }

/**
 * A user as the password grant needs it. `password_hash`: null without a password. `totp_secret`: null without
 * two-factor authentication.
 */
export type UserCredentials = Readonly<Pick<Selectable<Tables['users']>, 'id' | 'password_hash' | 'totp_secret'>>

/**
 * Finds a client by its id, and the digests of its secrets: none yet, one, or also the former one while it is valid. A
 * revoked client is not found.
 */
export async function findClient(
  db: Db,
  id: string,
  nowMs: number,
): Promise<{ readonly client: Client; readonly digests: readonly Buffer[] } | undefined> {
  if (isIdOf('app', id)) {
    const row = await db
      .selectFrom('applications')
      .select(['account_id', 'secret_sha256'])
      .where('id', '=', id)
      .where('revoked_at', 'is', null)
      .executeTakeFirst()
    return (
      row && {
        client: { kind: 'application', id, accountId: row.account_id, scopes: SCOPES },
        digests: row.secret_sha256 === null ? [] : [row.secret_sha256],
      }
    )
  }
  const row = await db
    .selectFrom('api_clients')
    .select(['account_id', 'permissions_group', 'secret_sha256', 'former_secret_sha256', 'former_secret_until'])
    .select(['read_only', 'expires_at', 'allow_access'])
    .where('id', '=', id)
    .where('revoked_at', 'is', null)
    .executeTakeFirst()
  if (row === undefined) return undefined
  const isFormerValid = row.former_secret_until !== null && row.former_secret_until.getTime() > nowMs
  return {
    client: {
      kind: 'api-client',
      id,
      accountId: row.account_id,
      scopes: SCOPES_OF_GROUP[row.permissions_group],
      limits: limitsOf(row),
    },
    digests: [row.secret_sha256, isFormerValid ? row.former_secret_sha256 : null].filter((one) => one !== null),
  }
}

/** Locks an application until the transaction ends, so that its deletion waits. False: it was deleted before. */
export async function lockApplication(tx: Tx, id: string): Promise<boolean> {
  return (
    (await tx
      .selectFrom('applications')
      .select('id')
      .where('id', '=', id)
      .where('revoked_at', 'is', null)
      .forShare()
      .executeTakeFirst()) !== undefined
  )
}

/** Finds a user by id or e-mail address. `name`: in lower case. */
export async function findUser(db: Db, name: string): Promise<UserCredentials | undefined> {
  return db
    .selectFrom('users')
    .select(['id', 'password_hash', 'totp_secret'])
    .where((where) =>
      where.or([where('id', '=', name), where(where.fn<string>('lower', ['email_address']), '=', name)]),
    )
    .executeTakeFirst()
}

/**
 * Records the step of a one-time password as used, so that parallel requests cannot use it twice, and locks the user.
 * False: this step or a later one was used before, or the credentials have changed since they were read.
 */
export async function confirmSignIn(tx: Tx, user: UserCredentials, step: number | undefined): Promise<boolean> {
  const { id, password_hash, totp_secret } = user
  const { numAffectedRows } = await sql`
    update users set totp_last_step = coalesce(${step ?? null}::bigint, totp_last_step)
    where id = ${id} and password_hash = ${password_hash} and totp_secret is not distinct from ${totp_secret}
      and coalesce(totp_last_step < ${step ?? null}::bigint, true)`.execute(tx)
  return numAffectedRows === 1n
}
