/**
 * Detects an id that the store already uses. That happens after a restore of an older backup: the database gives the
 * same ids again, and the store still has the records of running servers, perhaps of other accounts.
 *
 * A server claims its id in its own transaction before the first publish, so after a kill its record is not taken for
 * that of another server.
 */
import type { Publisher } from '../../store/publisher.ts'
import { TAKEN_PREFIX } from '../changes/servers.ts'
import type { Composed } from './compose.ts'

/** Another server in the store that has the id. `account`: undefined if only its tombstone is left. */
export interface TakenId {
  readonly kind: 'taken'
  readonly account: string | undefined
}

/** Returns the other server with the id of this one, or undefined. Writes nothing. */
export async function findTakenId(
  store: Pick<Publisher, 'get' | 'put'>,
  { id, record, userData }: Composed,
): Promise<TakenId | undefined> {
  const found = await store.get(id)
  if (found !== undefined) return { kind: 'taken', account: accountOf(found.document) }
  const trial = await store.put(record, userData ?? 'none', { dryRun: true }) // only this shows a tombstone
  return trial.kind === 'stale' ? { kind: 'taken', account: undefined } : undefined
}

/** Returns the account of the record in the store if it is not that of the server. */
export async function findOtherAccount(
  store: Pick<Publisher, 'get'>,
  { id, record }: Composed,
): Promise<TakenId | undefined> {
  const found = await store.get(id)
  const account = found && accountOf(found.document)
  return account === undefined || account === record.account ? undefined : { kind: 'taken', account }
}

/** Formats the fault, with its remedy. */
export function formatTakenId({ account }: TakenId): string {
  const other =
    account === undefined
      ? 'had another server with this id, which was removed'
      : `has another server with this id, of the account ${account}`
  return (
    `${TAKEN_PREFIX}the store ${other}. This happens after a restore of an older database: ` +
    'delete this server, run imds-api advance, and create it again'
  )
}

function accountOf(document: unknown): string | undefined {
  const { account } = (document ?? {}) as { account?: unknown }
  return typeof account === 'string' ? account : undefined
}
