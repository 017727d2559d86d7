/**
 * The states of cloud IPs, and their transitions.
 *
 *   unmapped --map--> mapped --unmap--> unmapped
 *   unmapped --reserve, for a new server--> reserved --confirm, once its record is in the store--> mapped
 *   mapped, reserved --release, when their destination is deleted or fails--> unmapped
 */
import { sql, type RawBuilder, type Selectable } from 'kysely'
import { markChanged } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import type { CloudIpStatus } from '../model/resources.ts'
import type { PortTranslator } from '../model/port-translator.ts'
import { fieldFault, notFound, refuse } from '../model/refusal.ts'
import { transitions } from '../model/transitions.ts'
import { allocateAddress, countUnreleasedCloudIps, freeCloudIp, freeReleased, nextId } from './allocate.ts'
import { refuseBeyondLimit } from './limits.ts'
import { addRow, findLocked, lockRow, setValues } from './own-rows.ts'
import { refuseBeyondRecord } from './record-limits.ts'

type CloudIp = Selectable<Tables['cloud_ips']>

/** The transitions: the states that each can start from, and the state that it leads to. */
const TRANSITIONS = {
  map: { from: ['unmapped'], to: 'mapped' },
  unmap: { from: ['mapped'], to: 'unmapped' },
  reserve: { from: ['unmapped'], to: 'reserved' },
  confirm: { from: ['reserved'], to: 'mapped' },
  release: { from: ['mapped', 'reserved'], to: 'unmapped' },
} as const
export type CloudIpTransition = keyof typeof TRANSITIONS

export const { after: cloudIpAfter, canBecome: cloudIpCanBecome } = transitions<CloudIpStatus, CloudIpTransition>(
  TRANSITIONS,
)

/** Where a cloud IP is mapped to. At most one is set. */
export type Destination = Pick<CloudIp, 'interface_id' | 'server_group_id' | 'database_server_id'>
const NO_DESTINATION: Destination = { interface_id: null, server_group_id: null, database_server_id: null }

/** The only SQL that writes a status. Moves the cloud IPs of `which` for which the transition is possible. */
export async function moveCloudIps(
  tx: Tx,
  transition: CloudIpTransition,
  which: RawBuilder<boolean>,
  destination?: Destination,
): Promise<void> {
  const { from, to } = TRANSITIONS[transition]
  const effect =
    to === 'unmapped' ? NO_DESTINATION : destination && { ...destination, mapped_at: sql<Date>`clock_timestamp()` }
  await tx
    .updateTable('cloud_ips')
    .set({ status: to, ...effect })
    .where('status', 'in', from)
    .where(which)
    .execute()
}

const withId = (id: string) => sql<boolean>`id = ${id}`
/** True for the cloud IPs of a server, of a server group, and of database servers. */
export const atServer = (id: string): RawBuilder<boolean> =>
  sql`interface_id in (select id from interfaces where server_id = ${id})`
export const atGroup = (id: string): RawBuilder<boolean> => sql`server_group_id = ${id}`
export const atDatabaseServers = (ids: readonly string[]): RawBuilder<boolean> =>
  sql`database_server_id = any(${[...ids]})`

export interface CloudIpValues {
  readonly name?: string
  readonly reverse_dns?: string | null
  readonly port_translators?: readonly PortTranslator[]
}

const columnsOf = ({ port_translators, ...values }: CloudIpValues) => ({
  ...values,
  ...(port_translators !== undefined && { port_translators: JSON.stringify(port_translators) }),
})

/** Creates an unmapped cloud IP for an account, within its limit, and returns its id. The account must be locked. */
export async function createCloudIp(tx: Tx, accountId: string, values: CloudIpValues = {}): Promise<string> {
  const { used, most } = await refuseBeyondLimit(tx, accountId, 'cloud_ips_limit')
  // Otherwise an account could use up the pool by creating and deleting cloud IPs while the store is unreachable.
  const kept = await countUnreleasedCloudIps(tx, accountId)
  if (used + kept >= 2 * most)
    throw refuse('service_unavailable', `${kept} deleted cloud IPs are not released yet: try again in a few seconds`)
  await freeReleased(tx)
  const id = await nextId(tx, 'cip')
  const [ipv4, ipv6] = [await allocateAddress(tx, 'public_ipv4', id), await allocateAddress(tx, 'public_ipv6', id)]
  if (ipv4 === undefined || ipv6 === undefined)
    throw refuse('insufficient_capacity', 'the region has no free public address')
  const fresh = { id, account_id: accountId, public_ipv4: ipv4.address, public_ipv6: ipv6.address }
  const defaults = { name: '', port_translators: '[]', status: 'unmapped' } as const
  await addRow(tx, 'cloud_ips', { ...fresh, ...defaults, ...columnsOf(values) })
  return id
}

export async function updateCloudIp(tx: Tx, accountId: string, id: string, values: CloudIpValues): Promise<void> {
  await lockRow(tx, 'cloudIp', accountId, id)
  await setValues(tx, 'cloud_ips', id, columnsOf(values))
}

/** Deletes a cloud IP that is not mapped. Its addresses go back to the region. */
export async function deleteCloudIp(tx: Tx, accountId: string, id: string): Promise<void> {
  const { status } = await lockRow(tx, 'cloudIp', accountId, id)
  if (status !== 'unmapped') throw refuse('resource_conflict', stateFault(id, status))
  await freeCloudIp(tx, accountId, id)
  await tx.deleteFrom('cloud_ips').where('id', '=', id).execute()
}

export async function mapCloudIp(tx: Tx, accountId: string, id: string, destinationId: string): Promise<void> {
  await lockFor('map', tx, accountId, id)
  const destination = await findDestination(tx, accountId, destinationId)
  await moveCloudIps(tx, 'map', withId(id), destination)
  const servers = await serversAt(tx, destination)
  await markChanged(tx, servers)
  await refuseBeyondRecord(tx, servers)
}

export async function unmapCloudIp(tx: Tx, accountId: string, id: string): Promise<void> {
  const current = await lockFor('unmap', tx, accountId, id)
  const servers = await serversAt(tx, current)
  await moveCloudIps(tx, 'unmap', withId(id))
  await markChanged(tx, servers)
}

/** Reserves a cloud IP of the account for the interface of a new server. `given`: its id; true: a new cloud IP. */
export async function reserveCloudIp(
  tx: Tx,
  accountId: string,
  interfaceId: string,
  given: true | string,
): Promise<void> {
  const id = given === true ? await createCloudIp(tx, accountId) : given
  const { status } = await lockRow(tx, 'cloudIp', accountId, id)
  if (cloudIpAfter(status, 'reserve') === undefined)
    throw refuse('resource_conflict', fieldFault('cloud_ip', 'not_available', `cloud_ip: ${stateFault(id, status)}`))
  await moveCloudIps(tx, 'reserve', withId(id), { ...NO_DESTINATION, interface_id: interfaceId })
}

/** Locks a cloud IP. Refuses if its state does not allow a transition. */
async function lockFor(transition: CloudIpTransition, tx: Tx, accountId: string, id: string): Promise<CloudIp> {
  const row = await lockRow(tx, 'cloudIp', accountId, id)
  if (cloudIpAfter(row.status, transition) === undefined) throw refuse('resource_conflict', stateFault(id, row.status))
  return row
}

/** Says why the state does not allow a transition, and the remedy. */
function stateFault(id: string, status: CloudIpStatus): string {
  switch (status) {
    case 'unmapped':
      return `${id} is not mapped`
    case 'mapped':
      return `${id} is mapped: unmap it first`
    case 'reserved':
      return `${id} is reserved for a server that is being created: wait until it is mapped, or delete that server`
  }
}

/**
 * Finds a destination in the account and locks it until the commit: it cannot be deleted, and no server can join it.
 */
async function findDestination(tx: Tx, accountId: string, id: string): Promise<Destination> {
  const [kind] = id.split('-', 1)
  switch (kind) {
    case 'int':
    case 'srv': {
      const column = kind === 'int' ? 'interfaces.id' : 'servers.id'
      return { ...NO_DESTINATION, interface_id: await findInterface(tx, accountId, column, id) }
    }
    case 'grp':
      if ((await findLocked(tx, 'serverGroup', accountId, id)) === undefined) throw notFound(`the destination ${id}`)
      return { ...NO_DESTINATION, server_group_id: id }
    case 'dbs':
      await lockDatabaseServer(tx, accountId, id)
      return { ...NO_DESTINATION, database_server_id: id }
    case 'lba':
      throw notFound(`the destination ${id}`)
    default:
      throw refuse(
        'unprocessable_entity',
        fieldFault(
          'destination',
          'wrong_kind',
          'destination must be the id of an interface, a server, a server group or a database server',
        ),
      )
  }
}

/** The first interface, of a server that is not being deleted, that has the id in a column. */
async function findInterface(
  tx: Tx,
  accountId: string,
  column: 'interfaces.id' | 'servers.id',
  id: string,
): Promise<string> {
  const found = await tx
    .selectFrom('interfaces')
    .innerJoin('servers', 'servers.id', 'interfaces.server_id')
    .select('interfaces.id')
    .where('servers.account_id', '=', accountId)
    .where('servers.status', 'not in', ['deleting', 'deleted'])
    .where(column, '=', id)
    .orderBy('interfaces.created_at')
    .limit(1)
    .forNoKeyUpdate('servers')
    .executeTakeFirstOrThrow(() => notFound(`the destination ${id}`))
  return found.id
}

async function lockDatabaseServer(tx: Tx, accountId: string, id: string): Promise<void> {
  const found = await findLocked(tx, 'databaseServer', accountId, id)
  if (found === undefined || ['deleting', 'deleted'].includes(found.status)) throw notFound(`the destination ${id}`)
  if (['failing', 'failed'].includes(found.status)) throw refuse('resource_conflict', `${id} is ${found.status}`)
}

/** The servers whose records have the cloud IPs of a destination. Locks a group, so that no server joins it. */
async function serversAt(tx: Tx, { interface_id, server_group_id }: Destination): Promise<string[]> {
  if (server_group_id !== null) {
    await tx.selectFrom('server_groups').select('id').where('id', '=', server_group_id).forUpdate().execute()
    const members = tx.selectFrom('server_group_members').select('server_id')
    return (await members.where('server_group_id', '=', server_group_id).execute()).map((row) => row.server_id)
  }
  if (interface_id === null) return []
  const interfaces = tx.selectFrom('interfaces').select('server_id').where('id', '=', interface_id)
  return (await interfaces.execute()).map((row) => row.server_id)
}
