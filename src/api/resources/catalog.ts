/** What a region offers, read only: zones, server types and images. The region file sets them. */
import Type from 'typebox'
import type { ApiServer } from '../server.ts'
import { notFound } from '../refusal.ts'
import { listOf, NestedImage, nestedImage, NestedServerType, nestedServerType, NestedZone, nestedZone, NullableString, type ImageRow, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Image = Type.Object({
  ...NestedImage.properties, source_type: Type.String(), compatibility_mode: Type.Boolean(), min_ram: Type.Union([Type.Integer(), Type.Null()]),
  disk_size: Type.Integer({ description: 'MB.' }), virtual_size: Type.Integer({ description: 'MB.' }), licence_name: NullableString, ancestor: Type.Null(),
}, { title: 'Image' })
const Params = Type.Object({ id: Type.String({ description: 'The id, or the handle.' }) })

/** Adds the lists and members of zones, server types and images. */
export function addCatalogRoutes(server: ApiServer, { tables, site }: ResourceParts): void {
  server.get('/zones', { schema: { summary: 'List zones', tags: ['Zones'], response: { 200: listOf(NestedZone) } } }, async () =>
    (await tables.selectFrom('zones').selectAll().orderBy('handle').execute()).map((row) => nestedZone(site, row)))
  server.get('/zones/:id', { schema: { summary: 'Get a zone', tags: ['Zones'], params: Params, response: { 200: NestedZone } } }, async ({ params: { id } }, reply) => {
    const row = await tables.selectFrom('zones').selectAll().where((where) => where.or([where('id', '=', id), where('handle', '=', id)])).executeTakeFirst()
    return reply.answer(200, row === undefined ? notFound(`the zone ${id}`) : nestedZone(site, row))
  })

  server.get('/server_types', { schema: { summary: 'List server types', tags: ['Server types'], response: { 200: listOf(NestedServerType) } } }, async () =>
    (await tables.selectFrom('server_types').selectAll().orderBy('ram').orderBy('id').execute()).map((row) => nestedServerType(site, row)))
  server.get('/server_types/:id', { schema: { summary: 'Get a server type', tags: ['Server types'], params: Params, response: { 200: NestedServerType } } }, async ({ params: { id } }, reply) => {
    const row = await tables.selectFrom('server_types').selectAll().where((where) => where.or([where('id', '=', id), where('handle', '=', id)])).executeTakeFirst()
    return reply.answer(200, row === undefined ? notFound(`the server type ${id}`) : nestedServerType(site, row))
  })

  const images = (accountId: string) => tables.selectFrom('images').selectAll()
    .where((where) => where.or([where('public', '=', true), where('account_id', '=', accountId)]))
  server.get('/images', { schema: { summary: 'List images', tags: ['Images'], response: { 200: listOf(Image) } } }, async ({ caller }) =>
    (await images(caller.accountId).orderBy('name').orderBy('id').execute()).map((row) => representImage(site, row)))
  server.get('/images/:id', { schema: { summary: 'Get an image', tags: ['Images'], params: Params, response: { 200: Image } } }, async ({ caller, params: { id } }, reply) => {
    const row = await images(caller.accountId).where((where) => where.or([where('id', '=', id), where('handle', '=', id)])).executeTakeFirst()
    return reply.answer(200, row === undefined ? notFound(`the image ${id}`) : representImage(site, row))
  })
}

type FullImageRow = ImageRow & {
  readonly source_type: string
  readonly compatibility_mode: boolean
  readonly min_ram: number | null
  readonly disk_size: number
  readonly virtual_size: number
  readonly licence_name: string | null
}

function representImage(site: Site, row: FullImageRow) {
  const { source_type, compatibility_mode, min_ram, disk_size, virtual_size, licence_name } = row
  return { ...nestedImage(site, row), source_type, compatibility_mode, min_ram, disk_size, virtual_size, licence_name, ancestor: null }
}
