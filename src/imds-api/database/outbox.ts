/**
 * The outbox: which servers have to be published. A change and its rows are one transaction. A row says only which
 * server changed; what is published is what the database holds when the publisher reads it. The columns of a row are for
 * its turn:
 *
 *   urgent      a change of few servers, or a removal: before the others (publish/turns.ts)
 *   rebuild     it has not changed (changes/rebuild.ts): it does not count for the limit of its account
 *   retry_at    the store has refused it: not before then
 *
 * Until the row is gone, others wait for it too: a hypervisor for the creation of the server (changes/handshake.ts), a
 * deleted cloud IP of the account for its release (changes/allocate.ts), a deleted server for its purge.
 */
import { sql } from 'kysely'
import type { Tx, Db } from './transaction.ts'

/** PostgreSQL's channel that wakes the publishers of all processes. */
export const OUTBOX_CHANNEL = 'imds_outbox'

/** A change of at most this many servers is published before changes of more. */
const URGENT_SERVERS = 16

/**
 * Marks servers as changed: a new revision of each, and a row in the outbox. Locks them in the order of their ids, so
 * that two changes cannot deadlock.
 */
export async function markChanged(tx: Tx, serverIds: readonly string[]): Promise<void> {
  const ids = [...new Set(serverIds)].sort()
  if (ids.length === 0) return
  // One parameter, not one for each id: a statement takes 65,535 at most.
  await sql`select from servers where id = any(${ids}) order by id for no key update`.execute(tx)
  await sql`update servers set revision = revision + 1 where id = any(${ids})`.execute(tx)
  await enqueue(tx, ids)
}

/** Enqueues servers without a new revision: for new servers, and for those whose record is only published again. */
export async function enqueue(tx: Tx, serverIds: readonly string[]): Promise<void> {
  await sql`
    insert into outbox (server_id, account_id, urgent)
    select id, account_id, ${serverIds.length <= URGENT_SERVERS} from servers
    where id = any(${[...serverIds]}) order by id`.execute(tx)
  await sql`select pg_notify(${OUTBOX_CHANNEL}, '')`.execute(tx)
}

/** The servers that wait to be published. `age`: of the oldest change, in seconds. `faulty`: those that the store refuses. */
export interface OutboxState {
  readonly length: number
  readonly age: number
  readonly faulty: number
}

export async function readOutbox(db: Db): Promise<OutboxState> {
  const { rows } = await sql<OutboxState>`
    select count(distinct server_id) as length, coalesce(extract(epoch from now() - min(created_at)), 0)::float as age,
      count(distinct server_id) filter (where retry_at is not null) as faulty
    from outbox`.execute(db)
  return rows[0]!
}
