/**
 * All tables. PostgreSQL holds every rule that concurrent requests could break: addresses and names are unique, an
 * account has one default group, and a cloud IP has a destination if and only if it is not free. The triggers of events
 * are in 0014-event-triggers.ts.
 */

const REGION = `
  create table region (
    only_row boolean primary key default true check (only_row),
    name text not null,
    domain text not null,
    library_ftp_host text not null,
    event_epoch text not null default substr(gen_random_uuid()::text, 1, 8),
    database_id uuid not null default gen_random_uuid(),
    -- Until when Idempotency-Keys are deleted (changes/keyed-change.ts).
    keys_deleted_until timestamptz not null default now() - interval '24 hours'
  );

  -- A zone, server type or hypervisor that \`imds-api apply --prune\` removes stays for the deleted servers that refer
  -- to it. Another row may then have its handle.
  create table zones (
    id text primary key,
    handle text not null,
    removed_at timestamptz
  );
  create unique index zones_handle on zones (handle) where removed_at is null;

  create table server_types (
    id text primary key,
    handle text not null,
    name text not null,
    status text not null check (status in ('experimental', 'available', 'deprecated')),
    cores integer not null check (cores > 0),
    ram integer not null check (ram > 0),
    disk_size integer not null check (disk_size > 0),
    storage_type text not null,
    removed_at timestamptz
  );
  create unique index server_types_handle on server_types (handle) where removed_at is null;

  create table hypervisors (
    name text primary key,
    zone_id text not null references zones,
    ram integer not null check (ram > 0),
    drained_at timestamptz,
    removed_at timestamptz
  );`

const ACCOUNTS = `
  create table users (
    id text primary key,
    name text not null,
    email_address text not null,
    email_verified boolean not null,
    ssh_key text,
    messaging_pref boolean not null,
    password_hash text,
    totp_secret text,
    totp_last_step bigint,
    created_at timestamptz not null default now()
  );
  create unique index users_email_address on users (lower(email_address));

  create table accounts (
    id text primary key,
    name text not null,
    status text not null check (
      status in ('pending', 'active', 'overdue', 'warning', 'suspended', 'terminated', 'closed', 'deleted')
    ),
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
    server_groups_limit integer not null default 256,
    api_clients_limit integer not null default 100,
    access_tokens_limit integer not null default 1000,
    applications_limit integer not null default 50,
    collaborations_limit integer not null default 100,
    config_maps_limit integer not null default 100,
    config_maps_bytes_limit integer not null default 16777216,
    images_limit integer not null default 50,
    open_actions_limit integer not null default 1000,
    publish_images boolean not null default false,
    library_ftp_password_hash text,
    created_at timestamptz not null default now()
  );
  create index accounts_owner on accounts (owner_id);
  create index accounts_publishing on accounts (id) where publish_images;

  -- The issuer of the identity tokens of the account's servers, with two keys during a rotation.
  create table account_identities (
    account_id text primary key references accounts,
    issuer text not null,
    algorithm text not null check (algorithm in ('ES256', 'RS256')),
    audiences text[] not null,
    lifetime_seconds integer not null,
    status text not null check (status in ('active', 'paused')),
    created_at timestamptz not null default now()
  );
  create table identity_keys (
    account_id text not null references account_identities on delete cascade,
    kid text not null,
    algorithm text not null,
    private_key text not null,
    public_key text not null,
    signs_from timestamptz not null,
    retires_at timestamptz,
    primary key (account_id, kid)
  );

  create table collaborations (
    id text primary key,
    account_id text not null references accounts,
    user_id text references users,
    inviter_id text references users,
    email text not null,
    role text not null,
    status text not null check (status in ('pending', 'accepted', 'rejected', 'cancelled', 'ended')),
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    parties jsonb,
    invited_at timestamptz,
    resends timestamptz[] not null default '{}'
  );
  create unique index collaborations_current on collaborations (account_id, lower(email))
    where status in ('pending', 'accepted');
  create index collaborations_account on collaborations (account_id, created_at, id);
  create index collaborations_user on collaborations (user_id);
  create index collaborations_email on collaborations (lower(email));
  create index collaborations_to_invite on collaborations (created_at, id)
    where status = 'pending' and invited_at is null;`

const SIGN_INS = `
  create table api_clients (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    permissions_group text not null check (permissions_group in ('full', 'storage')),
    secret_sha256 bytea,
    secret_file_sha256 bytea,
    former_secret_sha256 bytea,
    former_secret_until timestamptz,
    read_only boolean not null default false,
    expires_at timestamptz,
    allow_access text[] not null default '{}',
    created_at timestamptz not null default now(),
    revoked_at timestamptz
  );
  create index api_clients_account on api_clients (account_id, created_at, id) where revoked_at is null;
  create index api_clients_revoked on api_clients (account_id, revoked_at) where revoked_at is not null;

  create table applications (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    secret_sha256 bytea,
    secret_file_sha256 bytea,
    created_at timestamptz not null default now(),
    revoked_at timestamptz
  );
  create index applications_account on applications (account_id, created_at, id) where revoked_at is null;
  create index applications_revoked on applications (account_id, revoked_at) where revoked_at is not null;

  create table token_families (
    id bigint generated always as identity primary key,
    application_id text not null references applications on delete cascade,
    user_id text not null references users on delete cascade,
    scopes text[] not null,
    revoked_at timestamptz
  );
  create index token_families_application on token_families (application_id);
  create index token_families_user on token_families (user_id);
  create index token_families_revoked on token_families (revoked_at) where revoked_at is not null;

  create table refresh_tokens (
    sha256 bytea primary key,
    family_id bigint not null references token_families on delete cascade,
    expires_at timestamptz not null,
    used_at timestamptz
  );
  create index refresh_tokens_family on refresh_tokens (family_id);
  create index refresh_tokens_expiry on refresh_tokens (expires_at);

  -- A token belongs to an API client and its account, or to a family and its user.
  create table access_tokens (
    sha256 bytea primary key,
    client_id text references api_clients on delete cascade,
    account_id text references accounts,
    family_id bigint references token_families on delete cascade,
    scopes text[] not null,
    expires_at timestamptz not null,
    check (num_nonnulls(client_id, family_id) = 1 and num_nonnulls(account_id, family_id) = 1)
  );
  create index access_tokens_client on access_tokens (client_id, expires_at);
  create index access_tokens_family on access_tokens (family_id);
  create index access_tokens_expiry on access_tokens (expires_at);

  create table known_addresses (
    kind text not null check (kind in ('client', 'user')),
    subject text not null,
    source text not null,
    last_success timestamptz not null,
    primary key (kind, subject, source)
  );
  create index known_addresses_age on known_addresses (last_success);`

const ADDRESSES = `
  create table address_pools (
    id integer generated always as identity primary key,
    kind text not null check (kind in ('mac', 'private_ipv4', 'public_ipv4', 'public_ipv6')),
    range text not null,
    cursor bigint not null default 0,
    unique (kind, range)
  );

  -- \`number\` counts from the first address of the pool's range. The holder is an interface or a cloud IP.
  create table allocations (
    pool_id integer not null references address_pools,
    number bigint not null check (number >= 0),
    holder text not null,
    freed_account text,
    freed_after bigint,
    primary key (pool_id, number),
    check (num_nulls(freed_account, freed_after) <> 1)
  );
  create index allocations_holder on allocations (holder);
  create index allocations_freed on allocations (pool_id) where freed_account is not null;`

/** An escaped U+0000, or half of a surrogate pair. */
const UNREADABLE = String.raw`(^|[^\\])(\\\\)*\\u(0000|d[89a-f])`

const SERVERS = `
  create table images (
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
    source_server_id text,
    created_at timestamptz not null default now()
  );
  create index images_account on images (account_id);
  create index images_public on images (id) where public;
  create index images_listed on images (name, id) where status <> 'deleted';
  create index images_source_server on images (source_server_id);
  create index images_deleted on images (account_id) where status = 'deleted';

  create table servers (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    status text not null check (
      status in ('creating', 'active', 'inactive', 'deleting', 'deleted', 'failed', 'unavailable')
    ),
    locked boolean not null default false,
    image_id text not null references images,
    image_texts jsonb,
    server_type_id text not null references server_types,
    zone_id text not null references zones,
    hypervisor text not null references hypervisors,
    user_data text,
    compatibility_mode boolean not null,
    disk_encrypted boolean not null,
    architecture text not null check (architecture in ('i386', 'x86_64')),
    created_at timestamptz not null default now(),
    started_at timestamptz,
    deleted_at timestamptz,
    revision bigint not null default 1,
    publish_fault text,
    metadata_options json,
    tags json not null default '{}',
    -- For filters by tags: the tags, and the account under the key '', which no tag has. PostgreSQL reads no JSON with
    -- an escaped U+0000 or half of a surrogate pair: no filter finds a server with such tags.
    found_by jsonb not null generated always as (
      case when tags::text ~ '${UNREADABLE}' then '{}'
      else tags::text::jsonb || ('{"": "' || account_id || '"}')::jsonb end
    ) stored,
    console_token_expires timestamptz,
    migrating_to text references hypervisors,
    sealed_at timestamptz,
    events json not null default '[]',
    wait_for text check (wait_for = 'boot'),
    boot_deadline timestamptz
  );
  create index servers_booting on servers (id) where status = 'creating' and boot_deadline is not null;
  create index servers_account on servers (account_id, created_at, id) where deleted_at is null;
  create index servers_hypervisor on servers (hypervisor) include (server_type_id, migrating_to) where deleted_at is null;
  create index servers_migrating_to on servers (migrating_to) where migrating_to is not null;
  create index servers_refused on servers (id) where publish_fault is not null;
  create index servers_image on servers (image_id);
  create index servers_found_by on servers using gin (found_by jsonb_path_ops) where deleted_at is null;
  create index servers_deleted on servers (deleted_at) where deleted_at is not null;
  create index servers_deleted_of_account on servers (account_id, deleted_at) where deleted_at is not null;
  alter table images add foreign key (source_server_id) references servers on delete set null;

  create table server_keys (
    server_id text not null references servers on delete cascade,
    user_id text not null,
    key text not null,
    primary key (server_id, user_id)
  );

  create table interfaces (
    id text primary key,
    server_id text not null references servers,
    mac_address text not null unique,
    ipv4_address text not null unique,
    ipv4_prefix_length integer,
    created_at timestamptz not null default now()
  );
  create index interfaces_server on interfaces (server_id);

  create table server_groups (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    description text not null,
    is_default boolean not null,
    created_at timestamptz not null default now()
  );
  create index server_groups_account on server_groups (account_id, created_at, id);
  create unique index server_groups_default on server_groups (account_id) where is_default;

  create table server_group_members (
    server_group_id text not null references server_groups on delete cascade,
    server_id text not null references servers,
    primary key (server_group_id, server_id)
  );
  create index server_group_members_server on server_group_members (server_id);

  create table compute_actions (
    id bigint generated always as identity primary key,
    server_id text not null references servers on delete cascade,
    kind text not null,
    image_id text references images on delete set null,
    console_token text,
    requested_at timestamptz not null default now(),
    given_out_at timestamptz,
    given_to text,
    finished_at timestamptz,
    outcome text check (outcome in ('succeeded', 'failed')),
    fault text,
    check ((finished_at is null) = (outcome is null))
  );
  create index compute_actions_server on compute_actions (server_id, id) where finished_at is null;
  -- For the metrics: the last finished action of a server. For the deletion of a server: all of its actions.
  create index compute_actions_of_server on compute_actions (server_id, finished_at);
  create index compute_actions_image on compute_actions (image_id) where image_id is not null;
  -- For the purge. An expression, since PostgreSQL would read the whole of an index on finished_at for the metrics.
  create index compute_actions_age on compute_actions ((finished_at at time zone 'UTC')) where finished_at is not null;`

const DATABASE_SERVERS = `
  create table database_server_types (
    id text primary key,
    name text not null,
    description text not null,
    disk_size integer not null check (disk_size > 0),
    ram integer not null check (ram > 0)
  );

  create table database_servers (
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
  );
  create index database_servers_account on database_servers (account_id, created_at, id) where deleted_at is null;`

const CLOUD_IPS_AND_CONFIG_MAPS = `
  create table cloud_ips (
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
    database_server_id text references database_servers,
    mapped_at timestamptz,
    created_at timestamptz not null default now(),
    constraint cloud_ips_destination check (
      num_nonnulls(interface_id, server_group_id, database_server_id) = case status when 'unmapped' then 0 else 1 end
    )
  );
  create index cloud_ips_account on cloud_ips (account_id, created_at, id);
  create index cloud_ips_interface on cloud_ips (interface_id);
  create index cloud_ips_server_group on cloud_ips (server_group_id);
  create index cloud_ips_database_server on cloud_ips (database_server_id);

  -- \`json\`, not \`jsonb\`: what was sent comes back, with its order and its numbers. \`bytes\`: of the data, for the
  -- sum over an account.
  create table config_maps (
    id text primary key,
    account_id text not null references accounts,
    name text not null,
    data json not null,
    bytes integer not null,
    created_at timestamptz not null default now()
  );
  create index config_maps_account on config_maps (account_id, created_at, id);`

const PUBLISHING_AND_IDS = `
  -- Servers to publish. A row is written in the transaction of the change.
  create table outbox (
    id bigint generated always as identity primary key,
    server_id text not null references servers,
    account_id text not null,
    urgent boolean not null default false,
    rebuild boolean not null default false,
    created_at timestamptz not null default now(),
    retry_at timestamptz
  );
  create index outbox_server on outbox (server_id);
  create index outbox_turns on outbox (urgent, account_id, id) where retry_at is null;
  create index outbox_retries on outbox (retry_at) where retry_at is not null;
  create table claimed_ids (id text primary key);

  -- The responses to changes with an Idempotency-Key. \`position\`: in bytes, over all keys of the owner.
  create table idempotency_keys (
    owner text not null,
    client text not null,
    key text not null,
    position bigint not null,
    digest bytea not null,
    refusal text,
    status integer not null,
    body text not null,
    link text,
    omitted text[] not null,
    server_id text,
    created_at timestamptz not null default now(),
    primary key (owner, client, key)
  );
  create index idempotency_keys_position on idempotency_keys (owner, position);
  create index idempotency_keys_room on idempotency_keys (owner, split_part(client, ' ', 1), position);
  create index idempotency_keys_age on idempotency_keys (created_at);

  -- The ids of the region file; new ids come from the sequences, which never give a number twice.
  create table given_ids (id text primary key);
  create sequence ids_cli;
  create sequence ids_cip;
  create sequence ids_col;
  create sequence ids_cfg;
  create sequence ids_srv;
  create sequence ids_int;
  create sequence ids_grp;
  create sequence ids_img;
  create sequence ids_app;

  -- After each migration: the one that a program has to know to work with the tables (migrate.ts).
  create table compatibility (
    migration text primary key,
    oldest text not null
  );`

const EVENTS = `
  -- The accounts that have events. The row is locked while an event gets its number. The number itself is not in it:
  -- PostgreSQL takes long to change a row often in one transaction.
  create table event_feeds (account_id text primary key);
  create table events (
    account_id text not null,
    id bigint not null,
    type text not null,
    resource text not null,
    action text not null check (action in ('create', 'update', 'delete')),
    actor text not null,
    fields text[] not null,
    created_at timestamptz not null default clock_timestamp(),
    primary key (account_id, id)
  );
  create index events_resource on events (resource, id);`

export const FIRST_TABLES = [
  REGION,
  ACCOUNTS,
  SIGN_INS,
  ADDRESSES,
  SERVERS,
  DATABASE_SERVERS,
  CLOUD_IPS_AND_CONFIG_MAPS,
  PUBLISHING_AND_IDS,
  EVENTS,
]
