/**
 * The states of servers, and their transitions.
 *
 *   creating --publish, once its record is in the store--> active --stop, shutdown--> inactive --start--> active
 *   creating --failCreate--> failed
 *   creating, active, inactive, failed, unavailable --delete--> deleting
 *   deleting --remove, once its record is out of the store--> deleted
 *   deleting --failDelete--> failed
 *
 * With IMDS_API_COMPUTE=reported, `publish` and `remove` also wait for the hypervisor. The changes by clients are in
 * server-requests.ts.
 */
import { sql, type RawBuilder } from 'kysely'
import { lockRebuild } from '../database/advisory-locks.ts'
import { markChanged, OUTBOX_CHANNEL } from '../database/outbox.ts'
import { PURGE_BATCH } from '../database/purge.ts'
import type { Db, Tx } from '../database/transaction.ts'
import type { ServerAction, ServerStatus } from '../model/server-actions.ts'
import { transitions, type Transition } from '../model/transitions.ts'
import { freeAddresses } from './allocate.ts'
import { atServer, moveCloudIps } from './cloud-ips.ts'
import { purgeImages } from './images.ts'
import { MAX_KEPT_DELETED } from './limits.ts'
import { setValues } from './own-rows.ts'

export type ServerTransition = ServerAction | 'publish' | 'failCreate' | 'delete' | 'failDelete' | 'remove'

/** The transitions. Those of actions are made once the compute system has carried them out. */
export const SERVER_TRANSITIONS: Readonly<Record<ServerTransition, Transition<ServerStatus>>> = {
  publish: { from: ['creating'], to: 'active' },
  failCreate: { from: ['creating'], to: 'failed' },
  start: { from: ['inactive'], to: 'active' },
  stop: { from: ['active'], to: 'inactive' },
  shutdown: { from: ['active'], to: 'inactive' },
  reboot: { from: ['active'], to: undefined },
  reset: { from: ['active'], to: undefined },
  snapshot: { from: ['active', 'inactive'], to: undefined },
  activate_console: { from: ['active'], to: undefined },
  delete: { from: ['creating', 'active', 'inactive', 'failed', 'unavailable'], to: 'deleting' },
  failDelete: { from: ['deleting'], to: 'failed' },
  remove: { from: ['deleting'], to: 'deleted' },
}

export const { after: serverAfter, canBecome: serverCanBecome } = transitions(SERVER_TRANSITIONS)

/** The state after actions that succeed, in their order. Those that are not possible leave it as it is. */
export function serverAfterAll(status: ServerStatus, actions: readonly ServerAction[]): ServerStatus {
  return actions.reduce((now, action) => serverAfter(now, action) ?? now, status)
}

/** The only SQL that writes a status. Moves a server. False: the transition is not possible. */
export async function moveServer(tx: Tx, id: string, transition: ServerTransition): Promise<boolean> {
  const { from, to } = SERVER_TRANSITIONS[transition]
  if (to === undefined) return false
  const { numUpdatedRows } = await tx
    .updateTable('servers')
    .set({ status: to, ...effectOf(to) })
    .where('id', '=', id)
    .where('status', 'in', from)
    .executeTakeFirst()
  return numUpdatedRows > 0n
}

/** The console is closed, unless a waiting action opens it again. */
export const WITHOUT_CONSOLE = sql<Date | null>`
  case when exists (
    select from compute_actions
    where server_id = servers.id and kind = 'activate_console' and finished_at is null
  ) then console_token_expires end`

function effectOf(status: ServerStatus) {
  switch (status) {
    case 'active':
      return { started_at: new Date() }
    case 'inactive':
      return { console_token_expires: WITHOUT_CONSOLE }
    case 'deleting':
      return { console_token_expires: null }
    case 'deleted':
      return { deleted_at: new Date(), user_data: null, tags: '{}', events: '[]', metadata_options: null }
    default:
      return {}
  }
}

/** How long a deleted server can be read. */
const RETENTION = '30 days'
/** True for a deleted server that needs no publish, and no hypervisor for the deletion of a snapshot. */
const IS_UNREFERENCED = sql`(
  not exists (select from outbox where outbox.server_id = servers.id)
  and not exists (select from images where images.source_server_id = servers.id and images.status <> 'deleted'))`

/**
 * PostgreSQL's channel that wakes the waiting requests of a hypervisor in all processes. The payload is the name of the
 * hypervisor.
 */
export const COMPUTE_CHANNEL = 'imds_compute'

/** Wakes the requests of the hypervisor of a server when the transaction commits. */
export async function wakeHypervisorOf(tx: Tx, id: string): Promise<void> {
  await sql`select pg_notify(${COMPUTE_CHANNEL}, hypervisor) from servers where id = ${id}`.execute(tx)
}

interface Published {
  readonly status: ServerStatus
  readonly awaitsCompute: boolean
  readonly isPublished: boolean
  readonly fault: string | null
}

/**
 * Moves a server after its record was written or removed, in the transaction that deletes its rows of the outbox. A
 * server that waits for the compute system stays as it is: the outcome enqueues it again.
 */
export async function finishPublish(
  tx: Tx,
  id: string,
  { status, awaitsCompute, isPublished, fault }: Published,
): Promise<void> {
  if (fault !== null || !isPublished) await setValues(tx, 'servers', id, { publish_fault: null, is_published: true })
  if (awaitsCompute) return wakeHypervisorOf(tx, id)
  if (status === 'creating') {
    await moveServer(tx, id, 'publish')
    await moveCloudIps(tx, 'confirm', atServer(id))
  } else if (status === 'deleting') {
    const interfaces = await tx.deleteFrom('interfaces').where('server_id', '=', id).returning('id').execute()
    await freeAddresses(
      tx,
      interfaces.map((one) => one.id),
    )
    await tx.deleteFrom('server_keys').where('server_id', '=', id).execute()
    await moveServer(tx, id, 'remove')
  }
}

/** Deletes the rows of servers that were deleted long ago, in batches, and of deleted images without servers. */
export async function purgeServers(db: Db): Promise<void> {
  const old = sql`
    select id from servers where deleted_at < now() - ${RETENTION}::interval and ${IS_UNREFERENCED} limit ${PURGE_BATCH}`
  while ((await deleteRows(db, old)) === PURGE_BATCH);
  await purgeImages(db, sql`true`)
}

/** Deletes the rows of the oldest deleted servers of an account, beyond MAX_KEPT_DELETED. */
export async function purgeOldestDeleted(tx: Tx, accountId: string): Promise<void> {
  await deleteRows(
    tx,
    sql`
      select id from servers where ${IS_UNREFERENCED} and id in (
        select id from servers where account_id = ${accountId} and deleted_at is not null
        order by deleted_at desc offset ${MAX_KEPT_DELETED} limit ${PURGE_BATCH})`,
  )
}

async function deleteRows(db: Db, ids: RawBuilder<unknown>): Promise<number> {
  const { rows } = await sql<{ deleted: number }>`
    with gone as (delete from servers where id in (${ids}) returning id)
    select count(*) as deleted from gone`.execute(db)
  return rows[0]!.deleted
}

/** The beginning of the fault of a server whose id the store has given to another. */
export const OTHER_INCARNATION = 'incarnation: '

/** Whether what the store has of the id of a server is its own. */
export const OWNS_ID = sql<boolean>`(
  servers.is_published and coalesce(not starts_with(servers.publish_fault, ${sql.lit(OTHER_INCARNATION)}), true))`

/** The compute system could not create a server. Its cloud IPs are free again. */
export async function failCreate(tx: Tx, id: string): Promise<void> {
  if (await moveServer(tx, id, 'failCreate')) await moveCloudIps(tx, 'release', atServer(id))
  await markChanged(tx, [id])
}

/** Enqueues servers of which the store has no record, or another one. */
export async function enqueueAgain(tx: Tx, ids: readonly string[]): Promise<void> {
  await insertRebuild(tx, sql`id = any(${[...ids]}::text[])`)
}

/**
 * Enqueues every server, for a store that has lost changes, and returns how many were published before. `stored`: the
 * servers in the store, which may be deleted here. It inserts new rows: a publish in flight may have reached the old
 * store, and deletes its own rows afterwards.
 */
export async function enqueueAllServers(tx: Tx, stored: readonly string[]): Promise<number> {
  await lockRebuild(tx)
  await sql`
    delete from outbox where id in (select id from outbox where rebuild for update skip locked)`.execute(tx)
  await insertRebuild(
    tx,
    sql`deleted_at is null or deleted_at > now() - ${TOMBSTONES}::interval or id = any(${[...stored]}::text[])`,
  )
  // The addresses that wait for the deleted rows wait for the new ones.
  await sql`
    update allocations set freed_after = coalesce((select max(id) from outbox), 0)
    where freed_account is not null`.execute(tx)
  const { rows } = await sql<{ published: number }>`
    select count(*) as published from servers where is_published and deleted_at is null`.execute(tx)
  return rows[0]!.published
}

/** How long the store keeps tombstones (docs/publishing.md). Without one, a hypervisor may serve a deleted server. */
const TOMBSTONES = '7 days'

/** Removals are urgent: the addresses of the removed servers may be those of others now. */
async function insertRebuild(tx: Tx, which: RawBuilder<unknown>): Promise<void> {
  await sql`
    insert into outbox (server_id, account_id, rebuild, urgent)
    select id, account_id, true, deleted_at is not null from servers where ${which} order by id`.execute(tx)
  await sql`select pg_notify(${OUTBOX_CHANNEL}, '')`.execute(tx)
}

/** The servers that are published again, and were not tried yet. `records`: without removals. */
export interface RebuildCount {
  readonly left: number
  readonly records: number
}

export async function countRebuild(db: Db): Promise<RebuildCount> {
  const { rows } = await sql<RebuildCount>`
    select count(*) as left, count(*) filter (where not urgent) as records from outbox where rebuild`.execute(db)
  return rows[0]!
}

export interface RefusedServer {
  readonly id: string
  readonly account: string
  readonly fault: string
}

/** The first servers whose records the store refuses. `most` undefined: all. */
export async function findRefusedServers(db: Db, most: number | undefined): Promise<readonly RefusedServer[]> {
  const { rows } = await sql<RefusedServer>`
    select id, account_id as account, publish_fault as fault from servers
    where publish_fault is not null and id in (select server_id from outbox where retry_at is not null)
    order by id limit ${most ?? null}`.execute(db)
  return rows
}
