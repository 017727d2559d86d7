/**
 * Compares the store with the database: which records are missing, different or too many. Writes nothing. It may run
 * beside imds-api: what differs is read again after a moment, and servers that wait to be published are left out.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { sql } from 'kysely'
import { StoreUnavailable, type Listed, type Publisher } from '../../store/publisher.ts'
import { composeMany, type Composed } from './compose.ts'
import { emptyIfAbsent } from './survey.ts'
import type { Db } from '../database/transaction.ts'

/**
 * How the store differs for a server. `missing`: it has no record. `different`: in these fields of the record, in
 * `user-data`, or in `index`, what the store's list has of it. `unreadable`: the record cannot be read. `unknown`: the
 * database has no such server.
 */
export interface StoreDifference {
  readonly server: string
  readonly finding: 'missing' | 'different' | 'unreadable' | 'unknown'
  readonly fields?: readonly string[]
}

/** `servers`: those of the database. `waiting`: those among them that wait to be published. */
export interface StoreComparison {
  readonly servers: number
  readonly waiting: number
  readonly differences: readonly StoreDifference[]
}

const BATCH = 50
/** By then a change in flight has arrived, or waits in the outbox. */
const RECHECK_AFTER_MS = 1_000
/** Fields of a record that the store fills in. */
const STORE_FIELDS = ['userData', 'sealedAt']

type Store = Pick<Publisher, 'list' | 'get'>

/** Compares all servers. Rejects without the store. */
export async function compareStore(db: Db, store: Store): Promise<StoreComparison> {
  const listed = await listById(store)
  const ids = await idsOf(db)
  const known = new Set(ids)
  const unknown = [...listed.keys()].filter((id) => !known.has(id))
  const first = [
    ...unknown.map((server) => ({ server, finding: 'unknown' }) as const),
    ...(await compareServers(db, store, ids, listed)),
  ]
  const differences = first.length === 0 ? [] : await recheck(db, store, first)
  const waiting = await waitingOf(db, ids)
  return {
    servers: ids.length,
    waiting: waiting.size,
    differences: differences.filter(({ server }) => !waiting.has(server)),
  }
}

export async function findOnlyInStore(db: Db, store: Store): Promise<{ unknown: string[]; records: number }> {
  const listed = await listById(store) // first: a server is in the database before it is in the store
  const known = new Set(await idsOf(db))
  return { unknown: [...listed.keys()].filter((id) => !known.has(id)), records: listed.size }
}

async function recheck(db: Db, store: Store, first: readonly StoreDifference[]): Promise<StoreDifference[]> {
  await sleep(RECHECK_AFTER_MS)
  const listed = await listById(store)
  const known = new Set(await idsOf(db))
  const [ours, others] = [
    first.filter(({ server }) => known.has(server)).map(({ server }) => server),
    first.filter(({ server, finding }) => finding === 'unknown' && !known.has(server) && listed.has(server)),
  ]
  const differences = await compareServers(db, store, ours, listed)
  return [...differences, ...others].sort((a, b) => (a.server < b.server ? -1 : 1))
}

async function listById(store: Store): Promise<ReadonlyMap<string, Listed>> {
  return new Map((await emptyIfAbsent(store.list())).map((one) => [one.id, one]))
}

async function compareServers(
  db: Db,
  store: Store,
  ids: readonly string[],
  listed: ReadonlyMap<string, Listed>,
): Promise<StoreDifference[]> {
  const differences: StoreDifference[] = []
  for (let i = 0; i < ids.length; i += BATCH) {
    const some = ids.slice(i, i + BATCH)
    const waiting = await waitingOf(db, some)
    const servers = (await composeMany(db, some)).filter(({ id, status }) => status !== 'deleted' && !waiting.has(id))
    const compared = await Promise.all(servers.map((one) => compareOne(store, one, listed.get(one.id))))
    differences.push(...compared.filter((one) => one !== undefined))
  }
  return differences
}

async function compareOne(
  store: Store,
  { id, record, userData }: Composed,
  listed: Listed | undefined,
): Promise<StoreDifference | undefined> {
  let published
  try {
    published = await store.get(id)
  } catch (error) {
    if (error instanceof StoreUnavailable) throw error
    return { server: id, finding: 'unreadable' }
  }
  if (published === undefined) return { server: id, finding: 'missing' }
  const [expected, found] = [JSON.parse(JSON.stringify(record)), published.document] as Record<string, unknown>[]
  const fields = [...new Set([...Object.keys(expected!), ...Object.keys(found ?? {})])].filter(
    (field) => !STORE_FIELDS.includes(field) && !isDeepStrictEqual(expected![field], found?.[field]),
  )
  if (!Buffer.from(userData ?? '').equals(published.userData ?? Buffer.alloc(0))) fields.push('user-data')
  const { revision, hypervisors } = record
  if (listed?.revision !== revision || !isDeepStrictEqual(listed.hypervisors.toSorted(), hypervisors.toSorted()))
    fields.push('index')
  return fields.length === 0 ? undefined : { server: id, finding: 'different', fields: fields.sort() }
}

async function idsOf(db: Db): Promise<string[]> {
  const rows = await db.selectFrom('servers').select('id').where('deleted_at', 'is', null).orderBy('id').execute()
  return rows.map(({ id }) => id)
}

async function waitingOf(db: Db, ids: readonly string[]): Promise<Set<string>> {
  const { rows } = await sql<{ id: string }>`
    select distinct server_id as id from outbox where server_id = any(${[...ids]})`.execute(db)
  return new Set(rows.map(({ id }) => id))
}
