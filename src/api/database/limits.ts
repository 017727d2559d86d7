/** An account's limits and its use of them. The use is counted, never stored. */
import { sql, type Selectable } from 'kysely'
import type { Tables } from './tables.ts'
import type { Change, Reader } from './transaction.ts'

/** What an account uses. RAM in MB. */
export interface Usage {
  readonly servers_used: number
  readonly ram_used: number
  readonly cloud_ips_used: number
  readonly dbs_instances_used: number
  readonly dbs_ram_used: number
}

/** Locks an account until the end of the transaction. Other transactions can still insert rows that refer to it, such as access tokens. */
export async function lockAccount(change: Change, accountId: string): Promise<Selectable<Tables['accounts']>> {
  return change.selectFrom('accounts').selectAll().where('id', '=', accountId).forNoKeyUpdate().executeTakeFirstOrThrow()
}

/** What an account uses now. */
export async function usageOf(database: Reader, accountId: string): Promise<Usage> {
  return (await usageOfAccounts(database, [accountId])).get(accountId)!
}

/** The same for many accounts, in one query. */
export async function usageOfAccounts(database: Reader, accountIds: readonly string[]): Promise<ReadonlyMap<string, Usage>> {
  const { rows } = await sql<Usage & { id: string }>`
    select accounts.id,
      (select count(*) from servers where servers.account_id = accounts.id and servers.deleted_at is null) as servers_used,
      (select coalesce(sum(ram), 0) from servers join server_types on server_types.id = servers.server_type_id
        where servers.account_id = accounts.id and servers.deleted_at is null) as ram_used,
      (select count(*) from cloud_ips where cloud_ips.account_id = accounts.id) as cloud_ips_used,
      (select count(*) from database_servers where database_servers.account_id = accounts.id and database_servers.deleted_at is null) as dbs_instances_used,
      (select coalesce(sum(ram), 0) from database_servers join database_server_types on database_server_types.id = database_servers.database_server_type_id
        where database_servers.account_id = accounts.id and database_servers.deleted_at is null) as dbs_ram_used
    from accounts where accounts.id = any(${[...accountIds]})`.execute(database)
  return new Map(rows.map(({ id, ...usage }) => [id, usage]))
}
