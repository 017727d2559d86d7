/**
 * The advisory locks of imds-api in PostgreSQL, which a transaction holds until its end. A kind of lock has a number. If
 * there is a lock for each id, the second number is a hash of the id: two ids with one hash only delay each other.
 */
import { sql, type RawBuilder } from 'kysely'
import type { Tx } from './transaction.ts'

const [APPLY_REGION, REBUILD] = [8_171, 8_174]
const BY_ID = { publish: 8_170, invitation: 8_172, idempotencyKey: 8_173, address: 8_175 }

/** Waits until no other transaction applies a region file. */
export async function lockRegion(tx: Tx): Promise<void> {
  await sql`select pg_advisory_xact_lock(${APPLY_REGION})`.execute(tx)
}

/** Waits until no other transaction enqueues all servers. */
export async function lockRebuild(tx: Tx): Promise<void> {
  await sql`select pg_advisory_xact_lock(${REBUILD})`.execute(tx)
}

/** An expression that takes the lock of an id. False: another transaction has it. */
export function tryLock(kind: keyof typeof BY_ID, id: string | RawBuilder<string>): RawBuilder<boolean> {
  return sql<boolean>`pg_try_advisory_xact_lock(${sql.lit(BY_ID[kind])}, hashtext(${id}))`
}
