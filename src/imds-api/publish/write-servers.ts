/**
 * Writes the current records of servers to the store, without waiting between them, and moves the servers
 * (changes/handshake.ts).
 *
 *   published, unchanged   the server is `active` (or, removed from the store, `deleted`)
 *   stale                  the store has a higher revision than the database: a restored backup, or a seal by imdsctl.
 *                          Publish above it.
 *   incarnation, invalid, address-owned, failed
 *                          the server keeps the fault. `incarnation`: the store has another server with this id, and
 *                          keeps it. That happens after a restore of an older database (reconcile.ts).
 */
import { sql } from 'kysely'
import type { Log } from '../../runtime/log-codes.ts'
import { TurnBudget } from '../../limits/turn-budget.ts'
import {
  StoreUnavailable,
  type Publisher,
  type PutRefusal,
  type PutResult,
  type RemoveResult,
} from '../../store/publisher.ts'
import { cancelActions } from '../changes/actions.ts'
import { finishPublish, OTHER_INCARNATION } from '../changes/handshake.ts'
import { setValues } from '../changes/own-rows.ts'
import type { Tx } from '../database/transaction.ts'
import { composeMany, type Composed } from './compose.ts'

/**
 * `noteOrder`: of region-database.ts. `hasToStop`: an error of the store is no fault of a server then, since a stop
 * closes it.
 */
export interface WriteParts {
  readonly store: Pick<Publisher, 'put' | 'remove'>
  readonly noteOrder: (order: number) => void
  readonly count: (result: PublishOutcome) => void
  readonly hasToStop: () => boolean
  readonly log: Log
}

export const PUBLISH_OUTCOMES = [
  'published',
  'unchanged',
  'removed',
  'stale',
  'incarnation',
  'invalid',
  'address-owned',
  'failed',
] as const
export type PublishOutcome = (typeof PUBLISH_OUTCOMES)[number]

interface Failed {
  readonly kind: 'failed'
  readonly reason: string
}
type Refused = Exclude<PutRefusal, { kind: 'stale' }> | Failed

/** Returns those that the store refuses. */
export async function writeServers(parts: WriteParts, tx: Tx, ids: readonly string[]): Promise<ReadonlySet<string>> {
  const refused = new Set<string>()
  for (let waiting = ids; waiting.length > 0;) {
    const ready: Composed[] = []
    for (const server of await composeMany(tx, waiting)) ready.push(await withoutActions(tx, server))
    waiting = await writeEach(parts, tx, ready, refused)
  }
  return refused
}

/** Returns those that have to be published above the revision of the store. */
async function writeEach(
  parts: WriteParts,
  tx: Tx,
  servers: readonly Composed[],
  refused: Set<string>,
): Promise<string[]> {
  const { count, log, store } = parts
  const stale: string[] = []
  for (const { server, result } of await eachInStore(parts, servers, (one) => writeOne(store, one))) {
    const { id } = server
    switch (result.kind) {
      case 'published':
      case 'unchanged':
      case 'removed':
      case 'absent':
        count(result.kind === 'absent' ? 'removed' : result.kind)
        if (result.kind !== 'absent') parts.noteOrder(result.order)
        await finishPublish(tx, id, server)
        break
      case 'stale': {
        await checkTransactionOpen(tx)
        count('stale')
        log.warn(
          { code: 'revision-behind', server: id, revision: server.revision, inStore: result.revision },
          'the store has a higher revision of this server: publishing above it',
        )
        await tx
          .updateTable('servers')
          .set({ revision: result.revision + 1 })
          .where('id', '=', id)
          .where('revision', '<=', result.revision)
          .execute()
        stale.push(id)
        break
      }
      case 'incarnation':
        if (isLeaving(server) && !server.awaitsCompute) {
          count('removed') // the store has nothing of it
          await finishPublish(tx, id, server)
        } else refused.add(await recordRefusal(parts, tx, server, result))
        break
      default:
        refused.add(await recordRefusal(parts, tx, server, result))
    }
  }
  return stale
}

/** A server whose id the store has given to another has nothing there, and no hypervisor got an action for it. */
async function withoutActions(tx: Tx, server: Composed): Promise<Composed> {
  const isOther = server.fault?.startsWith(OTHER_INCARNATION) === true
  return isOther && isLeaving(server) && server.awaitsCompute && (await cancelActions(tx, server.id))
    ? { ...server, awaitsCompute: false }
    : server
}

/**
 * Rejects if PostgreSQL has ended the transaction and its locks, because this process was suspended: another process
 * may have published the servers, so an unexpected record in the store is no fault.
 */
async function checkTransactionOpen(tx: Tx): Promise<void> {
  await sql`select`.execute(tx)
}

/**
 * Asks the store about all servers at once, and returns the results in order. An error of one server is its result. Any
 * other error rejects, once nothing is in flight.
 */
async function eachInStore<T>(
  { hasToStop }: WriteParts,
  servers: readonly Composed[],
  ask: (server: Composed) => Promise<T>,
): Promise<{ readonly server: Composed; readonly result: T | Failed }[]> {
  const budget = new TurnBudget() // a record is checked, and perhaps encrypted, before it is sent
  const writes: Promise<T | Failed>[] = []
  for (const server of servers) {
    writes.push(
      ask(server).catch((error: unknown): Failed => {
        if (error instanceof StoreUnavailable || hasToStop()) throw error
        return { kind: 'failed', reason: (error as Error).message }
      }),
    )
    writes.at(-1)!.catch(() => undefined) // reported below
    await budget.spend(0)
  }
  await Promise.allSettled(writes)
  const results = await Promise.all(writes)
  return servers.map((server, i) => ({ server, result: results[i]! }))
}

/** True also for a deleted server: a store that lost the removal may have its record again. */
function isLeaving({ status }: Composed): boolean {
  return status === 'deleting' || status === 'deleted'
}

function writeOne(store: Pick<Publisher, 'put' | 'remove'>, server: Composed): Promise<PutResult | RemoveResult> {
  const { id, awaitsCompute, revision, record, userData } = server
  return isLeaving(server) && !awaitsCompute
    ? store.remove(id, revision, { incarnation: record.incarnation })
    : store.put(record, userData ?? 'none')
}

/** Keeps a refusal with its server, whose id it returns: the condition server-refused names it. */
async function recordRefusal({ count }: WriteParts, tx: Tx, { id }: Composed, refusal: Refused): Promise<string> {
  count(refusal.kind)
  await setValues(tx, 'servers', id, { publish_fault: formatFault(refusal) })
  return id
}

function formatFault(refusal: Refused): string {
  if (refusal.kind === 'failed') return refusal.reason
  if (refusal.kind === 'incarnation')
    return (
      `${OTHER_INCARNATION}the store has another server with this id, or had it until lately. This happens after a ` +
      'restore of an older database: delete this server, run imds-api reconcile, and create it again'
    )
  return refusal.kind === 'invalid'
    ? `invalid: ${refusal.faults.map(({ path, message }) => `${path} ${message}`).join('; ')}`
    : `address-owned: ${refusal.address} of the network ${refusal.network} belongs to ${refusal.owner}`
}
