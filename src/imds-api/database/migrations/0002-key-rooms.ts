/** Finds the keys of one sender among those of an account: each sender has room of its own (changes/keyed-change.ts). */
import { sql, type Kysely } from 'kysely'

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    create index idempotency_keys_room on idempotency_keys (owner, split_part(client, ' ', 1), position)`.execute(db)
}
