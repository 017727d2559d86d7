/** Gives out ids and addresses inside of a transaction, and takes addresses back. */
import { sql, type Selectable } from 'kysely'
import { tryLock } from '../database/advisory-locks.ts'
import { runPrepared } from '../database/prepared.ts'
import { deleteInBatches } from '../database/purge.ts'
import type { Tables } from '../database/tables.ts'
import { formatId } from '../model/ids.ts'
import type { Prefix } from '../model/resources.ts'
import { addressAt, numberIn, overlap, parseRange, type AddressRange, type PoolKind } from '../model/pools.ts'
import type { Tx, Db } from '../database/transaction.ts'

/** How many numbers of a pool the first query of a search reads; each further one reads four times as many. */
const SEARCH_WINDOW = 1_024
/** How many free numbers of a window are tried. More changes do not allocate at the same time. */
const CANDIDATES = 64

/** A new id, which nothing has or had. */
export async function nextId(db: Db, prefix: Prefix): Promise<string> {
  for (;;) {
    const { rows } = await sql<{ number: number }>`
      select nextval(${`ids_${prefix}`}::regclass) as number`.execute(db)
    const id = formatId(prefix, rows[0]!.number)
    const given = await runPrepared(db, sql`select from given_ids where id = ${id}`)
    if (given.length === 0) return id
  }
}

/** An address, and the length of its network (undefined where its pool has none). */
export interface AllocatedAddress {
  readonly address: string
  readonly prefixLength: number | undefined
}

/**
 * Allocates a free address for a holder. It continues after the last allocation, so that freed addresses stay unused
 * for as long as possible: a sequence has that place, counted over all pools of the kind, so a pool that was added is
 * used next. An address in two pools (one replaced the other) is given once. Undefined: all pools of this kind are full.
 *
 * It never waits for other transactions: the sequence gives each another place, and who finds the same free address has
 * to get its advisory lock first.
 */
export async function allocateAddress(tx: Tx, kind: PoolKind, holder: string): Promise<AllocatedAddress | undefined> {
  const pools = await readPools(tx, [kind])
  const size = sizeOf(pools)
  if (size === 0) return undefined
  const { rows } = await sql<{ place: number }>`select nextval(${placeOf(kind)}::regclass) as place`.execute(tx)
  const { place } = rows[0]!
  const start = place % size
  for (const { pool, from, to } of windows(pools, start)) {
    const number = await takeFree(tx, pools, pool, from, to, holder)
    if (number === undefined) continue
    const skipped = (pool.offset + number - start + size) % size
    if (skipped > 0) await sql`select setval(${placeOf(kind)}::regclass, ${place + skipped})`.execute(tx)
    return { address: addressAt(pool.range, number), prefixLength: pool.range.prefixLength }
  }
  return undefined
}

/** The sequence of the places of a kind of pools. */
export function placeOf(kind: PoolKind): string {
  return `place_${kind}`
}

/** Frees the addresses of deleted cloud IPs (freeCloudIp) whose changes are published. */
export async function freeReleased(tx: Tx): Promise<void> {
  const isReleased = sql`freed_account is not null
    and not exists (select from outbox where outbox.account_id = freed_account and outbox.id <= freed_after)`
  await deleteInBatches(tx, 'allocations', isReleased)
}

/** A pool. `text`: its range as the region file has it. `offset`: the place of its first number in all of its kind. */
export interface Pool {
  readonly id: number
  readonly kind: PoolKind
  readonly range: AddressRange
  readonly text: string
  readonly offset: number
  readonly ipv6Network: string | null
}

/** How many addresses pools have. */
export function sizeOf(pools: readonly Pool[]): number {
  return pools.reduce((sum, { range }) => sum + Number(range.size), 0)
}

/** The IPv6 network of a private address: of any pool that has it, since one may have replaced another. */
export function ipv6NetworkOf(pools: readonly Pool[], address: string): string | undefined {
  return (
    pools.find(({ range, ipv6Network }) => ipv6Network !== null && numberIn(range, address) !== undefined)
      ?.ipv6Network ?? undefined
  )
}

/** The pools of some kinds, in the order of their places. */
export async function readPools(db: Db, kinds: readonly PoolKind[]): Promise<readonly Pool[]> {
  return toPools(await db.selectFrom('address_pools').selectAll().where('kind', 'in', kinds).orderBy('id').execute())
}

/** The same. Locks them until the end of the transaction: no other one can allocate from them before it. */
export async function lockPools(tx: Tx, kinds: readonly PoolKind[]): Promise<readonly Pool[]> {
  const pools = tx.selectFrom('address_pools').selectAll().where('kind', 'in', kinds).orderBy('id')
  return toPools(await pools.forUpdate().execute())
}

function toPools(rows: readonly Selectable<Tables['address_pools']>[]): readonly Pool[] {
  const offsets = new Map<PoolKind, number>()
  return rows.map(({ id, kind, range: text, ipv6_network: ipv6Network }) => {
    const range = parseRange(kind, text)
    if (!range.ok) throw new Error(`the database has a faulty address pool: ${range.faults.join('; ')}`)
    const offset = offsets.get(kind) ?? 0
    offsets.set(kind, offset + Number(range.value.size))
    return { id, kind, text, range: range.value, offset, ipv6Network }
  })
}

export async function freeAddresses(tx: Tx, holders: readonly string[]): Promise<void> {
  if (holders.length > 0) await tx.deleteFrom('allocations').where('holder', 'in', holders).execute()
}

/**
 * Frees the addresses of a cloud IP that is deleted, once the waiting changes of its account are published: until then a
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

export interface PoolUsage {
  readonly kind: PoolKind
  readonly range: string
  readonly size: number
  readonly used: number
}

/** How full the pools are. An address that is in two pools counts twice. */
export async function readPoolUsage(db: Db): Promise<readonly PoolUsage[]> {
  const { rows } = await sql<Omit<PoolUsage, 'size'>>`
    select kind, range, coalesce(used, 0)::int as used from address_pools
      left join (select pool_id, count(*) as used from allocations group by pool_id) as given on pool_id = id
    order by kind, id`.execute(db)
  return rows.map((row) => {
    const parsed = parseRange(row.kind, row.range)
    return { ...row, size: parsed.ok ? Number(parsed.value.size) : 0 }
  })
}

/** A part of a pool: the numbers from `from` to `to`. */
interface Window {
  readonly pool: Pool
  readonly from: number
  readonly to: number
}

/** All numbers of pools in windows, in the order of their places, from a place on and then from the first one on. */
function* windows(pools: readonly Pool[], start: number): Generator<Window> {
  let length = SEARCH_WINDOW
  for (const [low, high] of [
    [start, Infinity],
    [0, start],
  ] as const)
    for (const pool of pools) {
      const { offset, range } = pool
      const end = Math.min(high - offset, Number(range.size))
      for (let from = Math.max(low - offset, 0); from < end; length *= 4) {
        const next = Math.min(from + length, end)
        yield { pool, from, to: next - 1 }
        from = next
      }
    }
}

/** Gives a holder the first number of a window whose address nothing has. Undefined: there is none. */
async function takeFree(
  tx: Tx,
  pools: readonly Pool[],
  { id, kind, range }: Pool,
  from: number,
  to: number,
  holder: string,
): Promise<number | undefined> {
  /** With its own bounds: PostgreSQL may read all numbers of the pool between them. */
  const isFree = sql.join(
    pools
      .filter((other) => overlap(range, other.range))
      .map((other) => {
        // a text: pg takes no BigInt
        const offset = sql`${String(range.first - other.range.first)}::bigint`
        return sql`
          not exists (
            select from allocations
            where pool_id = ${other.id} and allocations.number = wanted.number + ${offset}
              and allocations.number between ${from}::bigint + ${offset} and ${to}::bigint + ${offset})`
      }),
    sql` and `,
  )
  const address = sql<string>`${`${kind} `} || (${String(range.first)}::numeric + number)`
  for (;;) {
    // the limit inside: else PostgreSQL may lock all that are free
    const search = sql<{ number: number }>`
      select number from (
        select number from generate_series(${from}::bigint, ${to}::bigint) as wanted (number)
        where ${isFree} order by number limit ${CANDIDATES}) as free
      where ${tryLock('address', address)} limit 1`
    const [found] = await runPrepared(tx, search)
    if (found === undefined) return undefined
    // looks again, in a statement that sees what was committed before the lock
    const insert = sql`
      insert into allocations (pool_id, number, holder)
      select ${id}::integer, number, ${holder} from (values (${found.number}::bigint)) as wanted (number)
      where ${isFree} on conflict do nothing returning true`
    if ((await runPrepared(tx, insert)).length === 1) return found.number
  }
}
