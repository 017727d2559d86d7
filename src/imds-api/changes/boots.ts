/**
 * Servers with `wait_for: boot`: they become `active` when their guests report that they have booted. The time limit
 * begins when the record is in the store and the hypervisor has created the server; from then on
 * publish/boot-watch.ts reads the reports.
 */
import { sql } from 'kysely'
import { inTransaction, type Db } from '../database/transaction.ts'
import { lockAccount } from './limits.ts'
import { failCreate, moveServer } from './servers.ts'

/** A server that waits for its guest. `leftMs`: until its time limit, by the clock of the database. */
export interface BootingServer {
  readonly id: string
  readonly account_id: string
  readonly leftMs: number
}

/** Loads the next servers after an id, in the order of their ids. */
export async function findBootingServers(db: Db, after: string, most: number): Promise<readonly BootingServer[]> {
  return db
    .selectFrom('servers')
    .select(['id', 'account_id', sql<number>`(extract(epoch from boot_deadline - now()) * 1000)::float`.as('leftMs')])
    .where('status', '=', 'creating')
    .where('boot_deadline', 'is not', null)
    .where('id', '>', after)
    .orderBy('id')
    .limit(most)
    .execute()
}

/** Ends the wait of a server, unless it ended before, for example by a deletion. */
export async function endBoot(db: Db, { id, account_id }: BootingServer, hasBooted: boolean): Promise<void> {
  await inTransaction(db, async (tx) => {
    await lockAccount(tx, account_id)
    await (hasBooted ? moveServer(tx, id, 'publish') : failCreate(tx, id))
  })
}
