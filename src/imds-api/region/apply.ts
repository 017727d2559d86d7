/**
 * Applies a region file: inserts and changes rows until the database has what the file says. Columns that requests can
 * change too get the value of the file only in a new row. Applying a file again changes nothing. Rows that the file
 * does not have stay; it says which are removed. A row in use cannot be removed.
 */
import { sql } from 'kysely'
import { nextId } from '../changes/allocate.ts'
import { atDatabaseServers, moveCloudIps } from '../changes/cloud-ips.ts'
import { giveIpv6Addresses } from '../changes/interfaces.ts'
import { lockRegion } from '../database/advisory-locks.ts'
import { markChanged } from '../database/outbox.ts'
import type { Tx } from '../database/transaction.ts'
import { applyTable, removeRows, type RowChange } from './apply-table.ts'
import { applyCollaborations } from './collaborations.ts'
import { endSignIns, computeCredentials } from './credentials.ts'
import { buildRegionRows, type RegionRows } from './rows.ts'
import type { Region, RemovedKeys } from './removed.ts'
import type { RegionSecrets } from './secrets.ts'
import { REGION_TABLES, SEEN_BY_GUESTS } from './tables.ts'

/**
 * Applies a file and its secrets in a transaction, and returns the difference: one line for each row, without secrets.
 */
export async function applyRegion(
  tx: Tx,
  { file, removed }: Region,
  secrets: RegionSecrets,
): Promise<readonly string[]> {
  await lockRegion(tx) // one at a time: two could insert the same row
  const credentials = await computeCredentials(tx, file, secrets)
  const rows = buildRegionRows(file, secrets, credentials)
  const changes: RowChange[] = []
  for (const table of REGION_TABLES) changes.push(...(await applyTable(tx, table, rows[table])))
  await finishDatabaseServers(tx, removed.database_servers ?? [])
  await endSignIns(tx, credentials)
  const lines = [
    ...changes.map(({ line }) => line),
    ...(await applyCollaborations(tx, file)),
    ...(await addDefaultGroups(tx)),
    ...(await removeEach(tx, removed)),
    ...(await giveIpv6Addresses(
      tx,
      changes.some(({ columns }) => columns.includes('ipv6_network')),
    )),
  ]
  await rememberIds(tx, rows)
  await publishAgain(tx, changes)
  return lines
}

/**
 * A deleted database server gets the time of its deletion. A deleting, deleted or removed one loses its cloud IPs, and
 * so does one that has moved to another account.
 */
async function finishDatabaseServers(tx: Tx, removed: readonly string[]): Promise<void> {
  await sql`
    update database_servers set deleted_at = case when status = 'deleted' then now() end
    where (status = 'deleted') <> (deleted_at is not null)`.execute(tx)
  const { rows } = await sql<{ id: string }>`
    select id from database_servers where status in ('deleting', 'deleted') or id = any(${removed})
    union select database_servers.id from database_servers join cloud_ips on database_server_id = database_servers.id
    where cloud_ips.account_id <> database_servers.account_id`.execute(tx)
  await moveCloudIps(tx, 'release', atDatabaseServers(rows.map(({ id }) => id)))
}

async function removeEach(tx: Tx, removed: RemovedKeys): Promise<readonly string[]> {
  const lines: string[] = []
  await sql`
    update collaborations set parties = parties || '{"inviter": null}'
    where inviter_id = any(${removed.users ?? []})`.execute(tx)
  for (const table of REGION_TABLES.toReversed()) lines.push(...(await removeRows(tx, table, removed[table])))
  return lines
}

/** No new resource gets an id of the file. */
async function rememberIds(tx: Tx, rows: RegionRows): Promise<void> {
  const { zones, server_types, images, users, accounts, api_clients, applications } = rows
  const ids = [zones, server_types, images, users, accounts, api_clients, applications].flat().map(({ id }) => id)
  await sql`insert into given_ids (id) select unnest(${ids}::text[]) on conflict do nothing`.execute(tx)
}

/** Publishes the servers whose guests see a change. */
async function publishAgain(tx: Tx, changes: readonly RowChange[]): Promise<void> {
  const seenIn = (table: keyof typeof SEEN_BY_GUESTS) => {
    const seen: readonly string[] = SEEN_BY_GUESTS[table]
    return changes
      .filter((change) => change.table === table && change.columns.some((column) => seen.includes(column)))
      .map(({ key }) => key)
  }
  const { rows } = await sql<{ id: string }>`
    select id from servers
    where deleted_at is null and (
      ${seenIn('region').length > 0}
      or zone_id = any(${seenIn('zones')})
      or server_type_id = any(${seenIn('server_types')})
    )`.execute(tx)
  const ids = rows.map(({ id }) => id)
  await markChanged(tx, ids)
}

/** Every account has a default server group, which servers join when none is named. */
async function addDefaultGroups(tx: Tx): Promise<readonly string[]> {
  const { rows: accounts } = await sql<{ id: string }>`
    select id from accounts
    where not exists (select from server_groups where server_groups.account_id = accounts.id and is_default)`.execute(
    tx,
  )
  for (const { id: account_id } of accounts) {
    const description = 'All servers that name no group'
    await tx
      .insertInto('server_groups')
      .values({ id: await nextId(tx, 'grp'), account_id, name: 'default', description, is_default: true })
      .execute()
  }
  return accounts.map(({ id }) => `+ default server group of ${id}`)
}
