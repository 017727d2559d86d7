/** Images. The region file and snapshots of servers make them. changes/images.ts has their states. */
import { sql } from 'kysely'
import Type, { type Static } from 'typebox'
import { accountOf } from '../auth/caller.ts'
import { requestAction } from '../changes/actions.ts'
import {
  deleteImage,
  imageCanBecome,
  isVisibleTo,
  shortDescription,
  updateImage,
  type ImageValues,
} from '../changes/images.ts'
import { MAX_LONG_BODY_BYTES } from '../http/body.ts'
import { alwaysNull, Field, Form } from './kit/forms.ts'
import { byText } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { addWait } from './kit/waiting.ts'
import { ARCHITECTURES, NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenName, givenTexts, Megabytes, nullable, NullableString } from './kit/schemas.ts'

const FIELDS = {
  ...NESTED.image.fields,
  source_type: Type.String(),
  compatibility_mode: Type.Boolean(),
  min_ram: nullable(Type.Integer()),
  disk_size: Megabytes,
  virtual_size: Megabytes,
  licence_name: NullableString,
  ancestor: alwaysNull(NESTED.image.schema),
}
const { schema, show } = NESTED.image.fields['description'] as Field
/** It alone has the whole description. */
const Image = new Form('image', { ...FIELDS, description: schema })
/** A subquery reads the descriptions after the rows are sorted, so only those of a page. */
const Collected = new Form('image', {
  ...FIELDS,
  description: new Field(
    schema,
    sql`(select ${shortDescription('described')} from images as described where described.id = images.id)`,
    show,
  ),
})
const Update = Type.Partial(
  Type.Object({
    name: GivenName,
    username: GivenName,
    description: nullable(Type.String({ maxLength: 65_536 })),
    arch: Type.Enum([...ARCHITECTURES]),
    status: Type.Enum(['available', 'deprecated']),
    public: Type.Boolean(),
    compatibility_mode: Type.Boolean(),
    min_ram: nullable(Type.Integer({ minimum: 1, maximum: 2_147_483_647 }), { description: 'MB.' }),
  }),
  { title: 'ImageChange', examples: [{ name: 'golden', description: 'web server, configured' }] },
)

export function addImageRoutes(parts: ResourceParts): void {
  const { site, compute } = parts
  const images = new Members(parts, {
    form: Image,
    collected: Collected,
    rows: (request) => ({ where: isVisibleTo(accountOf(request)) }),
  })

  images.list({
    description: 'Those of the account, and the public ones of others. Descriptions have at most 255 characters.',
    order: [byText('images.name'), byText('images.id')],
  })
  images.get('By its id or handle, with its whole description.')
  addWait(images, parts, imageCanBecome)
  images.update(
    {
      summary: 'Change an image of the account',
      description: 'Fields that are left out stay. Images of others cannot be changed (403).',
      body: Update,
      options: { bodyLimit: MAX_LONG_BODY_BYTES },
    },
    ({ tx, accountId, id, body }) => updateImage(tx, accountId, id, valuesOf(body)),
  )
  images.change(
    'DELETE',
    images.path,
    'Delete',
    {
      summary: 'Delete an image of the account',
      description: 'Refused (409) while it is locked or a server uses it.',
      status: 202,
    },
    async ({ tx, accountId, id: named }) => {
      const { id, source_server_id: serverId } = await deleteImage(tx, accountId, named)
      if (serverId !== null) await requestAction(tx, compute, serverId, { kind: 'delete_image', imageId: id })
      return Image.load(tx, site, id, { where: sql`true` }) // it may be deleted already
    },
  )
  images.lock(({ tx, accountId, id }, locked) => updateImage(tx, accountId, id, { locked }))
}

function valuesOf({ name, username, description, ...others }: Static<typeof Update>): ImageValues {
  return { ...others, ...givenTexts({ name, username, description }) }
}
