/**
 * Images. database/visible-images.ts says which an account sees. The region file and snapshots of servers make images.
 *
 *   creating --> available <--PUT--> deprecated
 *   creating --> failed
 *   available, deprecated, failed --DELETE--> deleting --> deleted
 *   deleting --> failed
 */
import type { Selectable } from 'kysely'
import Type, { type Static } from 'typebox'
import { LONG_BODY_LIMIT } from '../http/body.ts'
import { requestAction, type ComputeMode } from '../changes/actions.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { isVisibleTo } from '../changes/visible-images.ts'
import { fieldFault, noSuch, refuse, type Refusal } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { GivenName, listOf, NestedImage, nestedImage, NullableString, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Image = Type.Object(
  {
    ...NestedImage.properties,
    source_type: Type.String(),
    compatibility_mode: Type.Boolean(),
    min_ram: Type.Union([Type.Integer(), Type.Null()]),
    disk_size: Type.Integer({ description: 'MB.' }),
    virtual_size: Type.Integer({ description: 'MB.' }),
    licence_name: NullableString,
    ancestor: Type.Null(),
  },
  { title: 'Image' },
)
const Update = Type.Object({
  name: Type.Optional(GivenName),
  username: Type.Optional(GivenName),
  description: Type.Optional(Type.Union([Type.String({ maxLength: 65_536 }), Type.Null()])),
  arch: Type.Optional(Type.Enum(['i686', 'x86_64'])),
  status: Type.Optional(Type.Enum(['available', 'deprecated'])),
  public: Type.Optional(Type.Boolean()),
  compatibility_mode: Type.Optional(Type.Boolean()),
  min_ram: Type.Optional(
    Type.Union([Type.Integer({ minimum: 1, maximum: 2_147_483_647 }), Type.Null()], { description: 'MB.' }),
  ),
})
const TAGS = ['Images']
const Params = Type.Object({ id: Type.String({ description: 'The id, or the handle.' }) })

/** Adds the routes. */
export function addImageRoutes(server: ApiServer, { db, accounts, site, compute }: ResourceParts): void {
  server.get(
    '/images',
    { schema: { summary: 'List images', tags: TAGS, response: { 200: listOf(Image) } } },
    async ({ caller }) =>
      (await selectImages(db, caller.accountId).orderBy('name').orderBy('id').execute()).map((row) =>
        collect(site, row),
      ),
  )

  server.get(
    '/images/:id',
    { schema: { summary: 'Get an image', tags: TAGS, params: Params, response: { 200: Image } } },
    async ({ caller, params: { id } }) => await load(db, site, caller.accountId, id),
  )

  server.put(
    '/images/:id',
    {
      bodyLimit: LONG_BODY_LIMIT,
      schema: {
        summary: 'Change an image of the account',
        tags: TAGS,
        params: Params,
        body: Update,
        response: { 200: Image },
      },
    },
    async ({ caller, params, body }) =>
      await accounts.commit(caller, async (tx) => {
        const image = await lockImage(tx, caller.accountId, params.id)
        const { name, username, description, arch, status, public: isPublic, compatibility_mode, min_ram } = body
        if (status !== undefined && !CHANGEABLE.includes(image.status))
          throw refuse('resource_conflict', `${image.id} is ${image.status}: its status cannot be changed`)
        if (isPublic === true && !image.public && !(await mayPublish(tx, caller.accountId))) {
          throw refuse(
            'forbidden',
            fieldFault(
              'public',
              'not_allowed',
              `public: ${caller.accountId} may not publish images: the operator of the region can allow it`,
            ),
          )
        }
        const text = (given: string | null | undefined) => (given === null ? '' : given)
        const asked = {
          name: text(name),
          username: text(username),
          description: text(description),
          arch,
          status,
          public: isPublic,
          compatibility_mode,
          min_ram,
        }
        const values = Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== undefined))
        if (Object.keys(values).length > 0)
          await tx.updateTable('images').set(values).where('id', '=', image.id).execute()
        return load(tx, site, caller.accountId, image.id)
      }),
  )

  server.delete(
    '/images/:id',
    {
      schema: {
        summary: 'Delete an image of the account',
        description: 'Refused (409) while it is locked or a server uses it.',
        tags: TAGS,
        params: Params,
        response: { 202: Image },
      },
    },
    async ({ caller, params }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          const image = await lockImage(tx, caller.accountId, params.id)
          await remove(tx, compute, image)
          return representMember(tx, site, image.id)
        }),
      ),
  )

  for (const [verb, locked] of [
    ['lock', true],
    ['unlock', false],
  ] as const) {
    server.put(
      `/images/:id/${verb}_resource`,
      {
        schema: {
          summary: `${locked ? 'Lock' : 'Unlock'} an image`,
          description: 'A locked image cannot be deleted.',
          tags: TAGS,
          params: Params,
          response: { 200: Image },
        },
      },
      async ({ caller, params }) =>
        await accounts.commit(caller, async (tx) => {
          const image = await lockImage(tx, caller.accountId, params.id)
          await tx.updateTable('images').set({ locked }).where('id', '=', image.id).execute()
          return representMember(tx, site, image.id)
        }),
    )
  }
}

/** The states between which a PUT moves an image. */
const CHANGEABLE = ['available', 'deprecated']

/** The images that an account may see. */
function selectImages(database: Reader, accountId: string) {
  return database.selectFrom('images').selectAll().where(isVisibleTo(accountId))
}

async function find(database: Reader, accountId: string, id: string) {
  return selectImages(database, accountId)
    .where((where) => where.or([where('id', '=', id), where('handle', '=', id)]))
    .executeTakeFirst()
}

async function load(database: Reader, site: Site, accountId: string, id: string): Promise<Static<typeof Image>> {
  const row = await find(database, accountId, id)
  if (row === undefined) throw noSuch('image', id)
  return represent(site, row)
}

/** Loads an image of the account and locks its row. */
async function lockImage(tx: Tx, accountId: string, id: string): Promise<Selectable<Tables['images']>> {
  const visible = await find(tx, accountId, id)
  if (visible === undefined) throw noSuch('image', id)
  if (visible.account_id !== accountId) throw refuse('forbidden', `${visible.id} does not belong to this account`)
  return tx.selectFrom('images').selectAll().where('id', '=', visible.id).forUpdate().executeTakeFirstOrThrow()
}

async function mayPublish(tx: Tx, accountId: string): Promise<boolean> {
  return (
    await tx.selectFrom('accounts').select('publish_images').where('id', '=', accountId).executeTakeFirstOrThrow()
  ).publish_images
}

/** Deletes an image. The row stays, because servers that are deleted refer to it. */
async function remove(
  tx: Tx,
  compute: ComputeMode,
  { id, status, locked, source_server_id: serverId }: Selectable<Tables['images']>,
): Promise<Refusal | undefined> {
  if (locked) throw refuse('resource_conflict', `${id} is locked: unlock it first`)
  if (['creating', 'deleting'].includes(status)) throw refuse('resource_conflict', `${id} is ${status}`)
  const user = await tx
    .selectFrom('servers')
    .select('id')
    .where('image_id', '=', id)
    .where('deleted_at', 'is', null)
    .limit(1)
    .executeTakeFirst()
  // not named: it may be another account's, if the image is public
  if (user !== undefined) throw refuse('resource_conflict', `a server uses ${id}`)
  await tx
    .updateTable('images')
    .set({ status: serverId === null ? 'deleted' : 'deleting' })
    .where('id', '=', id)
    .execute()
  if (serverId !== null) await requestAction(tx, compute, serverId, { kind: 'delete_image', imageId: id })
  return undefined
}

async function representMember(tx: Tx, site: Site, id: string): Promise<Static<typeof Image>> {
  return represent(site, await tx.selectFrom('images').selectAll().where('id', '=', id).executeTakeFirstOrThrow())
}

/** The full form: it alone has the whole description. */
function represent(site: Site, row: Selectable<Tables['images']>): Static<typeof Image> {
  return { ...collect(site, row), description: row.description }
}

function collect(site: Site, row: Selectable<Tables['images']>): Static<typeof Image> {
  const { source_type, compatibility_mode, min_ram, disk_size, virtual_size, licence_name } = row
  return {
    ...nestedImage(site, row),
    source_type,
    compatibility_mode,
    min_ram,
    disk_size,
    virtual_size,
    licence_name,
    ancestor: null,
  }
}
