/**
 * The queue of actions for the compute system (IMDS_API_COMPUTE=reported).
 *
 * A hypervisor gets the actions of its servers: for each server only the oldest one without an outcome, so actions are
 * carried out in the order of the requests. While a server migrates, its actions wait. An action without an outcome is
 * given out again after a while, to the present hypervisor of the server.
 */
import { sql, type RawBuilder } from 'kysely'
import { deleteInBatches, PURGE_BATCH } from '../database/purge.ts'
import type { Db } from '../database/transaction.ts'
import { notFound, refuse } from '../model/refusal.ts'
import type { ActionKind, ActionOutcome } from '../model/server-actions.ts'
import type { AccountChanges } from './account-changes.ts'
import { actionAfter, finishAction, giveOut, actionState } from './actions.ts'
import { AWAITS_PUBLISH, wakeHypervisor } from './handshake.ts'

/** The most actions that are given out at once. */
const MAX_GIVEN_OUT = 64
/** How long finished actions are kept, and how many of a server, and of a deleted server. */
const [RETENTION, MAX_FINISHED, MAX_FINISHED_OF_DELETED] = ['30 days', 1000, 16]
/** Longer than the interval between two purges, even if a process was down in between. */
const PURGE_WINDOW = '6 hours'

/**
 * True for the servers of a hypervisor, and for the deleted ones of hypervisors that the region no longer has: others
 * delete their snapshots.
 */
const isServerOf = (hypervisor: string) => sql<boolean>`(
  servers.hypervisor = ${hypervisor} or servers.deleted_at is not null
    and servers.hypervisor = any(array(select name from hypervisors where removed_at is not null)))`

/**
 * Takes the actions that a hypervisor has to carry out now, except those that it got less than `retrySeconds` ago.
 * `form`: what is returned of each, an expression of the rows `action`, `servers` and `server_types`.
 */
export async function giveOutActions<Form>(
  db: Db,
  hypervisor: string,
  retrySeconds: number,
  form: RawBuilder<Form>,
): Promise<readonly Form[]> {
  return db.transaction().execute(async (tx) => {
    // Locked rows are being changed, so they are given out at the next poll.
    const { rows } = await sql<{ id: number }>`
      select action.id from compute_actions action join servers on servers.id = action.server_id
      where action.finished_at is null and ${isServerOf(hypervisor)} and servers.migrating_to is null
        and not ${AWAITS_PUBLISH}
        and (action.given_out_at is null or not ${isRecent(sql`action.given_out_at`, retrySeconds)})
        and not exists (
          select from compute_actions earlier
          where earlier.server_id = action.server_id and earlier.finished_at is null and earlier.id < action.id)
      order by action.id limit ${MAX_GIVEN_OUT}
      for no key update of action skip locked for share of servers skip locked`.execute(tx)
    if (rows.length === 0) return []
    const ids = rows.map(({ id }) => id)
    await giveOut(tx, ids, hypervisor)
    const given = await sql<{ form: Form }>`
      select ${form} as form from compute_actions action join servers on servers.id = action.server_id
        join server_types on server_types.id = servers.server_type_id
      where action.id = any(${ids}) order by action.id`.execute(tx)
    return given.rows.map((row) => row.form)
  })
}

/** A report of a hypervisor. `fault`: why the action failed; null: the report has none. */
export interface ActionReport {
  readonly outcome: ActionOutcome
  readonly fault: string | null
}
/** An action that is finished. `isRepeated`: an earlier report finished it. */
export interface FinishedAction extends ActionReport {
  readonly id: number
  readonly serverId: string
  readonly kind: ActionKind
  readonly isRepeated: boolean
}

/**
 * Records the outcome of an action that this hypervisor got, and applies its effects. Repeating a report changes
 * nothing. An action of another hypervisor does not exist for this one.
 */
export async function reportOutcome(
  db: Db,
  accounts: AccountChanges,
  hypervisor: string,
  id: number,
  { outcome, fault }: ActionReport,
): Promise<FinishedAction> {
  const found = await findAction(db, hypervisor, id)
  if (found === undefined) throw notFound(`the action ${id}`)
  return accounts.commitInAnyState(found.account_id, async (tx) => {
    const action = await findAction(tx, hypervisor, id)
    if (action === undefined) throw notFound(`the action ${id}`)
    const { kind, server_id: serverId } = action
    if (actionAfter(actionState(action), outcome === 'succeeded' ? 'succeed' : 'fail') === undefined) {
      if (action.outcome !== outcome)
        throw refuse('resource_conflict', `the action ${id} has ${String(action.outcome)} already`)
      return { id, serverId, kind, outcome, fault: action.fault, isRepeated: true }
    }
    await finishAction(tx, action, outcome, fault)
    await wakeHypervisor(tx, hypervisor) // the next action of this server
    return { id, serverId, kind, outcome, fault, isRepeated: false }
  })
}

/**
 * Finishes all waiting actions as succeeded, in their order, and returns how many. For a start with
 * IMDS_API_COMPUTE=none: their outcomes are never reported.
 */
export async function finishWaitingActions(db: Db, accounts: AccountChanges): Promise<number> {
  const waiting = await db
    .selectFrom('compute_actions')
    .innerJoin('servers', 'servers.id', 'compute_actions.server_id')
    .select(['compute_actions.id', 'account_id'])
    .where('finished_at', 'is', null)
    .orderBy('compute_actions.id')
    .execute()
  let finished = 0
  for (const { id, account_id: accountId } of waiting) {
    const hasFinished = await accounts.commitInAnyState(accountId, async (tx) => {
      const action = await tx
        .selectFrom('compute_actions')
        .selectAll()
        .where('id', '=', id)
        .where('finished_at', 'is', null)
        .executeTakeFirst()
      if (action === undefined) return false // another process has finished it
      await finishAction(tx, action, 'succeeded', null)
      return true
    })
    if (hasFinished) finished++
  }
  return finished
}

/** Finds an action that was given to a hypervisor. Once the server has migrated, only finished actions are found. */
async function findAction(db: Db, hypervisor: string, id: number) {
  return db
    .selectFrom('compute_actions')
    .innerJoin('servers', 'servers.id', 'compute_actions.server_id')
    .selectAll('compute_actions')
    .select('servers.account_id')
    .where('compute_actions.id', '=', id)
    .where('given_to', '=', hypervisor)
    .where((where) => where.or([isServerOf(hypervisor), where('finished_at', 'is not', null)]))
    .executeTakeFirst()
}

/**
 * True if an action of a server was given out less than `retrySeconds` ago and has no outcome: it may be in progress.
 */
export async function hasActionInProgress(db: Db, serverId: string, retrySeconds: number): Promise<boolean> {
  const { rows } = await sql`
    select from compute_actions
    where server_id = ${serverId} and finished_at is null
      and ${isRecent(sql`given_out_at`, retrySeconds)}
    limit 1`.execute(db)
  return rows.length > 0
}

/** Not in the far future either: such a time was written before the clock was set back. */
function isRecent(time: RawBuilder<unknown>, seconds: number): RawBuilder<unknown> {
  const interval = sql`make_interval(secs => ${seconds})`
  return sql`${time} between now() - ${interval} and now() + ${interval}`
}

/**
 * Deletes actions that were finished long ago, and the oldest finished ones of servers that have many. It looks only at
 * servers with an action that was finished lately, since only these can have more than at the last purge.
 */
export async function purgeActions(db: Db): Promise<void> {
  const finishedAt = sql`finished_at at time zone 'UTC'` // as in the index compute_actions_age
  const before = (age: string) => sql`(now() at time zone 'UTC') - ${age}::interval`
  await deleteInBatches(db, 'compute_actions', sql`${finishedAt} < ${before(RETENTION)}`)
  const isBeyondMost = sql`
    id = any(array(
      -- materialized: with the limit, PostgreSQL may read all of compute_actions in the order of the servers
      with recent as materialized (
        select distinct server_id from compute_actions where ${finishedAt} > ${before(PURGE_WINDOW)})
      select old.id
      from recent
        cross join lateral (
          select id from compute_actions
          where server_id = recent.server_id and finished_at is not null
          order by finished_at desc, id desc
          offset (
            select case when deleted_at is null then ${MAX_FINISHED}::bigint else ${MAX_FINISHED_OF_DELETED}::bigint end
            from servers where id = recent.server_id)) as old
      limit ${PURGE_BATCH}))`
  await deleteInBatches(db, 'compute_actions', isBeyondMost)
}

/**
 * For metrics. `age`: seconds that the oldest action has waited. `unfetched`: seconds for which an action could have
 * been fetched and was not.
 */
export interface ActionQueueState {
  readonly waiting: number
  readonly age: number
  readonly unfetched: number
}

export async function readActionQueue(db: Db): Promise<ActionQueueState> {
  const { rows } = await sql<ActionQueueState>`
    select count(*) as waiting,
      coalesce(extract(epoch from now() - min(requested_at)), 0)::float as age,
      coalesce(extract(epoch from now() - min(coalesce(given_out_at, greatest(requested_at, previous)))
        filter (where is_first and not awaits_publish and migrating_to is null)), 0)::float as unfetched
    from (
      select requested_at, given_out_at, migrating_to, ${AWAITS_PUBLISH} as awaits_publish,
        row_number() over (partition by server_id order by action.id) = 1 as is_first,
        (select max(finished_at) from compute_actions finished where finished.server_id = action.server_id) as previous
      from compute_actions action join servers on servers.id = action.server_id
      where action.finished_at is null
    ) as waiting`.execute(db)
  return rows[0]!
}
