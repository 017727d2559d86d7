/** Images. The region file and snapshots of servers make them. changes/images.ts has their states. */
import type { InferResult, Selectable } from 'kysely'
import Type, { type Static } from 'typebox'
import { requestAction } from '../changes/actions.ts'
import {
  shortDescription,
  deleteImage,
  findImage,
  imageCanBecome,
  isVisibleTo,
  updateImage,
  type ImageState,
  type ImageValues,
} from '../changes/images.ts'
import type { Tables } from '../database/tables.ts'
import type { Reader } from '../database/transaction.ts'
import { LONG_BODY_LIMIT } from '../http/body.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, byText, equals } from './lists.ts'
import { Members } from './members.ts'
import {
  alwaysNull,
  ARCHITECTURES,
  GivenName,
  NESTED,
  NullableString,
  SHORT_IMAGE_COLUMNS,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'
import { addWait } from './waiting.ts'

const Image = Type.Object(
  {
    ...NESTED.image.schema.properties,
    source_type: Type.String(),
    compatibility_mode: Type.Boolean(),
    min_ram: Type.Union([Type.Integer(), Type.Null()]),
    disk_size: Type.Integer({ description: 'MB.' }),
    virtual_size: Type.Integer({ description: 'MB.' }),
    licence_name: NullableString,
    ancestor: alwaysNull(NESTED.image.schema),
  },
  { title: 'Image' },
)
const Update = Type.Object(
  {
    name: Type.Optional(GivenName),
    username: Type.Optional(GivenName),
    description: Type.Optional(Type.Union([Type.String({ maxLength: 65_536 }), Type.Null()])),
    arch: Type.Optional(Type.Enum([...ARCHITECTURES])),
    status: Type.Optional(Type.Enum(['available', 'deprecated'])),
    public: Type.Optional(Type.Boolean()),
    compatibility_mode: Type.Optional(Type.Boolean()),
    min_ram: Type.Optional(
      Type.Union([Type.Integer({ minimum: 1, maximum: 2_147_483_647 }), Type.Null()], { description: 'MB.' }),
    ),
  },
  { title: 'ImageChange', examples: [{ name: 'golden', description: 'web server, configured' }] },
)
/** A deleted image does not exist for clients. */
const WAITABLE = ['creating', 'available', 'deprecated', 'failed', 'deleting'] as const satisfies readonly ImageState[]

/** Adds the routes. */
export function addImageRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, site, compute } = parts
  const load = async (database: Reader, accountId: string, id: string) =>
    fullImage(site, await findImage(database, accountId, id))
  const images = new Members(server, parts, RESOURCES.image, Image, load)

  addList(server, RESOURCES.image, {
    description: 'Those of the account, and the public ones of others. Descriptions have at most 255 characters.',
    form: Image,
    order: [byText('images.name'), byText('images.id')],
    filters: { name: equals('images.name'), status: equals('images.status') },
    select: ({ caller }) => selectImages(db).where(isVisibleTo(caller.accountId)),
    represent: (rows) => rows.map((row) => collectedImage(site, row)),
  })
  images.get('By its id or handle, with its whole description.')
  addWait(server, parts, RESOURCES.image, { form: Image, states: WAITABLE, canBecome: imageCanBecome, load })
  images.update(
    {
      summary: 'Change an image of the account',
      description: 'Fields that are left out stay. Images of others cannot be changed (403).',
      body: Update,
      bodyLimit: LONG_BODY_LIMIT,
    },
    (tx, { accountId, id, body }) => updateImage(tx, accountId, id, valuesOf(body)),
  )
  images.change(
    'DELETE',
    '/images/:id',
    {
      operationId: 'deleteImage',
      summary: 'Delete an image of the account',
      description: 'Refused (409) while it is locked or a server uses it.',
      status: 202,
    },
    async (tx, { accountId, id: named }) => {
      const { id, source_server_id: serverId } = await deleteImage(tx, accountId, named)
      if (serverId !== null) await requestAction(tx, compute, serverId, { kind: 'delete_image', imageId: id })
      return fullImage(site, await tx.selectFrom('images').selectAll().where('id', '=', id).executeTakeFirstOrThrow())
    },
  )
  images.lock((tx, { accountId, id }, locked) => updateImage(tx, accountId, id, { locked }))
}

/** What a request sets. Null clears a text. */
function valuesOf({
  name,
  username,
  description,
  arch,
  status,
  public: isPublic,
  compatibility_mode,
  min_ram,
}: Static<typeof Update>): ImageValues {
  const text = (given: string | null | undefined) => (given === null ? '' : given)
  return {
    name: text(name),
    username: text(username),
    description: text(description),
    arch,
    status,
    public: isPublic,
    compatibility_mode,
    min_ram,
  }
}

/** Images as lists show them. A subquery reads the descriptions after the rows are sorted, so only those of a page. */
function selectImages(database: Reader) {
  return database
    .selectFrom('images')
    .select([
      ...SHORT_IMAGE_COLUMNS,
      'images.source_type',
      'images.compatibility_mode',
      'images.min_ram',
      'images.disk_size',
      'images.virtual_size',
      'images.licence_name',
    ])
    .select((eb) =>
      eb
        .selectFrom('images as described')
        .select(shortDescription('described').as('description'))
        .whereRef('described.id', '=', 'images.id')
        .$asScalar()
        .$notNull()
        .as('description'),
    )
}
type Row = InferResult<ReturnType<typeof selectImages>>[number]

/** The full form: it alone has the whole description. */
function fullImage(site: Site, row: Selectable<Tables['images']>): Static<typeof Image> {
  return { ...collectedImage(site, row), description: row.description }
}

function collectedImage(site: Site, row: Row): Static<typeof Image> {
  const { source_type, compatibility_mode, min_ram, disk_size, virtual_size, licence_name } = row
  return {
    ...NESTED.image.show(site, row),
    ...{ source_type, compatibility_mode, min_ram, disk_size, virtual_size, licence_name },
    ancestor: null,
  }
}
