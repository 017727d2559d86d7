/** Limits of accounts. An account keeps what it has beyond them. */
import { sql, type Kysely } from 'kysely'

const LIMITS = {
  server_groups_limit: 256,
  api_clients_limit: 100,
  access_tokens_limit: 1000,
  applications_limit: 50,
  collaborations_limit: 100,
  config_maps_limit: 100,
  config_maps_bytes_limit: 16_777_216,
  images_limit: 50,
  open_actions_limit: 1000,
} as const

const STATEMENTS = [
  ...Object.entries(LIMITS).map(
    ([column, value]) => `alter table accounts add ${column} integer not null default ${String(value)}`,
  ),
  // The sum over an account is read at each change of a config map: the text itself may be 1 MiB.
  'alter table config_maps add bytes integer not null default 0',
  'update config_maps set bytes = octet_length(data::text)',
  // The age of a client's tokens.
  'drop index access_tokens_client',
  'create index access_tokens_client on access_tokens (client_id, expires_at)',
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
