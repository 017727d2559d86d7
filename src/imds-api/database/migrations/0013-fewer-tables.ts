/**
 * The addresses of sign-ins are in memory only. PostgreSQL deletes what belongs to an account or a user that the region
 * file removes, and holds that a user owns one account that is not closed or deleted.
 */
import { sql, type Kysely } from 'kysely'

const onDelete = (table: string, column: string, target: string, action: string) => `
  alter table ${table} drop constraint ${table}_${column}_fkey,
    add constraint ${table}_${column}_fkey foreign key (${column}) references ${target} on delete ${action}`

const STATEMENTS = [
  'drop table if exists known_addresses',
  ...['collaborations', 'api_clients', 'applications', 'server_groups'].map((table) =>
    onDelete(table, 'account_id', 'accounts', 'cascade'),
  ),
  onDelete('collaborations', 'user_id', 'users', 'cascade'),
  onDelete('collaborations', 'inviter_id', 'users', 'set null'),
  `create unique index if not exists accounts_of_owner on accounts (owner_id) where status not in ('closed', 'deleted')`,
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
