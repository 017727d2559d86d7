/**
 * API clients that trust servers, the access tokens of these servers, and the assertions that they have used
 * (auth/grants/jwt-bearer.ts).
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  // first, as each change does: so no change has its events half written
  'lock table accounts in exclusive mode',
  'alter table api_clients add column if not exists trusted_servers text references server_groups on delete set null',
  'create index if not exists api_clients_trusted on api_clients (trusted_servers) where trusted_servers is not null',
  'alter table access_tokens add column if not exists server_id text',
  `create table if not exists used_assertions (
    server_id text not null,
    jti_sha256 bytea not null,
    used_at timestamptz not null default now(),
    primary key (server_id, jti_sha256)
  )`,
  'create index if not exists used_assertions_age on used_assertions (used_at)',
  `alter table known_addresses drop constraint known_addresses_kind_check,
    add constraint known_addresses_kind_check check (kind in ('client', 'user', 'server'))`,
]

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
