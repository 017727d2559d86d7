/**
 * Servers that are `active` only after their guests have reported that they have booted (`wait_for: boot`). The time
 * limit begins when the record is in the store and the hypervisor has created the server. Only then the server is here:
 * publish/boot-watch.ts reads what its guest has reported.
 */
import { sql } from 'kysely'
import { inTransaction, type Reader } from '../database/transaction.ts'
import { moveServer } from './servers.ts'

/** A server that waits for its guest. `isLate`: its time limit is over. */
export interface Booting {
  readonly id: string
  readonly isLate: boolean
}

/** Loads the next servers after an id, in the order of their ids. */
export async function loadBooting(database: Reader, after: string, most: number): Promise<readonly Booting[]> {
  return database
    .selectFrom('servers')
    .select(['id', sql<boolean>`boot_deadline <= now()`.as('isLate')])
    .where('status', '=', 'creating')
    .where('boot_deadline', 'is not', null)
    .where('id', '>', after)
    .orderBy('id')
    .limit(most)
    .execute()
}

/** Ends the wait of a server, unless it has ended: the server may be being deleted. */
export async function endBoot(database: Reader, id: string, hasBooted: boolean): Promise<void> {
  await inTransaction(database, (tx) => moveServer(tx, id, hasBooted ? 'publish' : 'failCreate'))
}
