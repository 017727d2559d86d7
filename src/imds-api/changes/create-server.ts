/**
 * Creates a server: finds what the request names, places the server on a hypervisor, gives it addresses and keys, and
 * asks for the action `create`.
 */
import { sql } from 'kysely'
import { fieldFault, noSuchIn, refuse, Refusal, type Detail } from '../model/refusal.ts'
import { completeOptions, tagsFault } from '../model/metadata-options.ts'
import { compactUserData, userDataFault } from '../model/user-data.ts'
import { nextId } from './allocate.ts'
import { requestAction, type ComputeMode } from './actions.ts'
import { reserveCloudIp } from './cloud-ips.ts'
import { allocateInterface } from './interfaces.ts'
import { refuseBeyondLimit } from './limits.ts'
import { usersOf } from './members.ts'
import { placeServer } from './hypervisors.ts'
import { refuseBeyondRecord } from './record-limits.ts'
import { joinGroups, missingGroups } from './server-groups.ts'
import type { ServerValues } from './server-requests.ts'
import { runPrepared } from '../database/prepared.ts'
import type { Tx } from '../database/transaction.ts'
import { shortDescription, isVisibleTo } from './images.ts'
import { addRow, findLocked, isNamed } from './own-rows.ts'

/** The values of a new server. `image`, `serverType` and `zone`: ids or handles. */
export interface NewServer extends ServerValues {
  readonly image: string
  readonly serverType: string | undefined
  readonly zone: string | undefined
  readonly cloudIp: boolean | string
  readonly diskEncrypted: boolean
}

/**
 * Returns the id of the new server. Locks its hypervisor. The account must be
 * locked.
 */
export async function createServer(tx: Tx, compute: ComputeMode, accountId: string, given: NewServer): Promise<string> {
  const found = await findNamedResources(tx, accountId, given)
  await refuseBeyondLimit(tx, accountId, 'ram_limit', found.serverType.ram)
  const id = await nextId(tx, 'srv')
  const ownInterface = await allocateInterface(tx, id)
  // late: other creates there wait for it until the commit
  const hypervisor = await placeServer(tx, { zoneId: found.zoneId, ram: found.serverType.ram })
  if (hypervisor === undefined)
    throw refuse(
      'insufficient_capacity',
      `no hypervisor of the ${found.zoneId === undefined ? 'region' : 'zone'} has ` +
        `${found.serverType.ram} MB of RAM free`,
    )
  await addRow(tx, 'servers', {
    id,
    account_id: accountId,
    name: given.name ?? '',
    status: 'creating',
    image_id: found.image.id,
    ...(found.image.texts !== null && { image_texts: found.image.texts }),
    server_type_id: found.serverType.id,
    zone_id: hypervisor.zone_id,
    hypervisor: hypervisor.name,
    user_data: typeof given.user_data === 'string' ? compactUserData(given.user_data) : null,
    compatibility_mode: given.compatibility_mode ?? found.image.compatibility_mode,
    disk_encrypted: given.diskEncrypted,
    architecture: found.image.arch === 'i686' ? 'i386' : found.image.arch,
    metadata_options:
      given.metadata_options === undefined ? null : JSON.stringify(completeOptions(given.metadata_options, {})),
    tags: JSON.stringify(given.tags ?? {}),
  })
  await joinGroups(tx, id, found.groupIds)
  await copyKeys(tx, accountId, id)
  await addRow(tx, 'interfaces', ownInterface)
  if (given.cloudIp !== false) await reserveCloudIp(tx, accountId, ownInterface.id, given.cloudIp)
  await refuseBeyondRecord(tx, [id])
  await requestAction(tx, compute, id, { kind: 'create' })
  return id
}

/**
 * Finds the resources that the request names, or refuses with all faults at once. Locks the image, type, zone, groups
 * and cloud IP against deletion until the commit.
 */
async function findNamedResources(tx: Tx, accountId: string, given: NewServer) {
  const faults = [
    typeof given.user_data === 'string' ? userDataFault(given.user_data) : undefined,
    tagsFault(given.tags ?? {}),
  ].filter((fault) => fault !== undefined)
  const image = await checkImage(tx, accountId, given.image, faults)
  const serverType = await checkServerType(tx, given.serverType, image, faults)
  const zoneId = given.zone === undefined ? undefined : await checkZone(tx, given.zone, faults)
  const { server_groups: groupIds = [] } = given
  faults.push(...(await missingGroups(tx, accountId, groupIds)))
  const { cloudIp } = given
  if (typeof cloudIp === 'string' && (await findLocked(tx, 'cloudIp', accountId, cloudIp)) === undefined)
    faults.push(noSuchIn('cloud_ip', 'cloud IP', cloudIp, '/1.0/cloud_ips'))
  if (faults.length > 0 || image === undefined || serverType === undefined)
    throw new Refusal('unprocessable_entity', faults)
  return {
    image,
    serverType,
    zoneId,
    groupIds: groupIds.length > 0 ? groupIds : await lockDefaultGroup(tx, accountId),
  }
}

/** `texts`: JSON, of another account's image. */
async function checkImage(tx: Tx, accountId: string, name: string, faults: Detail[]) {
  const query = tx
    .selectFrom('images')
    .select(['id', 'status', 'arch', 'compatibility_mode', 'min_ram'])
    .select(
      sql<string | null>`case when account_id <> ${accountId} then json_build_object(
        'name', name, 'username', username, 'description', ${shortDescription('images')}, 'arch', arch)::text end`.as(
        'texts',
      ),
    )
    .where(isNamed(name))
    .where(isVisibleTo(accountId))
    .forKeyShare()
  const [image] = await runPrepared(tx, query)
  if (image === undefined) faults.push(noSuchIn('image', 'image', name, '/1.0/images'))
  else if (image.status !== 'available')
    faults.push(fieldFault('image', 'not_available', `image: ${name} is ${image.status}: name one that is available`))
  return image
}

/** `name` undefined: the smallest available type that has enough RAM for the image. */
async function checkServerType(
  tx: Tx,
  name: string | undefined,
  image: { readonly id: string; readonly min_ram: number | null } | undefined,
  faults: Detail[],
) {
  const minRam = image?.min_ram ?? 0
  const types = tx.selectFrom('server_types').select(['id', 'handle', 'ram']).where('removed_at', 'is', null).limit(1)
  const matching =
    name === undefined
      ? types
          .where('status', '=', 'available')
          .orderBy((type) => type('ram', '<', minRam))
          .orderBy('ram')
          .orderBy('id')
      : types.where('status', '!=', 'deprecated').where(isNamed(name))
  const [serverType] = await runPrepared(tx, matching.forKeyShare())
  if (serverType === undefined) {
    faults.push(
      name === undefined
        ? fieldFault('server_type', 'missing', 'server_type: name one, because the region has none that is available')
        : noSuchIn('server_type', 'server type', name, '/1.0/server_types', ', or is deprecated'),
    )
  } else if (serverType.ram < minRam) {
    const message =
      `server_type: ${serverType.handle} has ${serverType.ram} MB of RAM, ` +
      `and the image ${image!.id} needs at least ${minRam}`
    faults.push(fieldFault('server_type', 'out_of_range', message))
  }
  return serverType
}

async function checkZone(tx: Tx, name: string, faults: Detail[]): Promise<string | undefined> {
  const zone = await tx
    .selectFrom('zones')
    .select('id')
    .where('removed_at', 'is', null)
    .where(isNamed(name))
    .forKeyShare()
    .executeTakeFirst()
  if (zone === undefined) faults.push(noSuchIn('zone', 'zone', name, '/1.0/zones'))
  return zone?.id
}

async function lockDefaultGroup(tx: Tx, accountId: string): Promise<string[]> {
  const groups = tx.selectFrom('server_groups').select('id').where('account_id', '=', accountId)
  return (await runPrepared(tx, groups.where('is_default', '=', true).forKeyShare())).map(({ id }) => id)
}

/**
 * Copies the present SSH keys of the account's users: of the owner and of the accepted collaborators. Later changes of
 * a key affect only newer servers.
 */
async function copyKeys(tx: Tx, accountId: string, serverId: string): Promise<void> {
  const copy = sql`
    insert into server_keys (server_id, user_id, key)
    select ${serverId}, users.id, users.ssh_key from users
    where users.ssh_key is not null and users.id in ${usersOf(sql`array[${accountId}]::text[]`)}`
  await runPrepared(tx, copy)
}
