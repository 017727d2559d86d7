/** Publishes servers again that have not changed: after a loss of the store, and by `imds-api reconcile`. */
import { sql, type RawBuilder } from 'kysely'
import { lockRebuild } from '../database/advisory-locks.ts'
import { OUTBOX_CHANNEL } from '../database/outbox.ts'
import type { Db, Tx } from '../database/transaction.ts'

/** Enqueues servers of which the store has no record, or another one. */
export async function enqueueAgain(tx: Tx, ids: readonly string[]): Promise<void> {
  await insertRebuild(tx, sql`id = any(${[...ids]}::text[])`)
}

/**
 * Enqueues every server, for a store that has lost changes, and returns how many were published before. `stored`: the
 * servers in the store, which may be deleted here. It inserts new rows: a publish in flight may have reached the old
 * store, and deletes its own rows afterwards.
 */
export async function enqueueAllServers(tx: Tx, stored: readonly string[]): Promise<number> {
  await lockRebuild(tx)
  await sql`
    delete from outbox where id in (select id from outbox where rebuild for update skip locked)`.execute(tx)
  await insertRebuild(
    tx,
    sql`deleted_at is null or deleted_at > now() - ${TOMBSTONES}::interval or id = any(${[...stored]}::text[])`,
  )
  // The addresses that wait for the deleted rows wait for the new ones.
  await sql`
    update allocations set freed_after = coalesce((select max(id) from outbox), 0)
    where freed_account is not null`.execute(tx)
  const { rows } = await sql<{ published: number }>`
    select count(*) as published from servers where is_published and deleted_at is null`.execute(tx)
  return rows[0]!.published
}

/** How long the store keeps tombstones (docs/publishing.md). Without one, a hypervisor may serve a deleted server. */
const TOMBSTONES = '7 days'

/** Removals are urgent: the addresses of the removed servers may be those of others now. */
async function insertRebuild(tx: Tx, which: RawBuilder<unknown>): Promise<void> {
  await sql`
    insert into outbox (server_id, account_id, rebuild, urgent)
    select id, account_id, true, deleted_at is not null from servers where ${which} order by id`.execute(tx)
  await sql`select pg_notify(${OUTBOX_CHANNEL}, '')`.execute(tx)
}

/** The servers that are published again, and were not tried yet. `records`: without removals. */
export interface RebuildCount {
  readonly left: number
  readonly records: number
}

export async function countRebuild(db: Db): Promise<RebuildCount> {
  const { rows } = await sql<RebuildCount>`
    select count(*) as left, count(*) filter (where not urgent) as records from outbox where rebuild`.execute(db)
  return rows[0]!
}

export interface RefusedServer {
  readonly id: string
  readonly account: string
  readonly fault: string
}

/** The first servers whose records the store refuses. `most` undefined: all. */
export async function findRefusedServers(db: Db, most: number | undefined): Promise<readonly RefusedServer[]> {
  const { rows } = await sql<RefusedServer>`
    select id, account_id as account, publish_fault as fault from servers
    where publish_fault is not null and id in (select server_id from outbox where retry_at is not null)
    order by id limit ${most ?? null}`.execute(db)
  return rows
}
