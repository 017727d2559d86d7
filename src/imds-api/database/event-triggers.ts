/**
 * The triggers that write an event for each committed change of a resource of an account, so that no
 * writer can forget it. They are no part of a migration: each migration of a database brings them to those of the program
 * (migrate.ts), so a change of them alone needs a migration too, which may be empty.
 *
 * They serialize the commits of an account: at the commit, each locks the row of the account in `event_feeds` and takes
 * the next number. So the numbers of an account have no gaps, and become visible in the order of its commits.
 * Several changes of a resource in one transaction are one event. An event has the names of the fields that changed,
 * never their values, and the ids of the resources that it was linked to before or after. Which others show it is found when the
 * event is read (resources/kit/affected.ts).
 *
 * Each event is also a notification, `ACCOUNT RESOURCE`; one of a resource without an account is only that.
 */
import { createHash } from 'node:crypto'
import { sql } from 'kysely'
import { ALL_ROWS, ROWS } from '../model/resources.ts'
import type { Db } from './transaction.ts'

/** PostgreSQL's channel of the notifications. */
export const EVENTS_CHANNEL = 'imds_events'
/** The most events of an account: older ones are deleted. */
export const MAX_KEPT_EVENTS = 100_000

const RECORD_EVENT = `
  -- \`imds.actor\` is set for the transaction by a request, and for the connection by a command of an operator; the other
  -- two by a request only (changes/events.ts). A plan from when the table was small would read all of it for each event.
  create function record_event(
    in_account text, in_type text, in_resource text, in_action text, in_fields text[], in_links text[]
  ) returns void language plpgsql set enable_seqscan = off as $$
    declare
      newest record;
      next bigint;
    begin
      perform pg_notify('${EVENTS_CHANNEL}', coalesce(in_account, '') || ' ' || in_resource);
      if in_account is null then return; end if;
      select id, action, fields, links, xmin = pg_current_xact_id()::xid as is_of_this_transaction into newest
        from events where account_id || ' ' || type || ' ' || resource = in_account || ' ' || in_type || ' ' || in_resource
        order by id desc limit 1;
      if newest.is_of_this_transaction then
        if in_action = 'update' and (newest.action <> 'update' or newest.fields @> in_fields)
          and newest.links @> in_links then return; end if;
        in_action := case
          when 'delete' in (newest.action, in_action) then 'delete'
          when 'create' in (newest.action, in_action) then 'create'
          else 'update' end;
        update events set action = in_action, fields = case in_action when 'update' then
            array(select distinct unnest(newest.fields || in_fields) order by 1) else '{}' end,
            links = array(select distinct unnest(newest.links || in_links))
          where account_id = in_account and id = newest.id;
        return;
      end if;
      perform from event_feeds where account_id = in_account for no key update;
      if not found then
        insert into event_feeds (account_id) values (in_account) on conflict do nothing;
        perform from event_feeds where account_id = in_account for no key update;
      end if;
      next := coalesce((select id from events where account_id = in_account order by id desc limit 1), 0) + 1;
      insert into events (account_id, id, type, resource, action, actor, fields, links, request_id, idempotency_key) values (
        in_account, next, in_type, in_resource, in_action,
        coalesce(nullif(current_setting('imds.actor', true), ''), 'system'),
        case in_action when 'update' then in_fields else '{}' end,
        in_links,
        nullif(current_setting('imds.request_id', true), ''),
        nullif(current_setting('imds.idempotency_key', true), ''));
      delete from events where account_id = in_account and id <= next - ${MAX_KEPT_EVENTS};
      -- Readers must see no event that a crash could undo: another one would get its number.
      if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
      end if;
    end $$;`

/**
 * A table whose rows are resources. `fields`: its columns that a change of is an event, with the name of the field that
 * shows each. `deleted`: true once a row stays only to be read.
 */
interface ResourceTable {
  readonly type: string
  readonly account?: string
  readonly fields: Readonly<Record<string, string>>
  readonly deleted?: ((row: string) => string) | undefined
}

const RESOURCE_TABLES: Readonly<Record<string, ResourceTable>> = Object.fromEntries(
  ALL_ROWS.filter(({ name, events }) => events !== undefined && name !== 'user').map(
    ({ name, type, table, events, present }) => [
      table!,
      {
        ...{ type, fields: events!, ...(name === 'account' && { account: 'id' }) },
        deleted:
          present === undefined ? undefined : (row: string) => `not (${present.replaceAll(`${table!}.`, `${row}.`)})`,
      },
    ],
  ),
)

/** The ids of the resources that show a row of a table, besides its account: expressions. */
const LINKS: Readonly<Record<string, (row: 'old' | 'new') => readonly string[]>> = {
  cloud_ips: (row) => [
    `(select server_id from interfaces where interfaces.id = ${row}.interface_id)`,
    `${row}.database_server_id`,
  ],
  images: (row) => [`${row}.source_server_id`],
  accounts: (row) => [`${row}.owner_id`],
}

/** Those of a new or deleted row, or those that an update begins or ends, as an expression. */
function linksOf(table: string, rows: readonly ('old' | 'new')[]): string {
  const [before = [], after] = rows.map((row) => LINKS[table]?.(row) ?? [])
  const links =
    after === undefined
      ? before
      : before.flatMap((link, i) =>
          [link, after[i]!].map((one) => `case when ${link} is distinct from ${after[i]!} then ${one} end`),
        )
  return `array_remove(array[${links.join(', ')}]::text[], null)`
}

/** Columns of the type `json`, which has no equality. */
const JSON_COLUMNS = ['metadata_options', 'tags', 'events', 'data']
/** The API shows only whether it is set. */
const TOTP_SECRET = 'totp_secret'

const differs = (column: string) => {
  if (column === TOTP_SECRET) return `(old.${column} is null) <> (new.${column} is null)`
  const cast = JSON_COLUMNS.includes(column) ? '::text' : ''
  return `old.${column}${cast} is distinct from new.${column}${cast}`
}

/** The names of the changed fields, as an expression. */
const changed = (fields: Readonly<Record<string, string>>) => {
  const byField = Map.groupBy(Object.keys(fields), (column) => fields[column]!)
  const each = [...byField]
    .sort()
    .map(([field, columns]) => `case when ${columns.map(differs).join(' or ')} then '${field}' end`)
  return `array_remove(array[${each.join(', ')}], null)`
}

function triggersOf(table: string, { type, account = 'account_id', fields, deleted }: ResourceTable): string {
  const record = (row: string, action: string, names = `'{}'`) => {
    const links = linksOf(table, action === 'create' ? ['new'] : action === 'delete' ? ['old'] : ['old', 'new'])
    return `perform record_event(${row}.${account}, '${type}', ${row}.id, '${action}', ${names}, ${links});`
  }
  const columns = [...new Set([account, ...Object.keys(fields)])]
  return `
  create function event_of_${table}() returns trigger language plpgsql as $$
    begin
      if tg_op = 'INSERT' then ${record('new', 'create')}
      elsif tg_op = 'DELETE' then ${deleted === undefined ? record('old', 'delete') : `if not (${deleted('old')}) then ${record('old', 'delete')} end if;`}
      elsif ${differs(account)} then
        ${record('old', 'delete')}
        ${record('new', 'create')}
      ${deleted === undefined ? '' : `elsif ${deleted('new')} then if not (${deleted('old')}) then ${record('new', 'delete')} end if;`}
      else ${record('new', 'update', changed(fields))}
      end if;
      return null;
    end $$;
  create constraint trigger event after insert or delete on ${table}
    deferrable initially deferred for each row execute function event_of_${table}();
  create constraint trigger event_of_update after update on ${table}
    deferrable initially deferred for each row when (${columns.map(differs).join(' or ')})
    execute function event_of_${table}();`
}

/** Parts of resources, and users, who may have several accounts: they come and go with collaborations. */
const OTHER_FUNCTIONS = {
  event_of_interfaces: `
  create function event_of_interfaces() returns trigger language plpgsql as $$
    begin
      perform record_event(account_id, 'interface', new.id, 'update', '{ipv6_address}', '{}')
        from servers where id = new.server_id;
      return null;
    end $$;
  create constraint trigger event_of_update after update on interfaces deferrable initially deferred for each row
    when (${differs('ipv6_address')}) execute function event_of_interfaces();`,
  event_of_collaborators: `
  create function event_of_collaborators() returns trigger language plpgsql as $$
    begin
      perform record_event(new.account_id, 'user', new.user_id,
        case new.status when 'accepted' then 'create' else 'delete' end, '{}', '{}');
      return null;
    end $$;
  create constraint trigger event_of_collaborator after update on collaborations deferrable initially deferred for each row
    when (${differs('status')} and new.user_id is not null and 'accepted' in (old.status, new.status))
    execute function event_of_collaborators();`,
  event_of_members: `
  create function event_of_members() returns trigger language plpgsql as $$
    declare
      member record := case tg_op when 'DELETE' then old else new end;
      owner text;
    begin
      select account_id into owner from servers where id = member.server_id;
      perform record_event(owner, 'server', member.server_id, 'update', '{server_groups}', array[member.server_group_id]);
      return null;
    end $$;
  create constraint trigger event after insert or delete on server_group_members
    deferrable initially deferred for each row execute function event_of_members();`,
  event_of_users: `
  create function event_of_users() returns trigger language plpgsql as $$
    declare
      fields text[] := ${changed(ROWS.user.events)};
      owner text;
    begin
      for owner in
        select id from accounts where owner_id = new.id
        union select account_id from collaborations where user_id = new.id and status = 'accepted' order by 1
      loop
        perform record_event(owner, 'user', new.id, 'update', fields, '{}');
      end loop;
      return null;
    end $$;
  create constraint trigger event_of_update after update on users
    deferrable initially deferred for each row when (${Object.keys(ROWS.user.events).map(differs).join(' or ')})
    execute function event_of_users();`,
}

/** Each function by its name, with the triggers that call it. */
export const EVENT_FUNCTIONS: Readonly<Record<string, string>> = {
  record_event: RECORD_EVENT,
  ...Object.fromEntries(
    Object.entries(RESOURCE_TABLES).map(([table, rule]) => [`event_of_${table}`, triggersOf(table, rule)]),
  ),
  ...OTHER_FUNCTIONS,
}

/**
 * Brings the functions and triggers of a database to those of this program. The comment of a function is the digest of
 * its text: one that is the same stays, since a new trigger locks its table.
 */
export async function replaceEventTriggers(tx: Db): Promise<void> {
  const { rows } = await sql<{ name: string; digest: string | null }>`
    select name, obj_description(to_regproc(name), 'pg_proc') as digest
    from unnest(${Object.keys(EVENT_FUNCTIONS)}::text[]) as name`.execute(tx)
  for (const { name, digest } of rows) {
    const text = EVENT_FUNCTIONS[name]!
    const wanted = createHash('sha256').update(text).digest('hex')
    if (digest === wanted) continue
    await sql
      .raw(`drop function if exists ${name} cascade; ${text} comment on function ${name} is '${wanted}'`)
      .execute(tx)
  }
}
