/**
 * The last numbers that the sequences of the database have given: of ids, of places in the pools of addresses, of
 * actions, and of rows. The store remembers the highest of each. So a database that has given less than the store
 * remembers is an older backup or a copy of one, and after a restore no number is given twice, also the second time.
 */
import { sql } from 'kysely'
import { POOL_KINDS } from '../model/pools.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { placeOf, readPools, sizeOf } from './allocate.ts'

/** The last number of each sequence, by its name. */
export type Numbers = ReadonlyMap<string, number>

/**
 * How many numbers are skipped after a restore, beside those that the store remembers: it may have missed the last ones.
 * Ids of each kind, addresses of each kind (at most a quarter), and numbers of actions: an agent would ignore a new
 * action with the number of a finished one.
 */
const [SKIPPED_IDS, SKIPPED_ADDRESSES, SKIPPED_PART, SKIPPED_ACTIONS] = [10_000, 10_000, 4, 1_000_000]

export async function readNumbers(db: Db): Promise<Numbers> {
  const { rows } = await sql<{ name: string; last: number }>`
    select sequencename as name, coalesce(last_value, 0) as last from pg_sequences
    where schemaname = current_schema() order by 1`.execute(db)
  return new Map(rows.map(({ name, last }) => [name, last]))
}

/** The numbers of `ours` that are higher than those of `others`. Names that `ours` does not have are left out. */
export function higherNumbers(ours: Numbers, others: Numbers): Numbers {
  return new Map([...ours].filter(([name, last]) => last > (others.get(name) ?? 0)))
}

/** True if the store remembers higher numbers than the database has given. Places are no proof: changes move them back. */
export function isDatabaseBehind(given: Numbers, remembered: Numbers): boolean {
  return [...given].some(([name, last]) => !name.startsWith('place_') && (remembered.get(name) ?? 0) > last)
}

/** Moves the sequences past what the store remembers, and skips some numbers. Returns the new ones. */
export async function skipNumbers(tx: Tx, remembered: Numbers): Promise<Numbers> {
  const skipped = new Map<string, number>([['compute_actions_id_seq', SKIPPED_ACTIONS]])
  const pools = await readPools(tx, POOL_KINDS)
  for (const kind of POOL_KINDS) {
    const size = sizeOf(pools.filter((pool) => pool.kind === kind))
    skipped.set(placeOf(kind), Math.min(SKIPPED_ADDRESSES, Math.ceil(size / SKIPPED_PART)))
  }
  for (const [name, last] of await readNumbers(tx)) {
    const skip = skipped.get(name) ?? (name.startsWith('ids_') ? SKIPPED_IDS : 1)
    const next = Math.max(last, remembered.get(name) ?? 0) + skip
    await sql`select setval(${name}::regclass, ${next})`.execute(tx)
  }
  return readNumbers(tx)
}
