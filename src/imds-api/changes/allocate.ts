/** Gives out ids and addresses inside of a transaction, and takes addresses back. */
import { sql } from 'kysely'
import { formatId } from '../model/ids.ts'
import type { Prefix } from '../model/resources.ts'
import { addressAt, numberIn, overlap, parseRange, type AddressRange, type PoolKind } from '../model/pools.ts'
import type { Tx, Db } from '../database/transaction.ts'
import { addRow, setValues } from './own-rows.ts'

/** How many numbers of a pool one query searches. */
const SEARCH_WINDOW = 1_024

/** A new id, which nothing has or had. */
export async function nextId(db: Db, prefix: Prefix): Promise<string> {
  for (;;) {
    const { rows } = await sql<{ number: number }>`
      select nextval(${`ids_${prefix}`}::regclass) as number`.execute(db)
    const id = formatId(prefix, rows[0]!.number)
    const given = await db.selectFrom('given_ids').select('id').where('id', '=', id).executeTakeFirst()
    if (given === undefined) return id
  }
}

/** An address with the length of its network (undefined where its pool has none), and its IPv6 network. */
export interface AllocatedAddress {
  readonly address: string
  readonly prefixLength: number | undefined
  readonly ipv6Network: string | undefined
}

/**
 * Allocates a free address for a holder. It continues after the last allocation, so that freed addresses stay unused
 * for as long as possible. An address in two pools (one replaced the other) is given once. Locks the pools until the
 * end of the transaction. Undefined: all pools of this kind are full.
 */
export async function allocateAddress(tx: Tx, kind: PoolKind, holder: string): Promise<AllocatedAddress | undefined> {
  const pools = await lockPools(tx, [kind])
  await sql`
    delete from allocations where pool_id = any(${pools.map(({ id }) => id)}) and freed_account is not null
      and not exists (select from outbox where outbox.account_id = freed_account and outbox.id <= freed_after)`.execute(
    tx,
  )
  for (const { id, range, cursor } of pools) {
    const number = await findFree(
      tx,
      pools.filter((other) => overlap(range, other.range)),
      range,
      cursor,
    )
    if (number === undefined) continue
    await addRow(tx, 'allocations', { pool_id: id, number, holder })
    await setValues(tx, 'address_pools', id, { cursor: number + 1 })
    const address = addressAt(range, number)
    return { address, prefixLength: range.prefixLength, ipv6Network: ipv6NetworkOf(pools, address) }
  }
  return undefined
}

/** A pool whose row is locked. `text`: its range as the region file has it. */
interface LockedPool {
  readonly id: number
  readonly kind: PoolKind
  readonly range: AddressRange
  readonly text: string
  readonly cursor: number
  readonly ipv6Network: string | null
}

/** The IPv6 network of a private address: of any pool that has it, since one may have replaced another. */
export function ipv6NetworkOf(pools: readonly LockedPool[], address: string): string | undefined {
  return (
    pools.find(({ range, ipv6Network }) => ipv6Network !== null && numberIn(range, address) !== undefined)
      ?.ipv6Network ?? undefined
  )
}

/** Locks the pools of some kinds until the end of the transaction. */
export async function lockPools(tx: Tx, kinds: readonly PoolKind[]): Promise<readonly LockedPool[]> {
  const rows = await tx
    .selectFrom('address_pools')
    .selectAll()
    .where('kind', 'in', kinds)
    .orderBy('id')
    .forUpdate()
    .execute()
  return rows.map(({ id, kind, range: text, cursor, ipv6_network: ipv6Network }) => {
    const range = parseRange(kind, text)
    if (!range.ok) throw new Error(`the database has a faulty address pool: ${range.faults.join('; ')}`)
    return { id, kind, text, range: range.value, cursor, ipv6Network }
  })
}

export async function freeAddresses(tx: Tx, holders: readonly string[]): Promise<void> {
  if (holders.length > 0) await tx.deleteFrom('allocations').where('holder', 'in', holders).execute()
}

/**
 * Frees the addresses of an unmapped cloud IP, once the waiting changes of its account are published: until then a
 * record may still name them.
 */
export async function freeCloudIp(tx: Tx, accountId: string, id: string): Promise<void> {
  const { rows } = await sql<{ last: number | null }>`
    select max(id) as last from outbox where account_id = ${accountId}`.execute(tx)
  const { last } = rows[0]!
  if (last === null) await freeAddresses(tx, [id])
  else
    await tx
      .updateTable('allocations')
      .set({ freed_account: accountId, freed_after: last })
      .where('holder', '=', id)
      .execute()
}

/** How many deleted cloud IPs of an account still hold their addresses. */
export async function countUnreleasedCloudIps(db: Db, accountId: string): Promise<number> {
  const { rows } = await sql<{ kept: number }>`
    select count(distinct holder) as kept from allocations where freed_account = ${accountId}
      and exists (select from outbox where outbox.account_id = freed_account and outbox.id <= freed_after)`.execute(db)
  return rows[0]!.kept
}

export interface AddressPool {
  readonly kind: PoolKind
  readonly range: string
  readonly size: number
  readonly used: number
}

/** How full the pools are. An address that is in two pools counts twice. */
export async function readPools(db: Db): Promise<readonly AddressPool[]> {
  const { rows } = await sql<Omit<AddressPool, 'size'>>`
    select kind, range, coalesce(used, 0)::int as used from address_pools
      left join (select pool_id, count(*) as used from allocations group by pool_id) as given on pool_id = id
    order by kind, id`.execute(db)
  return rows.map((row) => {
    const parsed = parseRange(row.kind, row.range)
    return { ...row, size: parsed.ok ? Number(parsed.value.size) : 0 }
  })
}

/**
 * The first number of a range, from `cursor` on, then from 0 on, whose address no holder has. `pools`: the range's own
 * pool and those that overlap it.
 */
async function findFree(
  tx: Tx,
  pools: readonly LockedPool[],
  { first, size: count }: AddressRange,
  cursor: number,
): Promise<number | undefined> {
  const size = Number(count)
  /** With its own bounds: PostgreSQL may read all numbers of the pool between them. */
  const isFree = (start: number, end: number) =>
    sql.join(
      pools.map(({ id, range }) => {
        // a text: pg takes no BigInt
        const offset = sql`${String(first - range.first)}::bigint`
        return sql`
          not exists (
            select from allocations
            where pool_id = ${id} and allocations.number = number.number + ${offset}
              and allocations.number between ${start}::bigint + ${offset} and ${end}::bigint + ${offset})`
      }),
      sql` and `,
    )
  for (const [from, to] of [
    [cursor, size],
    [0, Math.min(cursor, size)],
  ] as const) {
    for (let start = from; start < to; start += SEARCH_WINDOW) {
      const end = Math.min(start + SEARCH_WINDOW, to) - 1
      const { rows } = await sql<{ number: number }>`
        select number from generate_series(${start}::bigint, ${end}::bigint) as number
        where ${isFree(start, end)} order by number limit 1`.execute(tx)
      if (rows.length > 0) return rows[0]!.number
    }
  }
  return undefined
}
