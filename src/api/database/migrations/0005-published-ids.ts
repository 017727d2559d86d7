/**
 * The ids of servers whose record in the store is that of this database. Those of earlier versions count as published.
 */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`create table published_ids (id text primary key)`.execute(database)
  await sql`insert into published_ids (id) select id from servers`.execute(database)
}
