/**
 * The triggers that write an event for each committed change of a resource of an account, so that no writer can forget
 * it. They are in two parts:
 *
 *   each statement    notes what it has changed in `event_changes`, all rows at once, and takes no lock
 *   the commit        write_events() makes events of the notes: it locks the rows of their accounts in `event_feeds`, in
 *                     their order, and gives the next numbers. That serializes the commits of an account: its numbers
 *                     have no gaps, and become visible in the order of the commits
 *
 * Several changes of a resource in one transaction are one event. An event has the names of the fields that changed,
 * never their values, and the ids of the resources that it was linked to before or after. Which others show it is found
 * when the event is read (resources/kit/affected.ts). Each event is also a notification, `ACCOUNT RESOURCE`; one of a
 * resource without an account is only that.
 */

/** Those of the versions before, which the program made. */
const FORMER = [
  ...['servers', 'server_groups', 'cloud_ips', 'images', 'database_servers', 'config_maps', 'accounts', 'users'],
  ...['api_clients', 'applications', 'collaborations', 'interfaces', 'collaborators', 'members'],
].map((name) => `event_of_${name}`)

const WRITE_EVENTS = `
  -- An unlogged sequence, which an identity would have, cannot be read in PostgreSQL 15 after a standby was promoted.
  create sequence event_change_ids;
  -- No commit leaves a row here. \`is_first\`: of its statement.
  create unlogged table event_changes (
    id bigint not null default nextval('event_change_ids'),
    transaction xid8 not null default pg_current_xact_id(),
    is_first boolean not null,
    account_id text,
    type text not null,
    resource text not null,
    action text not null,
    fields text[] not null,
    links text[] not null
  );
  create index event_changes_transaction on event_changes (transaction);

  -- \`imds.actor\` is set for the transaction by a request, and for the connection by a command of an operator; the other
  -- two by a request only (changes/events.ts). A plan from when the tables were small would read all of them.
  create function write_events() returns trigger language plpgsql set enable_seqscan = off as $$
    begin
      perform pg_notify('imds_events', coalesce(account_id, '') || ' ' || resource)
        from event_changes where transaction = pg_current_xact_id() group by account_id, resource;
      if not found then return null; end if; -- another statement of the transaction has written all
      insert into event_feeds
        select distinct account_id from event_changes
        where transaction = pg_current_xact_id() and account_id is not null order by account_id
        on conflict do nothing;
      perform from event_feeds
        where account_id in (select account_id from event_changes where transaction = pg_current_xact_id())
        order by account_id for no key update;
      with changes as (delete from event_changes where transaction = pg_current_xact_id() returning *),
      merged as (
        select account_id, type, resource, min(id) as place,
          case when bool_or(action = 'delete') then 'delete' when bool_or(action = 'create') then 'create'
            else 'update' end as action,
          coalesce(array_agg(distinct field) filter (where field is not null), '{}') as fields,
          coalesce(array_agg(distinct link) filter (where link is not null), '{}') as links
        from changes left join lateral unnest(fields) as field on true left join lateral unnest(links) as link on true
        where account_id is not null group by account_id, type, resource),
      -- once for an account: else each row would look at those before it
      last as materialized (
        select account_id,
          coalesce((select id from events where events.account_id = feed.account_id order by id desc limit 1), 0) as id
        from (select distinct account_id from merged) as feed),
      written as (
        insert into events (account_id, id, type, resource, action, actor, fields, links, request_id, idempotency_key)
        select account_id, last.id + row_number() over (partition by account_id order by place), type, resource, action,
          coalesce(nullif(current_setting('imds.actor', true), ''), 'system'),
          case action when 'update' then fields else '{}' end,
          links,
          nullif(current_setting('imds.request_id', true), ''),
          nullif(current_setting('imds.idempotency_key', true), '')
        from merged join last using (account_id)
        returning account_id, id),
      newest as (select account_id, max(id) as id from written group by account_id)
      delete from events using newest
        where events.account_id = newest.account_id and events.id <= newest.id - 100000;
      -- Readers must see no event that a crash could undo: another one would get its number.
      if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
      end if;
      return null;
    end $$;
  create constraint trigger write_events after insert on event_changes
    deferrable initially deferred for each row when (new.is_first) execute function write_events();`

type Operation = 'insert' | 'update' | 'delete'
const ROWS_OF: Readonly<Record<Operation, string>> = {
  insert: 'new table as new_rows',
  update: 'old table as old_rows new table as new_rows',
  delete: 'old table as old_rows',
}

/**
 * A trigger that notes what `select` returns: the account, the type, the id of the resource, the action, the fields and
 * the links. A plan from when few rows were changed would compare each old row with each new one.
 */
function trigger(table: string, operation: Operation, select: string, name = table): string {
  return `
  create function event_of_${name}_${operation}() returns trigger
    language plpgsql set enable_seqscan = off set enable_nestloop = off as $$
    begin
      insert into event_changes (is_first, account_id, type, resource, action, fields, links)
        select row_number() over () = 1, change.* from (${select}) as change;
      return null;
    end $$;
  create trigger event_of_${name}_${operation} after ${operation} on ${table}
    referencing ${ROWS_OF[operation]} for each statement execute function event_of_${name}_${operation}();`
}

/** Columns of the type `json`, which has no equality. */
const JSON_COLUMNS = ['metadata_options', 'tags', 'events', 'data']
/** The API shows only whether it is set. */
const TOTP_SECRET = 'totp_secret'

function differs(column: string): string {
  if (column === TOTP_SECRET) return `(old_row.${column} is null) <> (new_row.${column} is null)`
  const cast = JSON_COLUMNS.includes(column) ? '::text' : ''
  return `old_row.${column}${cast} is distinct from new_row.${column}${cast}`
}

const anyDiffers = (columns: readonly string[]) => columns.map(differs).join(' or ')

/** The fields whose columns differ, as an expression. */
function changed(fields: Fields): string {
  const cases = Object.entries(fields).map(([field, columns]) => `case when ${anyDiffers(columns)} then '${field}' end`)
  return `array_remove(array[${cases.join(', ')}], null)`
}

/** The columns of each field of a resource: a change of them is an event that names the field. */
type Fields = Readonly<Record<string, readonly string[]>>

/**
 * A table whose rows are resources. `present`: an expression that is false once a row stays only to be read. `links`:
 * the ids of the resources that show a row, besides its account: expressions.
 */
interface ResourceTable {
  readonly type: string
  readonly account?: string
  readonly fields: Fields
  readonly present?: (row: string) => string
  readonly links?: (row: string) => readonly string[]
}

/** The triggers of a table, for the migration that makes it. */
export function eventTriggers(table: string, resource: ResourceTable): string {
  const { type, account = 'account_id', fields, present = () => 'true', links: linksOf = () => [] } = resource
  const array = (links: readonly string[]) => `array_remove(array[${links.join(', ')}]::text[], null)`
  const all = (row: string, action: string) =>
    `select ${row}.${account}, '${type}', ${row}.id, '${action}', '{}'::text[], ${array(linksOf(row))}`
  // those that begin or end
  const after = linksOf('new_row')
  const begunOrEnded = linksOf('old_row').flatMap((link, i) =>
    [link, after[i]!].map((one) => `case when ${link} is distinct from ${after[i]!} then ${one} end`),
  )
  const moved = differs(account)
  const update = `
          select change.account_id, '${type}', new_row.id, change.action,
            case change.action when 'update' then ${changed(fields)} else '{}' end,
            case change.action when 'update' then ${array(begunOrEnded)}
              when 'delete' then ${array(linksOf('old_row'))} else ${array(linksOf('new_row'))} end
          from old_rows as old_row join new_rows as new_row using (id) cross join lateral (
            select old_row.${account} as account_id, 'delete' as action where ${moved}
            union all
            select new_row.${account},
              case when ${moved} then 'create' when ${present('new_row')} then 'update' else 'delete' end
            where ${moved} or ${present('new_row')} or ${present('old_row')}
          ) as change
          where ${anyDiffers([account, ...Object.values(fields).flat()])}`
  return [
    trigger(table, 'insert', `${all('new_rows', 'create')} from new_rows`),
    trigger(table, 'update', update),
    trigger(table, 'delete', `${all('old_rows', 'delete')} from old_rows where ${present('old_rows')}`),
  ].join('')
}

/** Fields that have the names of their columns. */
function same(...names: readonly string[]): Fields {
  return Object.fromEntries(names.map((name) => [name, [name]]))
}

const RESOURCES = [
  eventTriggers('servers', {
    type: 'server',
    fields: {
      ...same('name', 'status', 'locked', 'user_data', 'compatibility_mode', 'disk_encrypted', 'started_at'),
      ...same('metadata_options', 'tags', 'console_token_expires'),
      hypervisor: ['hypervisor', 'migrating_to'],
      image: ['image_id'],
      server_type: ['server_type_id'],
      zone: ['zone_id'],
      user_data_sealed: ['sealed_at'],
      maintenance: ['events'],
    },
    present: (row) => `${row}.deleted_at is null`,
  }),
  eventTriggers('server_groups', {
    type: 'server_group',
    fields: { ...same('name', 'description'), default: ['is_default'] },
  }),
  eventTriggers('cloud_ips', {
    type: 'cloud_ip',
    fields: {
      ...same('name', 'reverse_dns', 'port_translators', 'status'),
      interface: ['interface_id'],
      server_group: ['server_group_id'],
      database_server: ['database_server_id'],
    },
    links: (row) => [
      `(select server_id from interfaces where interfaces.id = ${row}.interface_id)`,
      `${row}.database_server_id`,
    ],
  }),
  eventTriggers('images', {
    type: 'image',
    fields: {
      ...same('name', 'username', 'status', 'locked', 'description', 'source', 'source_trigger', 'source_type', 'arch'),
      ...same('official', 'public', 'compatibility_mode', 'min_ram', 'disk_size', 'virtual_size', 'licence_name'),
    },
    present: (row) => `${row}.status <> 'deleted'`,
    links: (row) => [`${row}.source_server_id`],
  }),
  eventTriggers('database_servers', {
    type: 'database_server',
    fields: {
      ...same('name', 'description', 'status', 'locked', 'allow_access', 'database_engine', 'database_version'),
      ...same('maintenance_weekday', 'maintenance_hour', 'deleted_at'),
      database_server_type: ['database_server_type_id'],
      zone: ['zone_id'],
    },
    present: (row) => `${row}.deleted_at is null`,
  }),
  eventTriggers('config_maps', { type: 'config_map', fields: same('name', 'data') }),
  eventTriggers('accounts', {
    type: 'account',
    account: 'id',
    fields: {
      ...same('name', 'status', 'address_1', 'address_2', 'city', 'county', 'postcode', 'country_code'),
      ...same('vat_registration_number', 'telephone_number', 'telephone_verified', 'verified_telephone', 'verified_at'),
      ...same('verified_ip', 'valid_credit_card', 'ram_limit', 'dbs_ram_limit', 'cloud_ips_limit'),
      ...same('load_balancers_limit', 'block_storage_limit'),
      owner: ['owner_id'],
      library_ftp_password: ['library_ftp_password_hash'],
    },
    links: (row) => [`${row}.owner_id`],
  }),
  eventTriggers('api_clients', {
    type: 'api_client',
    fields: {
      ...same('name', 'description', 'permissions_group', 'read_only', 'expires_at', 'allow_access', 'trusted_servers'),
      ...same('revoked_at'),
      secret: ['secret_sha256', 'former_secret_until'],
    },
    present: (row) => `${row}.revoked_at is null`,
  }),
  eventTriggers('applications', {
    type: 'application',
    fields: { ...same('name', 'description', 'revoked_at'), secret: ['secret_sha256'] },
    present: (row) => `${row}.revoked_at is null`,
  }),
  eventTriggers('collaborations', {
    type: 'collaboration',
    fields: { ...same('email', 'role', 'status', 'started_at', 'finished_at'), user: ['user_id'] },
  }),
]

const USER_FIELDS = {
  ...same('name', 'email_address', 'email_verified', 'ssh_key', 'messaging_pref'),
  '2fa': [TOTP_SECRET],
}
const memberOf = (rows: string) => `
          select (select account_id from servers where servers.id = server_id), 'server', server_id, 'update',
            array['server_groups'], array[server_group_id] from ${rows}`

/** Parts of resources, and users, who may have several accounts: they come and go with collaborations. */
const OTHERS = [
  trigger(
    'interfaces',
    'update',
    `
          select (select account_id from servers where servers.id = new_row.server_id), 'interface', new_row.id, 'update',
            array['ipv6_address'], '{}'::text[]
          from old_rows as old_row join new_rows as new_row using (id) where ${differs('ipv6_address')}`,
  ),
  trigger(
    'collaborations',
    'update',
    `
          select new_row.account_id, 'user', new_row.user_id, case new_row.status when 'accepted' then 'create' else 'delete' end,
            '{}'::text[], '{}'::text[]
          from old_rows as old_row join new_rows as new_row using (id)
          where ${differs('status')} and new_row.user_id is not null and 'accepted' in (old_row.status, new_row.status)`,
    'collaborators',
  ),
  trigger('server_group_members', 'insert', memberOf('new_rows'), 'members'),
  trigger('server_group_members', 'delete', memberOf('old_rows'), 'members'),
  trigger(
    'users',
    'update',
    `
          select account.id, 'user', new_row.id, 'update', ${changed(USER_FIELDS)}, '{}'::text[]
          from old_rows as old_row join new_rows as new_row using (id) cross join lateral (
            select id from accounts where owner_id = new_row.id
            union select account_id from collaborations where user_id = new_row.id and status = 'accepted'
          ) as account
          where ${anyDiffers(Object.values(USER_FIELDS).flat())}`,
  ),
]

export const EVENT_TRIGGERS = [
  'set constraints all immediate', // the changes of the migrations before
  `drop function if exists record_event, ${FORMER.join(', ')} cascade`,
  WRITE_EVENTS,
  ...RESOURCES,
  ...OTHERS,
]
