/**
 * Ends the waits of servers for their guests, which no program watches any more. The columns `wait_for` and
 * `boot_deadline` stay, since programs of the version before may run at the same time.
 */
import { sql, type Kysely } from 'kysely'

export async function up(database: Kysely<unknown>): Promise<void> {
  await sql`update servers set status = 'active', started_at = now()
    where status = 'creating' and boot_deadline is not null`.execute(database)
}
