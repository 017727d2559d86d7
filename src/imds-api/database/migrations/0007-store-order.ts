/**
 * The last place in the order of the store that is known, and the mark "behind" for which everything is published again
 * (publish/region-database.ts).
 */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`
    alter table region add column store_order bigint not null default 0, add column store_behind text`.execute(database)
}
