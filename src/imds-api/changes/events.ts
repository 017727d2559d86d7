/**
 * The events of an account: one for each committed change of its resources, written by triggers
 * (database/migrations/0014-event-triggers.ts). They are kept for 7 days, and at most MAX_KEPT_EVENTS of an account.
 * Their numbers have no gaps, so a reader notices deleted events.
 */
import { sql, type RawBuilder, type Selectable } from 'kysely'
import { PURGE_BATCH } from '../database/purge.ts'
import type { Tables } from '../database/tables.ts'
import type { Db } from '../database/transaction.ts'
import { parseCursor, type Cursor } from '../model/events.ts'
import { fieldFault, refuse, type Refusal } from '../model/refusal.ts'

/** An event, and the epoch of the database. */
export type EventRow = Selectable<Omit<Tables['events'], 'account_id'>> & { readonly epoch: string }

/** PostgreSQL's channel of their notifications: `ACCOUNT RESOURCE`. */
export const EVENTS_CHANNEL = 'imds_events'
/** The most events of an account: write_events() deletes older ones. */
export const MAX_KEPT_EVENTS = 100_000
const RETENTION = '7 days'
/** The value of `after` for future events only. */
const NOW = 'now'

/** Who makes the changes of a transaction, and by which request: the id and the Idempotency-Key, which may be empty. */
export interface ChangeOrigin {
  readonly actor: string
  readonly requestId: string
  readonly key: string
}

/** Names the origin of a transaction in its events: an expression for `select`. */
export function setOrigin({ actor, requestId, key }: ChangeOrigin): RawBuilder<string> {
  return sql`set_config('imds.actor', ${actor}, true) || set_config('imds.request_id', ${requestId}, true)
    || set_config('imds.idempotency_key', ${key}, true)`
}

/**
 * Where a reader begins. `after`: the cursor of the last event that it has, or `now`. `last`: the number of the newest
 * event. Refuses an unknown cursor (400), and a cursor after which events were deleted (410).
 */
export async function startAfter(
  db: Db,
  accountId: string,
  after: string,
): Promise<Cursor & { readonly last: number }> {
  const { rows } = await sql<{ epoch: string; first: number; last: number }>`
    select event_epoch as epoch,
      coalesce((select min(id) from events where account_id = ${accountId}), 1) as first,
      coalesce((select max(id) from events where account_id = ${accountId}), 0) as last
    from region`.execute(db)
  const { epoch, first, last } = rows[0]!
  if (after === NOW) return { epoch, number: last, last }
  const cursor = parseCursor(after)
  if (cursor === undefined) throw unknownCursor('must be the id of an event, or now')
  if (cursor.epoch !== epoch || cursor.number < first - 1) throw GONE
  if (cursor.number > last) throw unknownCursor('is not the id of an event of this account')
  return { ...cursor, last }
}

/**
 * Which events. `after`: those after this number, in the order of their commits; undefined: the newest first, without
 * the first `offset` of these. `resources`: only those of these, each a type and an id with a space between.
 */
export interface EventQuery {
  readonly after?: number | undefined
  readonly offset?: number
  readonly limit: number
  readonly resources?: readonly string[] | undefined
}

/** An index has each resource (database/migrations.ts), so its events cost no more than a page of all. */
export async function readEvents(
  db: Db,
  accountId: string,
  { after, offset = 0, limit, resources }: EventQuery,
): Promise<readonly EventRow[]> {
  const isOf = (resource: string) => sql`account_id || ' ' || type || ' ' || resource = ${`${accountId} ${resource}`}`
  const which =
    resources === undefined ? sql`account_id = ${accountId}` : sql`(${sql.join(resources.map(isOf), sql` or `)})`
  const [isAfter, order] = after === undefined ? [sql``, sql`desc`] : [sql`and id > ${after}`, sql``]
  const { rows } = await sql<EventRow>`
    select id, type, resource, action, actor, fields, links, request_id, idempotency_key, created_at,
      (select event_epoch from region) as epoch
    from events where ${which} ${isAfter} order by id ${order} limit ${limit} offset ${offset}`.execute(db)
  return rows
}

const GONE = refuse(
  'gone',
  fieldFault(
    'after',
    'not_available',
    'after: events after this one are not kept any more: get a cursor by after=now, list the resources that you need, ' +
      'and continue from that cursor',
  ),
)

function unknownCursor(text: string): Refusal {
  return refuse('bad_request', fieldFault('after', 'malformed', `after ${text}`))
}

/** Deletes old events, some at once. The last one of an account stays: the next number follows from it. */
export async function purgeEvents(db: Db): Promise<void> {
  const { rows: due } = await sql<{ account_id: string }>`
    select account_id from event_feeds as feed cross join lateral (
      select created_at from events where events.account_id = feed.account_id order by id limit 1
    ) as oldest where oldest.created_at < now() - ${RETENTION}::interval`.execute(db)
  for (const { account_id: accountId } of due) {
    // from the last deleted one, since the index has those before it until a vacuum
    for (let [after, deleted] = [0, PURGE_BATCH]; deleted === PURGE_BATCH;) {
      const { rows } = await sql<{ id: number }>`
        delete from events where account_id = ${accountId} and created_at < now() - ${RETENTION}::interval and id in (
          select id from events where account_id = ${accountId} and id > ${after} order by id limit ${PURGE_BATCH})
          and id < (select max(id) from events where account_id = ${accountId})
        returning id`.execute(db)
      after = Math.max(after, ...rows.map(({ id }) => id))
      deleted = rows.length
    }
  }
}
