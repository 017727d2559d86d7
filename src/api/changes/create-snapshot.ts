/**
 * Creates the image of a snapshot. It belongs to the server's account, and is `creating` until the compute system has
 * made it.
 */
import type { Selectable } from 'kysely'
import { formatTime } from '../model/time.ts'
import { nextId } from './allocate.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'

/**
 * Returns the id of the new image. Its `virtual_size` is the disk of the server; user name, architecture, size and
 * licence are those of the server's image.
 */
export async function createSnapshot(tx: Tx, server: Selectable<Tables['servers']>): Promise<string> {
  const { username, arch, licence_name, disk_size } = await tx
    .selectFrom('images')
    .selectAll()
    .where('id', '=', server.image_id)
    .executeTakeFirstOrThrow()
  const { disk_size: virtual_size } = await tx
    .selectFrom('server_types')
    .select('disk_size')
    .where('id', '=', server.server_type_id)
    .executeTakeFirstOrThrow()
  const id = await nextId(tx, 'img')
  await tx
    .insertInto('images')
    .values({
      id,
      handle: null,
      account_id: server.account_id,
      name: `Snapshot of ${server.id} ${formatTime(new Date())}`,
      username,
      status: 'creating',
      locked: false,
      description: '',
      source: server.id,
      source_trigger: 'manual',
      source_type: 'snapshot',
      arch,
      official: false,
      public: false,
      compatibility_mode: server.compatibility_mode,
      min_ram: null,
      disk_size,
      virtual_size,
      licence_name,
      source_server_id: server.id,
    })
    .execute()
  return id
}
