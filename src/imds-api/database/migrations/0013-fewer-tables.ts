/** The addresses of sign-ins are in memory only. */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`drop table if exists known_addresses`.execute(database)
}
