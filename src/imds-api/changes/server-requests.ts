/** Changes of a server by clients: its values, its lock, its deletion and its actions. */
import type { Selectable } from 'kysely'
import { markChanged } from '../database/outbox.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'
import { completeOptions, tagsFault, type MetadataOptions } from '../model/metadata-options.ts'
import { refuse, refuseAny } from '../model/refusal.ts'
import type { ServerAction } from '../model/server-actions.ts'
import { compactUserData, userDataFault } from '../model/user-data.ts'
import {
  expectedStatus,
  refuseBeyondOpenActions,
  requestAction,
  supersedeActions,
  type ComputeMode,
} from './actions.ts'
import { atServer, moveCloudIps } from './cloud-ips.ts'
import { createSnapshot } from './images.ts'
import { refuseBeyondLimit } from './limits.ts'
import { lockRow, setValues } from './own-rows.ts'
import { refuseBeyondRecord } from './record-limits.ts'
import { missingGroups, setGroups } from './server-groups.ts'
import { purgeOldestDeleted } from './server-purge.ts'
import { moveServer, serverAfter } from './servers.ts'

type Server = Selectable<Tables['servers']>
const CONSOLE_SECONDS = 900

/** The values that a client can set. `user_data`: base64. A missing value stays unchanged. */
export interface ServerValues {
  readonly name?: string
  readonly user_data?: string | null
  readonly server_groups?: readonly string[]
  readonly compatibility_mode?: boolean
  readonly metadata_options?: Partial<MetadataOptions>
  readonly tags?: Readonly<Record<string, string>>
}

/** Loads a server that is not being deleted, and locks its row. */
export async function lockServer(tx: Tx, accountId: string, id: string): Promise<Server> {
  const row = await lockRow(tx, 'server', accountId, id)
  if (serverAfter(row.status, 'delete') === undefined) throw refuse('resource_conflict', `${id} is ${row.status}`)
  return row
}

/** Changes the values of a locked server. Refuses with all faults at once. */
export async function updateServer(tx: Tx, server: Server, values: ServerValues): Promise<void> {
  const { id, account_id, metadata_options: present } = server
  const { name, user_data, compatibility_mode, server_groups, metadata_options, tags } = values
  const faults = [
    typeof user_data === 'string' ? userDataFault(user_data) : undefined,
    tagsFault(tags ?? {}),
    ...(await missingGroups(tx, account_id, server_groups ?? [])),
  ].filter((fault) => fault !== undefined)
  refuseAny('unprocessable_entity', faults)
  await setValues(tx, 'servers', id, {
    name,
    user_data: typeof user_data === 'string' ? compactUserData(user_data) : user_data,
    compatibility_mode,
    metadata_options: metadata_options && JSON.stringify(completeOptions(metadata_options, present ?? {})),
    tags: tags && JSON.stringify(tags),
  })
  if (server_groups !== undefined) await setGroups(tx, id, server_groups)
  const seenByGuests = [user_data, server_groups, metadata_options, tags]
  if (seenByGuests.every((value) => value === undefined)) return
  await markChanged(tx, [id])
  await refuseBeyondRecord(tx, [id])
}

/** Begins the deletion of a server. It frees the cloud IPs now, and the other addresses when its record is removed. */
export async function deleteServer(tx: Tx, compute: ComputeMode, accountId: string, id: string): Promise<void> {
  const { locked } = await lockServer(tx, accountId, id)
  if (locked) throw refuse('resource_conflict', `${id} is locked: unlock it first`)
  await moveCloudIps(tx, 'release', atServer(id))
  await setGroups(tx, id, [])
  await moveServer(tx, id, 'delete')
  await supersedeActions(tx, id)
  await requestAction(tx, compute, id, { kind: 'delete' })
  await purgeOldestDeleted(tx, accountId)
}

/** `consoleToken`: opens the console, for activate_console. */
export interface ServerActionRequest {
  readonly accountId: string
  readonly id: string
  readonly action: ServerAction
  readonly consoleToken: string | undefined
}

/**
 * Requests an action on a server, if it will be possible after the waiting actions. Returns the id of the
 * image of a snapshot. The server keeps only the expiry of a console token; the action has the token until it is
 * finished.
 */
export async function requestServerAction(
  tx: Tx,
  compute: ComputeMode,
  { accountId, id, action, consoleToken }: ServerActionRequest,
): Promise<string | undefined> {
  const server = await lockServer(tx, accountId, id)
  const status = await expectedStatus(tx, server)
  if (serverAfter(status, action) === undefined)
    throw refuse(
      'resource_conflict',
      `${id} is ${status}${status === server.status ? '' : ' once the actions that wait are done'}: ` +
        `${action} is not possible`,
    )
  await refuseBeyondOpenActions(tx, accountId, id)
  if (action === 'snapshot') await refuseBeyondLimit(tx, accountId, 'images_limit')
  const imageId = action === 'snapshot' ? await createSnapshot(tx, server) : undefined
  if (consoleToken !== undefined)
    await setValues(tx, 'servers', id, { console_token_expires: new Date(Date.now() + CONSOLE_SECONDS * 1000) })
  await requestAction(tx, compute, id, { kind: action, imageId, consoleToken })
  return imageId
}
