/**
 * What filters by tags find a server by: its tags, and its account under the key '', which no tag has. PostgreSQL reads
 * no JSON with an escaped U+0000 or half of a surrogate pair: no filter finds a server with such tags.
 */
import { sql, type Kysely } from 'kysely'

const UNREADABLE = String.raw`(^|[^\\])(\\\\)*\\u(0000|d[89a-f])`

export async function up(db: Kysely<unknown>): Promise<void> {
  await sql`
    alter table servers add column found_by jsonb not null generated always as (
      case when tags::text ~ ${sql.lit(UNREADABLE)} then '{}'
      else tags::text::jsonb || ('{"": "' || account_id || '"}')::jsonb end
    ) stored`.execute(db)
  await sql`
    create index servers_found_by on servers using gin (found_by jsonb_path_ops) where deleted_at is null`.execute(db)
}
