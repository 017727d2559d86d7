/** What PostgreSQL says of locks that were waited for longer than a second, and of deadlocks. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type pg from 'pg'

/** Makes PostgreSQL log each wait for a lock that is longer than a second (its `deadlock_timeout`). */
export async function logLockWaits(pool: Pick<pg.Pool, 'query'>): Promise<void> {
  await pool.query('alter system set log_lock_waits = on')
  await pool.query('select pg_reload_conf()')
}

/** The lines of the log of an embedded PostgreSQL about locks. */
export function lockWaits(stateDirectory: string): readonly string[] {
  return readFileSync(join(stateDirectory, 'postgres/log'), 'utf8')
    .split('\n')
    .filter((line) => /still waiting for|deadlock/.test(line))
}
