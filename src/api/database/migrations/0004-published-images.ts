/**
 * Which accounts may publish images. An account that has public images may, until a region file that says otherwise is
 * applied.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  'alter table accounts add publish_images boolean not null default false',
  "update accounts set publish_images = true where exists (select from images where images.account_id = accounts.id and public and images.status <> 'deleted')",
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
