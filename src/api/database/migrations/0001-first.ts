/**
 * The first tables. PostgreSQL holds every rule that concurrent requests could break: addresses and names are unique,
 * an account has one default group, and a cloud IP has a destination if and only if it is not free.
 */
import { sql, type Kysely } from 'kysely'

const STATEMENTS = [
  `create table region (
    only_row boolean primary key default true check (only_row),
    name text not null,
    domain text not null,
    library_ftp_host text not null
  )`,
  'create table zones (id text primary key, handle text not null unique)',
  `create table server_types (
    id text primary key,
    handle text not null unique,
    name text not null,
    status text not null,
    cores integer not null check (cores > 0),
    ram integer not null check (ram > 0),
    disk_size integer not null check (disk_size > 0),
    storage_type text not null
  )`,
  'create table hypervisors (name text primary key, zone_id text not null references zones, ram integer not null check (ram > 0))',
  `create table users (
    id text primary key,
    name text not null,
    email_address text not null,
    email_verified boolean not null,
    ssh_key text,
    messaging_pref boolean not null,
    password_hash text,
    totp_secret text,
    created_at timestamptz not null default now()
  )`,
  'create unique index users_email_address on users (lower(email_address))',
  `create table accounts (
    id text primary key,
    name text not null,
    status text not null check (status in ('pending', 'active', 'overdue', 'warning', 'suspended', 'terminated', 'closed', 'deleted')),
    owner_id text not null references users,
    address_1 text not null,
    address_2 text not null,
    city text not null,
    county text not null,
    postcode text not null,
    country_code text not null,
    vat_registration_number text,
    telephone_number text not null,
    telephone_verified boolean not null,
    verified_telephone text,
    verified_at timestamptz,
    verified_ip text,
    valid_credit_card boolean not null,
    ram_limit integer not null,
    dbs_ram_limit integer not null,
    cloud_ips_limit integer not null,
    load_balancers_limit integer not null,
    block_storage_limit integer not null,
    library_ftp_password_hash text,
    created_at timestamptz not null default now()
  )`,
  `create table collaborations (
    id text primary key,
    account_id text not null references accounts,
    user_id text references users,
    inviter_id text references users,
    email text not null,
    role text not null,
    status text not null check (status in ('pending', 'accepted', 'rejected', 'cancelled', 'ended')),
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz
  )`,
  "create unique index collaborations_current on collaborations (account_id, lower(email)) where status in ('pending', 'accepted')",
  'create index collaborations_user on collaborations (user_id)',
  `create table images (
    id text primary key,
    handle text unique,
    account_id text references accounts,
    name text not null,
    username text not null,
    status text not null,
    locked boolean not null,
    description text not null,
    source text not null,
    source_trigger text not null,
    source_type text not null,
    arch text not null check (arch in ('i686', 'x86_64')),
    official boolean not null,
    public boolean not null,
    compatibility_mode boolean not null,
    min_ram integer,
    disk_size integer not null,
    virtual_size integer not null,
    licence_name text,
    created_at timestamptz not null default now()
  )`,
  `create table api_clients (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    permissions_group text not null check (permissions_group in ('full', 'storage')),
    secret_sha256 bytea,
    created_at timestamptz not null default now(),
    revoked_at timestamptz
  )`,
  'create index api_clients_account on api_clients (account_id)',
  `create table access_tokens (
    sha256 bytea primary key,
    client_id text not null references api_clients on delete cascade,
    account_id text not null references accounts,
    scopes text[] not null,
    expires_at timestamptz not null
  )`,
  'create index access_tokens_expiry on access_tokens (expires_at)',
  'create index access_tokens_client on access_tokens (client_id)',
  // Addresses. `number` counts from the first address of the pool's range; the holder is the id of an interface or a
  // cloud IP.
  `create table address_pools (
    id integer generated always as identity primary key,
    kind text not null check (kind in ('mac', 'private_ipv4', 'public_ipv4', 'public_ipv6')),
    range text not null,
    cursor bigint not null default 0,
    unique (kind, range)
  )`,
  `create table allocations (
    pool_id integer not null references address_pools,
    number bigint not null check (number >= 0),
    holder text not null,
    primary key (pool_id, number)
  )`,
  'create index allocations_holder on allocations (holder)',
  `create table servers (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    status text not null check (status in ('creating', 'active', 'inactive', 'deleting', 'deleted', 'failed', 'unavailable')),
    locked boolean not null default false,
    image_id text not null references images,
    server_type_id text not null references server_types,
    zone_id text not null references zones,
    hypervisor text not null references hypervisors,
    user_data text,
    compatibility_mode boolean not null,
    disk_encrypted boolean not null,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    deleted_at timestamptz,
    revision bigint not null default 1,
    publish_fault text
  )`,
  'create index servers_account on servers (account_id)',
  'create index servers_hypervisor on servers (hypervisor) where deleted_at is null',
  'create table server_keys (server_id text not null references servers, user_id text not null, key text not null, primary key (server_id, user_id))',
  `create table interfaces (
    id text primary key,
    server_id text not null references servers,
    mac_address text not null unique,
    ipv4_address text not null unique,
    ipv4_prefix_length integer,
    created_at timestamptz not null default now()
  )`,
  'create index interfaces_server on interfaces (server_id)',
  `create table server_groups (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    is_default boolean not null,
    created_at timestamptz not null default now()
  )`,
  'create index server_groups_account on server_groups (account_id)',
  'create unique index server_groups_default on server_groups (account_id) where is_default',
  `create table server_group_members (
    server_group_id text not null references server_groups on delete cascade,
    server_id text not null references servers,
    primary key (server_group_id, server_id)
  )`,
  'create index server_group_members_server on server_group_members (server_id)',
  `create table cloud_ips (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    public_ipv4 text not null unique,
    public_ipv6 text not null unique,
    reverse_dns text,
    port_translators jsonb not null default '[]',
    status text not null check (status in ('unmapped', 'reserved', 'mapped')),
    interface_id text references interfaces,
    server_group_id text references server_groups,
    created_at timestamptz not null default now(),
    check (num_nonnulls(interface_id, server_group_id) = case status when 'unmapped' then 0 else 1 end)
  )`,
  'create index cloud_ips_account on cloud_ips (account_id)',
  'create index cloud_ips_interface on cloud_ips (interface_id)',
  'create index cloud_ips_server_group on cloud_ips (server_group_id)',
  // Servers to publish. A row is written in the transaction of the change, and says only which server changed.
  `create table outbox (
    id bigint generated always as identity primary key,
    server_id text not null references servers,
    created_at timestamptz not null default now(),
    retry_at timestamptz
  )`,
  'create index outbox_server on outbox (server_id)',
  // Ids. A sequence never gives a number twice, and given_ids are those of the region file.
  'create table given_ids (id text primary key)',
  ...['cli', 'cip', 'col', 'cfg', 'srv', 'int', 'grp', 'img', 'app'].map((prefix) => `create sequence ids_${prefix}`),
] as const

export async function up(database: Kysely<unknown>): Promise<void> {
  for (const statement of STATEMENTS) await sql.raw(statement).execute(database)
}
