/**
 * Events of the resources that show a changed one in their own form, such as of the server that a cloud IP is mapped
 * to: so a mirror that follows the events has what a GET returns.
 *
 * Only resources of the account that owns the changed one have them. What belongs to a region, or to another account,
 * is shown by resources of all accounts: one change would write an event for each server of the region.
 *
 * The creation of a server, until it is no more `creating`, is no event of the default group of its account: a program
 * that follows it would read all servers for each new one.
 */
/**
 * A table whose rows other resources show. `columns`: those that they show. `on`: besides updates, after which changes.
 * `shown`: the resources that show a row, as (type, id, field): a query with the row as `old` and `new`, either of
 * which may be null. `seen`: the same with an action: for an account, a collaborator comes with the acceptance and goes
 * with the end.
 */
interface ShownTable {
  readonly columns: readonly string[]
  readonly on: readonly ('insert' | 'delete')[]
  readonly shown: readonly string[]
  readonly seen?: string
}

const inAccount = (field: string) => `select 'account', new.account_id, '${field}' where new.account_id is not null`
const inAccountUntilDeleted = (field: string) =>
  `select 'account', coalesce(new.account_id, old.account_id), '${field}'`
const inAll = (...tables: readonly (readonly [table: string, type: string, condition?: string])[]) =>
  tables.map(
    ([table, type, condition = 'true']) =>
      `select '${type}', id, 'account' from ${table} where account_id = new.id and ${condition}`,
  )

const SHOWN: Readonly<Record<string, ShownTable>> = {
  servers: {
    columns: ['name', 'status', 'locked', 'started_at', 'deleted_at'],
    on: ['insert'],
    shown: [
      inAccount('servers'),
      `select 'cloud_ip', cloud_ips.id, 'server' from interfaces join cloud_ips on cloud_ips.interface_id = interfaces.id
        where interfaces.server_id = new.id`,
      `select 'server_group', server_group_id, 'servers'
        from server_group_members join server_groups on server_groups.id = server_group_id
        where server_id = new.id and not (is_default and coalesce(old.status, 'creating') = 'creating')`,
    ],
  },
  cloud_ips: {
    columns: ['name', 'status', 'reverse_dns', 'interface_id', 'database_server_id'],
    on: ['insert', 'delete'],
    shown: [
      inAccountUntilDeleted('cloud_ips'),
      `select 'server', servers.id, 'cloud_ips' from interfaces join servers on servers.id = interfaces.server_id
        where interfaces.id in (old.interface_id, new.interface_id) and deleted_at is null`,
      `select 'database_server', id, 'cloud_ips' from database_servers
        where id in (old.database_server_id, new.database_server_id)`,
    ],
  },
  server_groups: {
    columns: ['name', 'description', 'is_default'],
    on: ['insert', 'delete'],
    shown: [
      inAccountUntilDeleted('server_groups'),
      `select 'server', server_id, 'server_groups' from server_group_members where server_group_id = new.id`,
      `select 'cloud_ip', id, 'server_group' from cloud_ips where server_group_id = new.id`,
    ],
  },
  database_servers: {
    columns: [
      ...['name', 'description', 'status', 'locked', 'allow_access', 'database_engine', 'database_version'],
      ...['maintenance_weekday', 'maintenance_hour', 'deleted_at'],
    ],
    on: ['insert'],
    shown: [
      inAccount('database_servers'),
      `select 'cloud_ip', id, 'database_server' from cloud_ips where database_server_id = new.id`,
    ],
  },
  images: {
    columns: [
      ...['account_id', 'name', 'username', 'status', 'locked', 'description', 'source', 'source_trigger', 'arch'],
      ...['official', 'public'],
    ],
    on: ['insert'],
    shown: [
      inAccount('images'),
      `select 'server', id, 'snapshots' from servers where id = new.source_server_id and deleted_at is null`,
      `select 'server', id, 'image' from servers
        where image_id = new.id and account_id = new.account_id and deleted_at is null`,
    ],
  },
  api_clients: {
    columns: ['account_id', 'name', 'description', 'permissions_group', 'revoked_at'],
    on: ['insert'],
    shown: [inAccount('clients')],
  },
  collaborations: {
    columns: ['status'],
    on: [],
    shown: [`select 'account', new.account_id, 'users' where 'accepted' in (old.status, new.status)`],
    seen: `select 'user', new.user_id, '', case new.status when 'accepted' then 'create' else 'delete' end
      where new.user_id is not null and 'accepted' in (old.status, new.status)`,
  },
  accounts: {
    columns: ['name', 'status'],
    on: [],
    shown: [
      ...inAll(
        ['servers', 'server', 'deleted_at is null'],
        ['server_groups', 'server_group'],
        ['cloud_ips', 'cloud_ip'],
        ['database_servers', 'database_server', 'deleted_at is null'],
        ['api_clients', 'api_client', 'revoked_at is null'],
        ['applications', 'application', 'revoked_at is null'],
        ['collaborations', 'collaboration', 'finished_at is null'],
      ),
      `select 'user', new.owner_id, 'accounts'`,
      `select 'user', user_id, 'accounts' from collaborations where account_id = new.id and status = 'accepted'`,
    ],
  },
}

const differ = (columns: readonly string[]) =>
  columns.map((column) => `old.${column} is distinct from new.${column}`).join(' or ')

function triggerOf(table: string, { columns, on, shown, seen }: ShownTable): string {
  const owner = table === 'accounts' ? 'new.id' : 'coalesce(new.account_id, old.account_id)'
  const all = [
    ...shown.map((query) => `select *, 'update' from (${query}) as updated`),
    ...(seen === undefined ? [] : [seen]),
  ]
  return `
  create function shown_${table}() returns trigger language plpgsql as $$
    declare
      owner text := ${owner};
      one record;
    begin
      if owner is null then return null; end if;
      for one in select * from (${all.join(' union ')}) as shown (type, id, field, action) order by type, id loop
        perform record_event(owner, one.type, one.id, one.action, array[one.field]);
      end loop;
      return null;
    end $$;
  ${
    on.length === 0
      ? ''
      : `create constraint trigger shown after ${on.join(' or ')} on ${table}
    deferrable initially deferred for each row execute function shown_${table}();`
  }
  create constraint trigger shown_of_update after update on ${table}
    deferrable initially deferred for each row when (${differ(columns)}) execute function shown_${table}();`
}

/** A user is shown by each account of the user, and by the collaborations that are not finished. */
const USERS = `
  create function shown_users() returns trigger language plpgsql as $$
    declare
      one record;
    begin
      for one in
        select id as account_id, 'account' as type, id, 'owner' as field from accounts where owner_id = new.id
        union select id, 'account', id, 'users' from accounts where owner_id = new.id
        union select account_id, 'account', account_id, 'users' from collaborations
          where user_id = new.id and status = 'accepted'
        union select account_id, 'collaboration', id, 'user' from collaborations
          where user_id = new.id and finished_at is null
        union select account_id, 'collaboration', id, 'inviter' from collaborations
          where account_id in (select id from accounts where owner_id = new.id
              union select account_id from collaborations where user_id = new.id and status = 'accepted')
            and inviter_id = new.id and finished_at is null
        order by account_id, type, id
      loop
        perform record_event(one.account_id, one.type, one.id, 'update', array[one.field]);
      end loop;
      return null;
    end $$;
  create constraint trigger shown_of_update after update on users deferrable initially deferred for each row
    when (${differ(['name', 'email_address'])} or (old.totp_secret is null) <> (new.totp_secret is null))
    execute function shown_users();`

/** Each function by its name, with the triggers that call it. They need `record_event` of event-triggers.ts. */
export const SHOWN_FUNCTIONS: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.entries(SHOWN).map(([table, rule]) => [`shown_${table}`, triggerOf(table, rule)])),
  shown_users: USERS,
}
