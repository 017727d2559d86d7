/** Reads what the status page of a region shows: hypervisors, outbox, refused servers, pools and mail. */
import { sql } from 'kysely'
import { isUnsent } from '../changes/invitations.ts'
import type { Database } from '../database/open.ts'
import type { Postponed } from '../mail/sender.ts'
import { readOutbox, type Outbox } from '../database/outbox.ts'
import { parseRange, type PoolKind } from '../model/pools.ts'
import type { RegionHypervisors } from '../publish/hypervisors.ts'

/** The most servers that are listed. */
const MAX_REFUSED = 50

/** A server whose record the store refuses. */
export interface RefusedServer {
  readonly id: string
  readonly account: string
  readonly fault: string
}

/** A pool of addresses. */
export interface AddressPool {
  readonly kind: PoolKind
  readonly range: string
  readonly size: number
  readonly used: number
}

/** The state of a region. `refused`: the first of them. `postponed`: invitations that could not be sent. */
export interface RegionState {
  readonly region: string
  readonly hypervisors: RegionHypervisors
  readonly outbox: Outbox
  readonly refused: readonly RefusedServer[]
  readonly pools: readonly AddressPool[]
  readonly invitations: number
  readonly postponed: readonly Postponed[]
}

/** Where it is read. */
export interface RegionStateParts {
  readonly db: Database['db']
  readonly hypervisors: () => Promise<RegionHypervisors>
  readonly postponed: () => readonly Postponed[]
}

/** Reads it. Rejects if the database does not answer. */
export async function readRegionState({ db, hypervisors, postponed }: RegionStateParts): Promise<RegionState> {
  const { name: region } = await db.selectFrom('region').select('name').executeTakeFirstOrThrow()
  const {
    rows: [waiting],
  } = await sql<{ count: number }>`select count(*)::int as count from collaborations where ${isUnsent}`.execute(db)
  return {
    region,
    hypervisors: await hypervisors(),
    outbox: await readOutbox(db),
    refused: await readRefused(db),
    pools: await readPools(db),
    invitations: waiting!.count,
    postponed: postponed(),
  }
}

async function readRefused(db: Database['db']): Promise<readonly RefusedServer[]> {
  const { rows } = await sql<RefusedServer>`
    select id, account_id as account, publish_fault as fault from servers
    where publish_fault is not null and id in (select server_id from outbox where retry_at is not null)
    order by id limit ${MAX_REFUSED}`.execute(db)
  return rows
}

async function readPools(db: Database['db']): Promise<readonly AddressPool[]> {
  const { rows } = await sql<Omit<AddressPool, 'size'>>`
    select kind, range, (select count(*) from allocations where pool_id = address_pools.id)::int as used
    from address_pools order by kind, id`.execute(db)
  return rows.map((row) => {
    const parsed = parseRange(row.kind, row.range)
    return { ...row, size: parsed.ok ? Number(parsed.value.size) : 0 }
  })
}
