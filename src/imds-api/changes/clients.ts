/**
 * Changes that API clients and applications share: they get secrets, and stay readable with `revoked_at` after their
 * deletion. auth/ ends their tokens.
 */
import { sql } from 'kysely'
import type { Tx } from '../database/transaction.ts'
import { refuse } from '../model/refusal.ts'
import { ROWS } from '../model/resources.ts'
import { MAX_KEPT_DELETED } from './limits.ts'
import { lockRow, setValues, type OwnRow } from './own-rows.ts'

type ClientName = 'apiClient' | 'application'

/** Locks the row of a client that is not deleted. */
export async function lockClient<T extends ClientName>(
  tx: Tx,
  name: T,
  accountId: string,
  id: string,
): Promise<OwnRow<T>> {
  const row = await lockRow(tx, name, accountId, id)
  if ((row as { readonly revoked_at?: Date | null }).revoked_at !== null)
    throw refuse('resource_conflict', `${id} is deleted`)
  return row
}

/** Replaces the secret of an API client. The present one stays valid for `keepSeconds`; an older one ends. */
export async function rotateSecret(
  tx: Tx,
  accountId: string,
  id: string,
  sha256: Buffer,
  keepSeconds: number,
): Promise<void> {
  const { secret_sha256: former } = await lockClient(tx, 'apiClient', accountId, id)
  const keeps = keepSeconds > 0 && former !== null
  await setValues(tx, 'api_clients', id, {
    secret_sha256: sha256,
    former_secret_sha256: keeps ? former : null,
    former_secret_until: keeps ? new Date(Date.now() + keepSeconds * 1000) : null,
  })
}

/**
 * Revokes a client with its Idempotency-Keys. Then deletes the oldest revoked clients beyond MAX_KEPT_DELETED, except
 * those of the region file, which `apply` would create again.
 */
export async function revokeClient(tx: Tx, name: ClientName, accountId: string, id: string): Promise<void> {
  await lockClient(tx, name, accountId, id)
  const table = sql.table(ROWS[name].table)
  await sql`update ${table} set revoked_at = ${new Date()}, secret_sha256 = null where id = ${id}`.execute(tx)
  await sql`delete from idempotency_keys where owner = ${accountId} and client = ${id}`.execute(tx)
  await sql`
    delete from ${table} where id in (
      select id from ${table}
      where account_id = ${accountId} and revoked_at is not null
        and not exists (select from given_ids where given_ids.id = ${table}.id)
      order by revoked_at desc offset ${MAX_KEPT_DELETED}
    )`.execute(tx)
}
