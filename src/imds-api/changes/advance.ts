/**
 * Moves the database past the store after a restore of an older backup: the restored database does not know the ids and
 * addresses that were given after the backup, and servers with them are running.
 *
 *   sequences       past every id of a record or a tombstone
 *   revisions       above those in the store; the servers are published again
 *   addresses       those of servers that only the store has stay reserved (a row of `allocations`) while the store
 *                   has the server
 *   places          of allocations: past every address of a record
 *   epoch           a new one, which invalidates cursors of lost events (changes/events.ts)
 *   id              a new one (by the caller), so that a copy of the database is refused (publish/region-database.ts)
 *
 * The store has no ids of API clients and no addresses of unmapped cloud IPs. So it also skips some ids and addresses,
 * which may have been given after the backup. Each run does so again. It may run beside imds-api.
 */
import { sql, type RawBuilder } from 'kysely'
import { formatId, PREFIXES } from '../model/ids.ts'
import { numberIn, POOL_KINDS, type PoolKind } from '../model/pools.ts'
import { enqueue } from '../database/outbox.ts'
import { lockPools, placeOf, readPools, sizeOf, type Pool } from './allocate.ts'
import type { Tx } from '../database/transaction.ts'

export interface StoredAddress {
  readonly kind: PoolKind
  readonly address: string
}
/** A server of the store. `account`: undefined if its record cannot be read. */
export interface StoredServer {
  readonly id: string
  readonly account: string | undefined
  readonly revision: number
  readonly addresses: readonly StoredAddress[]
}
/** The contents of the store. `ids`: every id in a record or a tombstone. */
export interface StoreSurvey {
  readonly servers: readonly StoredServer[]
  readonly ids: ReadonlySet<string>
}

/**
 * How many numbers after the last known one are searched for ids of the store. An id that another program chose must
 * not move a sequence far.
 */
const SEARCHED_IDS = 100_000
/**
 * The numbers to skip: ids of each kind, addresses of each kind (at most a quarter), and numbers of actions. An agent
 * would ignore a new action with the number of a finished one.
 */
const [SKIPPED_IDS, SKIPPED_ADDRESSES, SKIPPED_PART, SKIPPED_ACTIONS] = [10_000, 10_000, 4, 1_000_000]
/** The holder of an address that only a server in the store has. */
const HOLDER = 'store:'

/** When the last event was recorded: roughly the time of the backup of a restored database. */
export async function lastEventAt(tx: Tx): Promise<Date | undefined> {
  const { at } = await tx
    .selectFrom('events')
    .select(({ fn }) => fn.max<Date | null>('created_at').as('at'))
    .executeTakeFirstOrThrow()
  return at ?? undefined
}

/** Moves everything, and returns a line for each thing that it moved, and for each server that only the store has. */
export async function advance(tx: Tx, survey: StoreSurvey): Promise<readonly string[]> {
  const { moved, others } = await advanceDatabase(tx, survey, true)
  const skipped = await skipNumbers(tx)
  // Last, since it stops all publishers until the end of the transaction.
  await sql`update region set event_epoch = default`.execute(tx)
  return [...moved, skipped, ...others]
}

/** Skips numbers of all sequences that others see, and addresses of all pools. Returns a line for people. */
async function skipNumbers(tx: Tx): Promise<string> {
  const sequences: (readonly [name: string, skipped: number])[] = [
    ...PREFIXES.map((prefix) => [`ids_${prefix}`, SKIPPED_IDS] as const),
    ['compute_actions_id_seq', SKIPPED_ACTIONS],
  ]
  const pools = await readPools(tx, POOL_KINDS)
  for (const kind of POOL_KINDS) {
    const size = sizeOf(pools.filter((pool) => pool.kind === kind))
    sequences.push([placeOf(kind), Math.min(SKIPPED_ADDRESSES, Math.ceil(size / SKIPPED_PART))])
  }
  for (const [name, skipped] of sequences)
    await sql`select setval(${name}::regclass, last_value + ${skipped}) from ${sql.table(name)}`.execute(tx)
  return (
    `${SKIPPED_IDS} ids of each kind, up to ${SKIPPED_ADDRESSES} addresses of each kind and ` +
    `${SKIPPED_ACTIONS} numbers of actions are skipped`
  )
}

/**
 * Moves everything. `moved`: a line for each thing. `others`: one for each server that only the store has. `sequences`
 * false: leaves the sequences as they are, since PostgreSQL does not roll them back.
 */
export async function advanceDatabase(
  tx: Tx,
  { servers, ids }: StoreSurvey,
  sequences: boolean,
): Promise<{ readonly moved: readonly string[]; readonly others: readonly string[] }> {
  const rows = await tx
    .selectFrom('servers')
    .leftJoin('claimed_ids', 'claimed_ids.id', 'servers.id')
    .select(['servers.id', 'servers.account_id', 'claimed_ids.id as claimed_id', 'servers.deleted_at'])
    .execute()
  const known = new Map(rows.map((row) => [row.id, row]))
  const isOurs = ({ id, account }: StoredServer) => {
    const row = known.get(id)
    return row?.deleted_at === null && row.claimed_id !== null && (account === undefined || account === row.account_id)
  }
  const others = servers.filter((server) => !isOurs(server))
  const moved = [
    ...(await advanceSequences(tx, ids, sequences)),
    ...(await advanceRevisions(tx, servers.filter(isOurs))),
    ...(await keepAddresses(tx, servers, others, sequences)),
  ]
  return {
    moved,
    others: others.map(({ id, account, addresses }) =>
      known.get(id)?.deleted_at === null
        ? `${id} of ${known.get(id)!.account_id} has the id of a server of ${account ?? 'an unknown account'} ` +
          'in the store: delete it, run imds-api advance again, and create it again; the other one is left as it is'
        : `${id} of ${account ?? 'an unknown account'} is only in the store: its guest is served, and its addresses ` +
          `are kept (${addresses.map(({ address }) => address).join(', ')}). ` +
          `When its machine is gone: imdsctl remove ${id}, and imds-api advance`,
    ),
  }
}

async function advanceSequences(tx: Tx, ids: ReadonlySet<string>, moves: boolean): Promise<string[]> {
  const lines: string[] = []
  for (const prefix of PREFIXES) {
    if (![...ids].some((id) => id.startsWith(`${prefix}-`))) continue
    const sequence = sql.table(`ids_${prefix}`)
    const { rows } = await sql<{ last: number }>`
      select case when is_called then last_value else last_value - 1 end as last from ${sequence}`.execute(tx)
    let highest = rows[0]!.last
    for (let number = highest + 1; number <= highest + SEARCHED_IDS; number++)
      if (ids.has(formatId(prefix, number))) highest = number
    if (highest === rows[0]!.last) continue
    if (moves)
      await sql`
      select setval(${`ids_${prefix}`}::regclass, ${highest}) from ${sequence}
      where last_value <= ${highest}`.execute(tx)
    lines.push(`the store has ${prefix}- ids up to number ${highest}, the database up to ${rows[0]!.last}`)
  }
  return lines
}

async function advanceRevisions(tx: Tx, servers: readonly StoredServer[]): Promise<string[]> {
  const [ids, revisions] = [servers.map(({ id }) => id), servers.map(({ revision }) => revision)]
  const stored = sql`unnest(${ids}::text[], ${revisions}::bigint[]) as stored(id, revision)`
  await sql`
    select from servers join ${stored} using (id) where servers.revision < stored.revision
    order by id for no key update of servers`.execute(tx)
  const { rows } = await sql<{ id: string }>`
    update servers set revision = stored.revision + 1 from ${stored}
    where servers.id = stored.id and servers.revision < stored.revision returning servers.id`.execute(tx)
  if (rows.length === 0) return []
  await enqueue(tx, rows.map(({ id }) => id).sort())
  return [`${rows.length} servers have a higher revision in the store: they are published above it`]
}

/**
 * Keeps the addresses of `others` from new servers, frees those of servers that are gone, and moves the places of
 * allocations.
 */
async function keepAddresses(
  tx: Tx,
  servers: readonly StoredServer[],
  others: readonly StoredServer[],
  moves: boolean,
): Promise<string[]> {
  const pools = await lockPools(tx, POOL_KINDS)
  const positionsOf = (server: StoredServer) =>
    server.addresses.flatMap(({ kind, address }) =>
      pools.flatMap((pool) => {
        const number = pool.kind === kind ? numberIn(pool.range, address) : undefined
        return number === undefined ? [] : [{ pool: pool.id, number, holder: HOLDER + server.id }]
      }),
    )
  const positionTable = (positions: ReturnType<typeof positionsOf>) => sql`
    unnest(
      ${positions.map(({ pool }) => pool)}::integer[],
      ${positions.map(({ number }) => number)}::bigint[],
      ${positions.map(({ holder }) => holder)}::text[]
    ) as stored(pool_id, number, holder)`
  const freed = await sql`
    delete from allocations
    where starts_with(holder, ${HOLDER}) and not holder = any(${others.map(({ id }) => HOLDER + id)})`.execute(tx)
  const moved = await advancePlaces(tx, pools, positionTable(servers.flatMap(positionsOf)), moves)
  const kept = await sql`
    insert into allocations (pool_id, number, holder)
    select * from ${positionTable(others.flatMap(positionsOf))} on conflict do nothing`.execute(tx)
  return [
    ...moved,
    ...(Number(kept.numAffectedRows) > 0
      ? [`${String(kept.numAffectedRows)} addresses are kept for servers that only the store has`]
      : []),
    ...(Number(freed.numAffectedRows) > 0
      ? [`${String(freed.numAffectedRows)} addresses are free again, since the store no longer has their servers`]
      : []),
  ]
}

/** Moves the places of allocations past the addresses of the store that nothing has here. */
async function advancePlaces(
  tx: Tx,
  pools: readonly Pool[],
  stored: RawBuilder<unknown>,
  moves: boolean,
): Promise<string[]> {
  const { rows } = await sql<{ pool_id: number; highest: number }>`
    select pool_id, max(number) as highest from ${stored}
    where not exists (
      select from allocations
      where allocations.pool_id = stored.pool_id and allocations.number = stored.number)
    group by pool_id`.execute(tx)
  const lines: string[] = []
  for (const kind of POOL_KINDS) {
    const ofKind = pools.filter((pool) => pool.kind === kind)
    const [last] = ofKind
      .flatMap((pool) => rows.filter(({ pool_id }) => pool_id === pool.id).map(({ highest }) => ({ pool, highest })))
      .slice(-1)
    if (last === undefined) continue
    const place = last.pool.offset + last.highest
    const sequence = sql.table(placeOf(kind))
    const { rows: present } = await sql<{ next: number }>`
      select (last_value + is_called::int) % ${sizeOf(ofKind)} as next from ${sequence}`.execute(tx)
    if (present[0]!.next > place) continue
    if (moves) await sql`select setval(${placeOf(kind)}::regclass, ${place})`.execute(tx)
    lines.push(`the store has addresses of the pool ${last.pool.text} up to number ${last.highest}`)
  }
  return lines
}
