/** Until when Idempotency-Keys are deleted, which a wrong clock moves only by some hours (changes/keyed-change.ts). */
import { sql, type Kysely } from 'kysely'

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table region add column keys_deleted_until timestamptz not null default now() - interval '24 hours'`.execute(
    db,
  )
}
