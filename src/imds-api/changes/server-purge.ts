/** Deletes the rows of servers that were deleted before. */
import { sql, type RawBuilder } from 'kysely'
import { PURGE_BATCH } from '../database/purge.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { purgeImages } from './images.ts'
import { MAX_KEPT_DELETED } from './limits.ts'

/** How long a deleted server can be read. */
const RETENTION = '30 days'
/** True for a deleted server that needs no publish, and no hypervisor for the deletion of a snapshot. */
const IS_UNREFERENCED = sql`(
  not exists (select from outbox where outbox.server_id = servers.id)
  and not exists (select from images where images.source_server_id = servers.id and images.status <> 'deleted'))`

/** Deletes the rows of servers that were deleted long ago, in batches, and of deleted images without servers. */
export async function purgeServers(db: Db): Promise<void> {
  const old = sql`
    select id from servers where deleted_at < now() - ${RETENTION}::interval and ${IS_UNREFERENCED} limit ${PURGE_BATCH}`
  while ((await deleteRows(db, old)) === PURGE_BATCH);
  await purgeImages(db, sql`true`)
}

/** Deletes the rows of the oldest deleted servers of an account, beyond MAX_KEPT_DELETED. */
export async function purgeOldestDeleted(tx: Tx, accountId: string): Promise<void> {
  await deleteRows(
    tx,
    sql`
      select id from servers where ${IS_UNREFERENCED} and id in (
        select id from servers where account_id = ${accountId} and deleted_at is not null
        order by deleted_at desc offset ${MAX_KEPT_DELETED} limit ${PURGE_BATCH})`,
  )
}

async function deleteRows(db: Db, ids: RawBuilder<unknown>): Promise<number> {
  const { rows } = await sql<{ deleted: number }>`
    with gone as (delete from servers where id in (${ids}) returning id)
    select count(*) as deleted from gone`.execute(db)
  return rows[0]!.deleted
}
