/** An account's limits and its use of them. The use is counted, never stored. */
import { sql, type RawBuilder, type Selectable } from 'kysely'
import type { AccountLimit } from '../model/account-limits.ts'
import { SERVER_ACTIONS } from '../model/server-actions.ts'
import { refuse } from '../model/refusal.ts'
import { setActor } from './events.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'

/**
 * How many deleted servers, API clients and applications, and finished collaborations, of an account can still be read:
 * the newest. Otherwise an account that makes and deletes them could fill the database.
 */
export const MAX_KEPT_DELETED = 1000

/** What an account uses. RAM in MB. */
export interface Usage {
  readonly servers_used: number
  readonly ram_used: number
  readonly cloud_ips_used: number
  readonly dbs_instances_used: number
  readonly dbs_ram_used: number
}

/**
 * Locks an account until the end of the transaction. Other transactions can still insert rows that refer to it, such as
 * access tokens. Undefined: it was deleted. `actor`: who is named in the events of the transaction, if that is not known
 * yet.
 */
export async function lockAccount(
  tx: Tx,
  accountId: string,
  actor?: string,
): Promise<Selectable<Tables['accounts']> | undefined> {
  return tx
    .selectFrom('accounts')
    .selectAll()
    .$if(actor !== undefined, (query) => query.select(setActor(actor!).as('actor')))
    .where('id', '=', accountId)
    .forNoKeyUpdate()
    .executeTakeFirst()
}

export async function usageOf(database: Reader, accountId: string): Promise<Usage> {
  return (await usageOfAccounts(database, [accountId])).get(accountId)!
}

export async function usageOfAccounts(
  database: Reader,
  accountIds: readonly string[],
): Promise<ReadonlyMap<string, Usage>> {
  const { rows } = await sql<Usage & { id: string }>`
    select accounts.id,
      (select count(*) from servers
        where servers.account_id = accounts.id and servers.deleted_at is null) as servers_used,
      (select coalesce(sum(ram), 0) from servers join server_types on server_types.id = servers.server_type_id
        where servers.account_id = accounts.id and servers.deleted_at is null) as ram_used,
      (select count(*) from cloud_ips where cloud_ips.account_id = accounts.id) as cloud_ips_used,
      (select count(*) from database_servers
        where database_servers.account_id = accounts.id and database_servers.deleted_at is null) as dbs_instances_used,
      (select coalesce(sum(ram), 0) from database_servers
        join database_server_types on database_server_types.id = database_servers.database_server_type_id
        where database_servers.account_id = accounts.id and database_servers.deleted_at is null) as dbs_ram_used
    from accounts where accounts.id = any(${[...accountIds]})`.execute(database)
  return new Map(rows.map(({ id, ...usage }) => [id, usage]))
}

/** What a limit counts. `used`: how many the account has. `name`: in a refusal. */
interface CountedLimit {
  readonly used: (accountId: string) => RawBuilder<number>
  readonly name: string
  readonly remedy: string
}

/** The limits that refuse. (`access_tokens_limit` refuses nothing: see auth/tokens.ts.) */
const COUNTED_LIMITS = {
  server_groups_limit: {
    name: 'server groups',
    remedy: 'delete one first',
    used: (id) => sql`select count(*) from server_groups where account_id = ${id}`,
  },
  api_clients_limit: {
    name: 'API clients',
    remedy: 'delete one first',
    used: (id) => sql`select count(*) from api_clients where account_id = ${id} and revoked_at is null`,
  },
  applications_limit: {
    name: 'applications',
    remedy: 'delete one first',
    used: (id) => sql`select count(*) from applications where account_id = ${id} and revoked_at is null`,
  },
  collaborations_limit: {
    name: 'collaborations',
    remedy: 'end or cancel one first',
    used: (id) =>
      sql`select count(*) from collaborations where account_id = ${id} and status in ('pending', 'accepted')`,
  },
  config_maps_limit: {
    name: 'config maps',
    remedy: 'delete one first',
    used: (id) => sql`select count(*) from config_maps where account_id = ${id}`,
  },
  config_maps_bytes_limit: {
    name: 'bytes of config maps',
    remedy: 'delete or shorten one first',
    used: (id) => sql`select coalesce(sum(bytes), 0) from config_maps where account_id = ${id}`,
  },
  images_limit: {
    name: 'images',
    remedy: 'delete one first',
    used: (id) => sql`select count(*) from images where account_id = ${id} and status <> 'deleted'`,
  },
  open_actions_limit: {
    name: 'actions without an outcome',
    remedy: 'try again when some have ended',
    used: (id) => sql`
      select count(*) from compute_actions join servers on servers.id = server_id
      where account_id = ${id} and finished_at is null and kind = any(${[...SERVER_ACTIONS]})`,
  },
} as const satisfies Readonly<Partial<Record<AccountLimit, CountedLimit>>>

/**
 * Refuses a change that would exceed a limit by adding `more`. The account must be locked. An account that is already
 * beyond its limit keeps what it has.
 */
export async function refuseBeyondLimit(
  tx: Tx,
  accountId: string,
  limit: keyof typeof COUNTED_LIMITS,
  more = 1,
): Promise<void> {
  if (more <= 0) return
  const { used: count, name, remedy }: CountedLimit = COUNTED_LIMITS[limit]
  const { rows } = await sql<{ used: number; most: number }>`
    select (${count(accountId)})::bigint as used, ${sql.ref(limit)} as most
    from accounts where id = ${accountId}`.execute(tx)
  const { used, most } = rows[0]!
  if (used + more <= most) return
  throw refuse(
    'account_limit_reached',
    `the account has ${String(used)} ${name}, and its limit is ${String(most)}` +
      `${more === 1 ? '' : `: ${String(more)} more are too much`}: ${remedy}`,
  )
}
