/** The history of the store in which everything is published, or waits to be (publish/region-database.ts). */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`alter table region add column store_history text`.execute(database)
}
