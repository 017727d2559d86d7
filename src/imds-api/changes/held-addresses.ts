/**
 * Addresses of servers that only the store has, after a restore of an older database: their machines may run, so nothing
 * else gets their addresses until the store has them no more.
 */
import { sql } from 'kysely'
import type { Tx } from '../database/transaction.ts'
import { numberIn, POOL_KINDS, type PoolKind } from '../model/pools.ts'
import { lockPools } from './allocate.ts'

/** A server that only the store has. */
export interface StoredServer {
  readonly id: string
  readonly addresses: readonly { readonly kind: PoolKind; readonly address: string }[]
}

/** The holder of an address that only a server in the store has. */
const HOLDER = 'store:'

/** Holds the addresses of these servers, and frees those of others. Returns how many of each. */
export async function holdAddresses(
  tx: Tx,
  servers: readonly StoredServer[],
): Promise<{ readonly held: number; readonly freed: number }> {
  const pools = await lockPools(tx, POOL_KINDS)
  const positions = servers.flatMap(({ id, addresses }) =>
    addresses.flatMap(({ kind, address }) =>
      pools.flatMap((pool) => {
        const number = pool.kind === kind ? numberIn(pool.range, address) : undefined
        return number === undefined ? [] : [{ pool: pool.id, number, holder: HOLDER + id }]
      }),
    ),
  )
  const freed = await sql`
    delete from allocations
    where starts_with(holder, ${HOLDER}) and not holder = any(${servers.map(({ id }) => HOLDER + id)})`.execute(tx)
  const held = await sql`
    insert into allocations (pool_id, number, holder)
    select * from unnest(
      ${positions.map(({ pool }) => pool)}::integer[],
      ${positions.map(({ number }) => number)}::bigint[],
      ${positions.map(({ holder }) => holder)}::text[]) on conflict do nothing`.execute(tx)
  return { held: Number(held.numAffectedRows), freed: Number(freed.numAffectedRows) }
}
