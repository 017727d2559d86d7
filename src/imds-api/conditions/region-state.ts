/** Reads the state of a region: hypervisors, outbox, refused servers, pools, actions and invitations. */
import { sql } from 'kysely'
import { readActionQueue, type ActionQueueState } from '../changes/action-queue.ts'
import { readPoolUsage, type PoolUsage } from '../changes/allocate.ts'
import { isUnsent } from '../changes/invitations.ts'
import { findRefusedServers, type RefusedServer } from '../changes/rebuild.ts'
import { readOutbox, type OutboxState } from '../database/outbox.ts'
import { readHypervisors, type RegionHypervisors } from '../publish/hypervisors.ts'
import type { Db } from '../database/transaction.ts'

const MAX_REFUSED = 50

/** The state of a region. `refused`: the first of them. `invitations`: how many could not be sent, and why one of them. */
export interface RegionState {
  readonly region: string
  readonly hypervisors: RegionHypervisors
  readonly outbox: OutboxState
  readonly refused: readonly RefusedServer[]
  readonly pools: readonly PoolUsage[]
  readonly actions: ActionQueueState
  readonly invitations: { readonly unsent: number; readonly fault: string }
}

export type ReadRegion = () => Promise<RegionState>

/** Those who ask while the region is read share the answer: all gauges of a scrape, and its conditions. */
export function buildRegionReader(db: Db, openStore: Parameters<typeof readHypervisors>[1]): ReadRegion {
  let reading: Promise<RegionState> | undefined
  return () =>
    (reading ??= readRegion(db, openStore).finally(() => {
      reading = undefined
    }))
}

async function readRegion(db: Db, openStore: Parameters<typeof readHypervisors>[1]): Promise<RegionState> {
  const { name: region } = await db.selectFrom('region').select('name').executeTakeFirstOrThrow()
  const {
    rows: [invitations],
  } = await sql<RegionState['invitations']>`
    select count(send_fault) as unsent, coalesce(min(send_fault), '') as fault from collaborations where ${isUnsent}`.execute(
    db,
  )
  return {
    region,
    hypervisors: await readHypervisors(db, openStore),
    outbox: await readOutbox(db),
    refused: await findRefusedServers(db, MAX_REFUSED),
    pools: await readPoolUsage(db),
    actions: await readActionQueue(db),
    invitations: invitations!,
  }
}
