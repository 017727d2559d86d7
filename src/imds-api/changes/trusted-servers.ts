/** The servers that may act as an API client: those of the server group that it trusts. */
import { sql, type RawBuilder } from 'kysely'
import { deleteInBatches } from '../database/purge.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { findClient, type Client } from './sign-ins.ts'

/** The most assertions of one server that are remembered. */
export const MAX_USED_ASSERTIONS = 1_000

/** Whether the API client of a row trusts a server now: a present one of its account, in its group. An expression. */
export function trustsServer(serverId: unknown): RawBuilder<boolean> {
  return sql`exists (
    select from servers join server_group_members on server_group_members.server_id = servers.id
    where servers.id = ${serverId} and servers.status not in ('deleting', 'deleted')
      and servers.account_id = api_clients.account_id and server_group_id = api_clients.trusted_servers)`
}

/** Finds an API client that trusts a server. */
export async function findTrustingClient(
  db: Db,
  clientId: string,
  serverId: string,
  nowMs: number,
): Promise<Extract<Client, { kind: 'api-client' }> | undefined> {
  const trusts = db.selectFrom('api_clients').select('id').where('id', '=', clientId).where(trustsServer(serverId))
  if ((await trusts.executeTakeFirst()) === undefined) return undefined
  const client = (await findClient(db, clientId, nowMs))?.client
  return client?.kind === 'api-client' ? client : undefined
}

/** Notes the use of an assertion. False: it was used before, or the server has used too many. */
export async function useAssertion(tx: Tx, serverId: string, jti: Buffer): Promise<boolean> {
  const { numAffectedRows } = await sql`
    insert into used_assertions (server_id, jti_sha256) select ${serverId}, ${jti}
    where (select count(*) from used_assertions where server_id = ${serverId}) < ${MAX_USED_ASSERTIONS}
    on conflict do nothing`.execute(tx)
  return numAffectedRows === 1n
}

/** Deletes what is remembered of assertions that have expired. */
export async function purgeAssertions(db: Db): Promise<void> {
  await deleteInBatches(db, 'used_assertions', sql`used_at < now() - interval '2 hours'`)
}
