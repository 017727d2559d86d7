/**
 * Compares the store with the database: which records are missing, different or too many. Writes nothing. It may run
 * beside imds-api: what differs is read again after a moment, and servers that wait to be published do not differ.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { sql } from 'kysely'
import { splitPrefix } from '../../metadata/address.ts'
import { parse } from '../../metadata/record.ts'
import { ifThere } from '../../runtime/regular-file.ts'
import { StoreUnavailable, type Listed, type Publisher } from '../../store/publisher.ts'
import type { StoredServer } from '../changes/held-addresses.ts'
import type { Db } from '../database/transaction.ts'
import { composeMany, type Composed } from './compose.ts'

/**
 * How the store differs for a server, in words that continue its id: of the fields of its record, `user-data`, and
 * `index`, what the store's list has of it.
 */
export interface StoreDifference {
  readonly server: string
  readonly finding: string
}

/**
 * A server that only the store has. `account`: undefined if its record cannot be read: then only its private addresses
 * are known. `sharesId`: the database has another server with its id.
 */
export interface OtherServer extends StoredServer {
  readonly account: string | undefined
  readonly sharesId: boolean
}

/** `servers`: how many the database has. `waiting`: how many of them wait to be published. */
export interface StoreComparison {
  readonly servers: number
  readonly waiting: number
  readonly differences: readonly StoreDifference[]
  readonly others: readonly OtherServer[]
}

const BATCH = 50
/** By then a change in flight has arrived, or waits in the outbox. */
const RECHECK_AFTER_MS = 1_000
/** Fields of a record that the store fills in. */
const STORE_FIELDS = ['userData', 'sealedAt']
/** The network of every interface that imds-api publishes. */
const NETWORK = 'default'

type Store = Pick<Publisher, 'list' | 'get'>
type Found = StoreDifference | OtherServer

/** Compares all servers. Rejects without the store. */
export async function compareStore(db: Db, store: Store): Promise<StoreComparison> {
  const stored = await listById(store) // first: a server is in the database before it is in the store
  const servers = await idsOf(db)
  const first = await compareServers(db, store, [...new Set([...servers, ...stored.keys()])], stored)
  const ids = first.map(idOf)
  if (ids.length > 0) await sleep(RECHECK_AFTER_MS)
  const found = ids.length === 0 ? [] : await compareServers(db, store, ids, await listById(store))
  const waiting = await waitingOf(db, servers)
  return {
    servers: servers.length,
    waiting: waiting.size,
    differences: found.filter((one) => 'finding' in one).filter(({ server }) => !waiting.has(server)),
    others: found.filter((one) => 'sharesId' in one),
  }
}

function idOf(found: Found): string {
  return 'finding' in found ? found.server : found.id
}

/** A directory of files that does not exist yet has nothing. */
async function listById(store: Store): Promise<ReadonlyMap<string, Listed>> {
  return new Map(((await ifThere(store.list())) ?? []).map((one) => [one.id, one]))
}

async function compareServers(
  db: Db,
  store: Store,
  ids: readonly string[],
  stored: ReadonlyMap<string, Listed>,
): Promise<readonly Found[]> {
  const found: Found[] = []
  for (let i = 0; i < ids.length; i += BATCH) {
    const some = ids.slice(i, i + BATCH)
    const servers = new Map((await composeMany(db, some)).map((one) => [one.id, one]))
    const compared = await Promise.all(some.map((id) => compareOne(store, id, servers.get(id), stored.get(id))))
    found.push(...compared.filter((one) => one !== undefined))
  }
  return found.sort((a, b) => (idOf(a) < idOf(b) ? -1 : 1))
}

async function compareOne(
  store: Store,
  id: string,
  server: Composed | undefined,
  listed: Listed | undefined,
): Promise<Found | undefined> {
  const published = await store.get(id).catch((error: unknown) => {
    if (error instanceof StoreUnavailable) throw error
    return 'unreadable' as const
  })
  const isDeleted = server?.status === 'deleted'
  if (published === undefined)
    return server === undefined || isDeleted ? undefined : { server: id, finding: 'is missing in the store' }
  const document = published === 'unreadable' ? undefined : (published.document as Record<string, unknown> | undefined)
  const incarnation = document?.['incarnation'] ?? server?.record.incarnation
  if (server?.record.incarnation !== incarnation) return readOther(id, document, listed, server !== undefined)
  if (server === undefined) return readOther(id, document, listed, false)
  if (isDeleted) return { server: id, finding: 'is deleted here, and the store has it again' }
  if (published === 'unreadable') return { server: id, finding: 'has a record that cannot be read' }
  const fields = differingFields(server, published.document, published.userData, listed)
  return fields.length === 0 ? undefined : { server: id, finding: `differs in ${fields.join(', ')}` }
}

function differingFields(
  { record, userData }: Composed,
  document: unknown,
  published: Uint8Array | undefined,
  listed: Listed | undefined,
): string[] {
  const [expected, found] = [JSON.parse(JSON.stringify(record)), document] as Record<string, unknown>[]
  const fields = [...new Set([...Object.keys(expected!), ...Object.keys(found ?? {})])].filter(
    (field) => !STORE_FIELDS.includes(field) && !isDeepStrictEqual(expected![field], found?.[field]),
  )
  if (!Buffer.from(userData ?? '').equals(published ?? Buffer.alloc(0))) fields.push('user-data')
  const { revision, hypervisors } = record
  if (listed?.revision !== revision || !isDeepStrictEqual(listed.hypervisors.toSorted(), hypervisors.toSorted()))
    fields.push('index')
  return fields.sort()
}

/** What is known of a server that only the store has. Of a record that cannot be read, the index has some addresses. */
function readOther(id: string, document: unknown, listed: Listed | undefined, sharesId: boolean): OtherServer {
  const parsed = parse(document)
  if (!parsed.ok) {
    const addresses = (listed?.addresses ?? [])
      .filter((text) => text.startsWith(`${NETWORK} `) && !text.includes(':'))
      .map((text) => ({ kind: 'private_ipv4', address: text.slice(NETWORK.length + 1) }) as const)
    return { id, account: undefined, sharesId, addresses }
  }
  const { account, interfaces } = parsed.value
  const addresses = interfaces
    .filter(({ network }) => network === NETWORK)
    .flatMap(({ macAddress, ipv4Addresses, cloudIps }): StoredServer['addresses'] => [
      { kind: 'mac', address: macAddress },
      ...ipv4Addresses.map((address) => ({ kind: 'private_ipv4', address: splitPrefix(address).address }) as const),
      ...cloudIps.flatMap(({ publicIpv4, publicIpv6 }) => [
        { kind: 'public_ipv4', address: publicIpv4 } as const,
        ...(publicIpv6 === undefined ? [] : [{ kind: 'public_ipv6', address: publicIpv6 } as const]),
      ]),
    ])
  return { id, account, sharesId, addresses }
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
