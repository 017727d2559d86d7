/**
 * The tables of the rest of the interface: users' tokens, applications, config maps, database servers, and the actions
 * of servers.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  // Users and their tokens. A family is what began with one password: its refresh tokens, and the access tokens that
  // came with them.
  'alter table users add totp_last_step bigint',
  `create table applications (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    secret_sha256 bytea,
    secret_file_sha256 bytea,
    created_at timestamptz not null default now(),
    revoked_at timestamptz
  )`,
  'alter table api_clients add secret_file_sha256 bytea',
  'create index applications_account on applications (account_id)',
  `create table token_families (
    id bigint generated always as identity primary key,
    application_id text not null references applications on delete cascade,
    user_id text not null references users on delete cascade,
    scopes text[] not null,
    revoked_at timestamptz
  )`,
  'create index token_families_application on token_families (application_id)',
  'create index token_families_user on token_families (user_id)',
  `create table refresh_tokens (
    sha256 bytea primary key,
    family_id bigint not null references token_families on delete cascade,
    expires_at timestamptz not null,
    used_at timestamptz
  )`,
  'create index refresh_tokens_family on refresh_tokens (family_id)',
  'create index refresh_tokens_expiry on refresh_tokens (expires_at)',
  // An access token belongs to an API client and its account, or to a family and its user.
  'alter table access_tokens alter client_id drop not null',
  'alter table access_tokens alter account_id drop not null',
  'alter table access_tokens add family_id bigint references token_families on delete cascade',
  'alter table access_tokens add check (num_nonnulls(client_id, family_id) = 1 and num_nonnulls(account_id, family_id) = 1)',
  'create index access_tokens_family on access_tokens (family_id)',
  // Collaborations. invited_at: when the invitation was last sent; null: it is waiting to be sent. resends: when
  // clients asked to send it again.
  'alter table collaborations add invited_at timestamptz',
  "alter table collaborations add resends timestamptz[] not null default '{}'",
  'create index collaborations_account on collaborations (account_id)',
  "create index collaborations_to_invite on collaborations (created_at, id) where status = 'pending' and invited_at is null",
  // Config maps. `json`, not `jsonb`: what was sent comes back, with its order and its numbers.
  'create table config_maps (id text primary key, account_id text not null references accounts, name text not null, data json not null, created_at timestamptz not null default now())',
  'create index config_maps_account on config_maps (account_id)',
  // Database servers. The region file makes them.
  `create table database_server_types (
    id text primary key,
    name text not null,
    description text not null,
    disk_size integer not null check (disk_size > 0),
    ram integer not null check (ram > 0)
  )`,
  `create table database_servers (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    status text not null check (status in ('creating', 'active', 'deleting', 'deleted', 'failing', 'failed')),
    locked boolean not null,
    allow_access text[] not null,
    database_engine text not null,
    database_version text not null,
    database_server_type_id text not null references database_server_types,
    maintenance_weekday integer not null check (maintenance_weekday between 0 and 6),
    maintenance_hour integer not null check (maintenance_hour between 0 and 23),
    zone_id text not null references zones,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    deleted_at timestamptz
  )`,
  'create index database_servers_account on database_servers (account_id)',
  'alter table cloud_ips add database_server_id text references database_servers',
  'alter table cloud_ips drop constraint cloud_ips_check',
  `alter table cloud_ips add constraint cloud_ips_destination
    check (num_nonnulls(interface_id, server_group_id, database_server_id) = case status when 'unmapped' then 0 else 1 end)`,
  'create index cloud_ips_database_server on cloud_ips (database_server_id)',
  'alter table cloud_ips add mapped_at timestamptz',
  // Servers: extensions of this API, the console, snapshots, and actions for the compute system. An action waits until
  // its outcome is reported.
  'alter table servers add metadata_options json',
  "alter table servers add tags json not null default '{}'",
  'alter table servers add console_token_expires timestamptz',
  'alter table servers add migrating_to text references hypervisors',
  'alter table servers add sealed_at timestamptz',
  'alter table images add source_server_id text references servers',
  'create index images_source_server on images (source_server_id)',
  `create table compute_actions (
    id bigint generated always as identity primary key,
    server_id text not null references servers,
    kind text not null,
    image_id text references images,
    console_token text,
    requested_at timestamptz not null default now(),
    given_out_at timestamptz,
    given_to text,
    finished_at timestamptz,
    outcome text check (outcome in ('succeeded', 'failed')),
    fault text,
    check ((finished_at is null) = (outcome is null))
  )`,
  'create index compute_actions_server on compute_actions (server_id, id) where finished_at is null',
  // For the metrics: the last finished action of a server. PostgreSQL prefers an index on finished_at alone, and reads
  // it to its end.
  'create index compute_actions_finished on compute_actions (server_id, finished_at) where finished_at is not null',
  // The catalog. What `imds-api apply --prune` removes stays for the deleted servers that refer to it, and another row
  // may have its handle.
  "alter table server_types add check (status in ('experimental', 'available', 'deprecated'))",
  ...['zones', 'server_types', 'hypervisors'].map((table) => `alter table ${table} add removed_at timestamptz`),
  ...['zones', 'server_types'].flatMap((table) => [
    `alter table ${table} drop constraint ${table}_handle_key`,
    `create unique index ${table}_handle on ${table} (handle) where removed_at is null`,
  ]),
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
