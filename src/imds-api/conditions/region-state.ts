/** Reads the state of a region: hypervisors, outbox, refused servers, pools, actions and mail. */
import { sql } from 'kysely'
import { readActionQueue } from '../changes/action-queue.ts'
import { readPoolUsage, type PoolUsage } from '../changes/allocate.ts'
import { isUnsent } from '../changes/invitations.ts'
import { findRefusedServers, type RefusedServer } from '../changes/servers.ts'
import type { Postponed } from '../mail/sender.ts'
import { readOutbox, type OutboxState } from '../database/outbox.ts'
import type { RegionHypervisors } from '../publish/hypervisors.ts'
import type { Db } from '../database/transaction.ts'

const MAX_REFUSED = 50

/** The state of a region. `refused`: the first of them. `postponed`: invitations that could not be sent. */
export interface RegionState {
  readonly region: string
  readonly hypervisors: RegionHypervisors
  readonly outbox: OutboxState
  readonly refused: readonly RefusedServer[]
  readonly pools: readonly PoolUsage[]
  /** How long an action has waited to be fetched by its hypervisor; 0: none waits. */
  readonly unfetchedSeconds: number
  readonly invitations: number
  readonly postponed: readonly Postponed[]
}

export interface RegionStateParts {
  readonly db: Db
  readonly hypervisors: () => Promise<RegionHypervisors>
  readonly postponed: () => readonly Postponed[]
}

export async function readRegionState({ db, hypervisors, postponed }: RegionStateParts): Promise<RegionState> {
  const { name: region } = await db.selectFrom('region').select('name').executeTakeFirstOrThrow()
  const {
    rows: [waiting],
  } = await sql<{ count: number }>`select count(*)::int as count from collaborations where ${isUnsent}`.execute(db)
  return {
    region,
    hypervisors: await hypervisors(),
    outbox: await readOutbox(db),
    refused: await findRefusedServers(db, MAX_REFUSED),
    pools: await readPoolUsage(db),
    unfetchedSeconds: (await readActionQueue(db)).unfetched,
    invitations: waiting!.count,
    postponed: postponed(),
  }
}
