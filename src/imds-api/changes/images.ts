/**
 * The states of images, and their transitions. An image comes from the region file (available or deprecated) or is a
 * snapshot of a server.
 *
 *   creating --complete--> available <--deprecate, restore--> deprecated
 *   creating --fail--> failed
 *   available, deprecated, failed --delete, a snapshot--> deleting --erase--> deleted
 *   deleting --fail--> failed
 *   available, deprecated, failed --forget, an image of the region file--> deleted
 *
 * The region file can give an image any status: one that is none of these counts as `failed`.
 */
import { sql, type RawBuilder, type Selectable, type Updateable } from 'kysely'
import type { ImageTexts, Tables } from '../database/tables.ts'
import type { Db, Tx } from '../database/transaction.ts'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import { ROWS } from '../model/resources.ts'
import { formatTime } from '../model/time.ts'
import { transitions } from '../model/transitions.ts'
import { nextId } from './allocate.ts'
import { addRow, isNamed, setValues } from './own-rows.ts'

type Image = Selectable<Tables['images']>

export const IMAGE_STATES = [...ROWS.image.states, 'deleted'] as const
export type ImageState = (typeof IMAGE_STATES)[number]

/**
 * The length of an image's description in lists and in other resources. Each list has the public images of other
 * accounts.
 */
export const MAX_IMAGE_DESCRIPTION = 255
/** The part of an image's description that lists and other resources show. */
export function shortDescription(images: string): RawBuilder<string> {
  return sql`left(${sql.ref(`${images}.description`)}, ${sql.lit(MAX_IMAGE_DESCRIPTION)})`
}

/** The transitions: the states that each can start from, and the state that it leads to. */
const TRANSITIONS = {
  complete: { from: ['creating'], to: 'available' },
  fail: { from: ['creating', 'deleting'], to: 'failed' },
  deprecate: { from: ['available', 'deprecated'], to: 'deprecated' },
  restore: { from: ['available', 'deprecated'], to: 'available' },
  delete: { from: ['available', 'deprecated', 'failed'], to: 'deleting' },
  erase: { from: ['deleting'], to: 'deleted' },
  forget: { from: ['available', 'deprecated', 'failed'], to: 'deleted' },
} as const
export type ImageTransition = keyof typeof TRANSITIONS
export const { after: imageAfter, canBecome: stateCanBecome } = transitions<ImageState, ImageTransition>(TRANSITIONS)

export function imageCanBecome(from: string, to: ImageState): boolean {
  return stateCanBecome(imageState(from), to)
}

export function imageState(status: string): ImageState {
  return IMAGE_STATES.find((state) => state === status) ?? 'failed'
}

/** The only SQL that writes a status. False: the transition is not possible. The row must be locked. */
async function move(tx: Tx, { id, status }: Pick<Image, 'id' | 'status'>, name: ImageTransition): Promise<boolean> {
  const next = imageAfter(imageState(status), name)
  const effect = next === 'deleted' ? { description: '' } : {}
  if (next !== undefined) await setValues(tx, 'images', id, { status: next, ...effect })
  return next !== undefined
}

/**
 * True for an image that is not deleted and that an account may see: its own, and the public ones of the region and of
 * the accounts that may publish images. `accountId`: an id or an expression. For a query of `images`.
 */
export function isVisibleTo(accountId: string | RawBuilder<string>): RawBuilder<boolean> {
  return sql`(
    images.status <> 'deleted' and (
      images.account_id = ${accountId}
      or (images.public and (
        images.account_id is null
        or images.account_id = any(array(select id from accounts where publish_images))
      ))
    )
  )`
}

/** Finds an image that an account may see by its id or handle. */
async function findImage(db: Db, accountId: string, id: string): Promise<Image> {
  return db
    .selectFrom('images')
    .selectAll()
    .where(isVisibleTo(accountId))
    .where(isNamed(id))
    .executeTakeFirstOrThrow(() => noSuch('image', id))
}

/** The image of a server, as the server's account sees it. `isVisible`: the result of isVisibleTo. */
export function imageOfServer<T extends ImageTexts & Pick<Image, 'account_id' | 'source'>>(
  image: T,
  { isVisible, texts }: { readonly isVisible: boolean; readonly texts: ImageTexts | null },
): T {
  return isVisible || image.account_id === null ? image : { ...image, ...texts, source: '', account_id: null }
}

/**
 * Creates the image of a snapshot and returns its id. It belongs to the server's account. Its `virtual_size` is the
 * disk of the server; user name, architecture, size and licence are those of the server's image.
 */
export async function createSnapshot(tx: Tx, server: Selectable<Tables['servers']>): Promise<string> {
  const { is_visible: isVisible, ...image } = await tx
    .selectFrom('images')
    .selectAll()
    .select(isVisibleTo(server.account_id).as('is_visible'))
    .where('id', '=', server.image_id)
    .executeTakeFirstOrThrow()
  const { username, arch, licence_name, disk_size } = imageOfServer(image, { isVisible, texts: server.image_texts })
  const { disk_size: virtual_size } = await tx
    .selectFrom('server_types')
    .select('disk_size')
    .where('id', '=', server.server_type_id)
    .executeTakeFirstOrThrow()
  const id = await nextId(tx, 'img')
  await addRow(tx, 'images', {
    id,
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
    disk_size,
    virtual_size,
    licence_name,
    source_server_id: server.id,
  })
  return id
}

/** Records the compute system's report on a snapshot. */
export async function finishImage(tx: Tx, id: string, transition: 'complete' | 'erase' | 'fail'): Promise<void> {
  await move(tx, await lockById(tx, id, 'change'), transition)
}

export type ImageValues = Pick<
  Updateable<Tables['images']>,
  'name' | 'username' | 'description' | 'arch' | 'public' | 'compatibility_mode' | 'min_ram' | 'locked'
> & { readonly status?: 'available' | 'deprecated' | undefined }

export async function updateImage(
  tx: Tx,
  accountId: string,
  name: string,
  { status, ...values }: ImageValues,
): Promise<void> {
  const image = await lockImage(tx, accountId, name, 'change')
  if (status !== undefined && !(await move(tx, image, status === 'available' ? 'restore' : 'deprecate')))
    throw refuse('resource_conflict', `${image.id} is ${image.status}: its status cannot be changed`)
  if (values.public === true && !image.public && !(await mayPublish(tx, accountId)))
    throw refuse(
      'forbidden',
      fieldFault(
        'public',
        'not_allowed',
        `public: ${accountId} may not publish images: the operator of the region can allow it`,
      ),
    )
  await setValues(tx, 'images', image.id, values)
}

/**
 * Deletes an image of the account and returns it as it was, and the rows of earlier ones. The row stays while servers
 * refer to it, deleted ones too. A snapshot is `deleting` until the compute system has deleted it: ask for that.
 */
export async function deleteImage(tx: Tx, accountId: string, name: string): Promise<Image> {
  const image = await lockImage(tx, accountId, name, 'delete')
  const { id, status, locked, source_server_id: serverId } = image
  if (locked) throw refuse('resource_conflict', `${id} is locked: unlock it first`)
  if (!(await move(tx, image, serverId === null ? 'forget' : 'delete')))
    throw refuse('resource_conflict', `${id} is ${status}`)
  const user = await tx
    .selectFrom('servers')
    .select('id')
    .where('image_id', '=', id)
    .where('deleted_at', 'is', null)
    .limit(1)
    .executeTakeFirst()
  // not named: it may be another account's, if the image is public
  if (user !== undefined) throw refuse('resource_conflict', `a server uses ${id}`)
  await purgeImages(tx, sql`account_id = ${accountId} and id <> ${id}`)
  return image
}

/**
 * Deletes the rows of deleted images that no server refers to. Those of the region file stay, because applying it would
 * make them again.
 */
export async function purgeImages(db: Db, which: RawBuilder<unknown>): Promise<void> {
  await sql`
    delete from images
    where status = 'deleted' and ${which}
      -- in the order of an index: with \`not exists\` a plan may read all servers
      and (select image_id from servers where image_id >= images.id order by image_id limit 1) is distinct from images.id
      and not exists (select from given_ids where given_ids.id = images.id)`.execute(db)
}

/** `delete`: waits for creates of servers, of all accounts, that name the image; a change of it does not. */
type ImageLock = 'change' | 'delete'

async function lockImage(tx: Tx, accountId: string, name: string, lock: ImageLock): Promise<Image> {
  const { id, account_id: owner } = await findImage(tx, accountId, name)
  if (owner !== accountId) throw refuse('forbidden', `${id} does not belong to this account`)
  return lockById(tx, id, lock)
}

function lockById(tx: Tx, id: string, lock: ImageLock): Promise<Image> {
  const image = tx.selectFrom('images').selectAll().where('id', '=', id)
  return (lock === 'delete' ? image.forUpdate() : image.forNoKeyUpdate()).executeTakeFirstOrThrow()
}

async function mayPublish(tx: Tx, accountId: string): Promise<boolean> {
  const account = tx.selectFrom('accounts').select('publish_images').where('id', '=', accountId)
  return (await account.executeTakeFirstOrThrow()).publish_images
}
