/**
 * The history of the tables: a row for each migration, in order. One that was released is never changed. What a migration
 * leaves for programs of the version before, which may run at the same time, stays unused.
 */
import { sql } from 'kysely'
import type { Migration } from 'kysely/migration'
import { FIRST_TABLES } from './migrations/0001-first.ts'
import { EVENT_TRIGGERS } from './migrations/0014-event-triggers.ts'

/**
 * A migration. `oldest`: the name of the migration that a program has to know to work with the tables after this one.
 * One that only adds names an earlier migration. One that takes away what a program may use names itself, or the
 * migration whose program has stopped to use it.
 */
export interface TableChange {
  readonly up: Migration['up']
  readonly oldest: string
}
/** Migrations by their names, in order. */
export type TableChanges = Readonly<Record<string, TableChange>>

/** Before others, as in each change of an account: so no change has its events half written. */
const LOCK_ACCOUNTS = 'lock table accounts in exclusive mode'
const FIRST = '0001-first'
/** Between the places of a program of the version before, and those of the sequences. */
const PLACES_GAP = 1_024

/** A migration of statements. */
function run(oldest: string, ...statements: readonly string[]): TableChange {
  const up: TableChange['up'] = async (database) => {
    for (const statement of statements) await sql.raw(statement).execute(database)
  }
  return { up, oldest }
}

const onDelete = (table: string, column: string, target: string, action: string) => `
  alter table ${table} drop constraint ${table}_${column}_fkey,
    add constraint ${table}_${column}_fkey foreign key (${column}) references ${target} on delete ${action}`

export const MIGRATIONS: TableChanges = {
  [FIRST]: run(FIRST, ...FIRST_TABLES),
  // of private ranges and servers (model/server-ipv6.ts)
  '0002-ipv6-of-servers': run(
    FIRST,
    'alter table address_pools add column ipv6_network text',
    'alter table interfaces add column ipv6_address text unique, add column ipv6_prefix text unique',
  ),
  '0003-events': run(
    FIRST,
    LOCK_ACCOUNTS,
    'alter table events add column request_id text, add column idempotency_key text',
    // One expression each, so that no plan reads other events of the account.
    `create index events_of_type on events ((account_id || ' ' || type), id)`,
    `create index events_of_resource on events ((account_id || ' ' || type || ' ' || resource), id)`,
    'drop index events_resource',
  ),
  // of the store in which everything is published, or waits to be (publish/region-database.ts)
  '0004-store-history': run(FIRST, 'alter table region add column store_history text'),
  // The places of allocations, a sequence for each kind of pools (changes/allocate.ts). The column `cursor` stays.
  '0005-places': run(
    FIRST,
    ...['mac', 'private_ipv4', 'public_ipv4', 'public_ipv6'].flatMap((kind) => [
      `create sequence place_${kind} minvalue 0`,
      `select setval('place_${kind}', cursor + ${PLACES_GAP})
        from (select cursor from address_pools where kind = '${kind}' order by id limit 1) as first where cursor > 0`,
    ]),
  ),
  // Who shows a changed resource is found when its event is read (resources/kit/affected.ts), not by its type.
  '0006-affected-resources': run(
    FIRST,
    LOCK_ACCOUNTS,
    `alter table events add column links text[] not null default '{}'`,
    'drop index events_of_type',
    ...['servers', 'cloud_ips', 'server_groups', 'database_servers', 'images', 'api_clients', 'collaborations']
      .concat('accounts', 'users')
      .map((table) => `drop function if exists shown_${table} cascade`),
  ),
  // The last order that is known, and the mark for which everything is published again (publish/region-database.ts).
  '0007-store-order': run(
    FIRST,
    'alter table region add column store_order bigint not null default 0, add column store_behind text',
  ),
  '0008-event-plans': run(FIRST), // changed functions that 0014 replaces
  // Of two servers with one id, after a restore of an older database, the store refuses the second one. A backup of
  // before gets the same incarnations. `is_published` takes the place of `claimed_ids`, which stays. Every server is
  // published again, with its incarnation and its order.
  '0009-incarnations': run(
    FIRST,
    'alter table servers add column if not exists incarnation text',
    'alter table servers add column if not exists is_published boolean not null default false',
    `update servers set incarnation = md5(id || ' ' || extract(epoch from created_at)), revision = revision + 1,
      is_published = exists (select from claimed_ids where claimed_ids.id = servers.id)`,
    'alter table servers alter column incarnation set not null',
    'alter table servers alter column incarnation set default gen_random_uuid()',
    `insert into outbox (server_id, account_id, rebuild, urgent)
      select id, account_id, true, false from servers where deleted_at is null order by id`,
  ),
  // No server waits for its guest any more. The columns `wait_for` and `boot_deadline` stay.
  '0010-no-boot-waits': run(
    FIRST,
    `update servers set status = 'active', started_at = now() where status = 'creating' and boot_deadline is not null`,
  ),
  // The region has one issuer. The servers of accounts with one are published again, without a private key.
  '0011-region-issuer': run(
    '0011-region-issuer',
    LOCK_ACCOUNTS,
    `update servers set revision = revision + 1
      where deleted_at is null and account_id in (select account_id from account_identities)`,
    `insert into outbox (server_id, account_id, urgent)
      select id, account_id, false from servers
      where deleted_at is null and account_id in (select account_id from account_identities) order by id`,
    'drop table identity_keys, account_identities',
    'drop function if exists event_of_account_identities, event_of_identity_keys',
    // the numbers of events have no gaps
    `update events set type = 'account', action = 'update', fields = '{}' where type = 'account_identity'`,
  ),
  // API clients that trust servers (auth/grants/jwt-bearer.ts)
  '0012-trusted-servers': run(
    '0012-trusted-servers',
    LOCK_ACCOUNTS,
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
  ),
  // PostgreSQL deletes what belongs to an account or user that the region file removes, and holds that a user owns one
  // account that is not closed or deleted.
  '0013-fewer-tables': run(
    '0013-fewer-tables',
    'drop table if exists known_addresses',
    ...['collaborations', 'api_clients', 'applications', 'server_groups'].map((table) =>
      onDelete(table, 'account_id', 'accounts', 'cascade'),
    ),
    onDelete('collaborations', 'user_id', 'users', 'cascade'),
    onDelete('collaborations', 'inviter_id', 'users', 'set null'),
    `create unique index if not exists accounts_of_owner on accounts (owner_id) where status not in ('closed', 'deleted')`,
  ),
  '0014-event-triggers': run('0013-fewer-tables', LOCK_ACCOUNTS, ...EVENT_TRIGGERS),
  // A sender of the version before does not know that another one sends an invitation, and may send it as well.
  '0015-invitations': run(
    '0013-fewer-tables',
    'alter table collaborations add column send_at timestamptz, add column send_fault text',
  ),
}
