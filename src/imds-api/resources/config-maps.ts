/** Config maps: a name and a JSON object of any content, which responses show as it was sent. */
import type { preHandlerHookHandler } from 'fastify'
import type { Kysely } from 'kysely'
import Type from 'typebox'
import { boundedJson, setBodyParsers } from '../http/body.ts'
import { JsonMember } from '../http/idempotency.ts'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { BODY_BOUNDS, MAX_BODY_BYTES, dataFault, parseBody, type DataText } from '../model/config-data.ts'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, equals } from './lists.ts'
import { Members } from './members.ts'
import { GivenName, reference, representation, type Site } from './nested.ts'
import type { ResourceParts } from './parts.ts'
import { RESOURCES } from './table.ts'

const Collected = representation('CollectedConfigMap', RESOURCES.configMap, { name: Type.String() })
const Data = Type.Unsafe<DataText>(
  Type.Object(
    {},
    {
      additionalProperties: true,
      description:
        'At most 1,048,576 bytes of JSON, with at most 99 levels. ' +
        'It comes back as it was sent, numbers and the order of keys included.',
    },
  ),
)
const ConfigMap = Type.Object({ ...Collected.properties, data: Data }, { title: 'ConfigMap' })
const Name = Type.Optional(GivenName)

const refuseLongData: preHandlerHookHandler = ({ body }, _reply, done) => {
  const { data } = body as { readonly data?: DataText }
  const fault = data && dataFault(data)
  done(fault === undefined ? undefined : refuse('unprocessable_entity', fieldFault('data', 'too_long', fault)))
}

/** Adds the routes. Their bodies may be longer than those of other routes. */
export function addConfigMapRoutes(server: ApiServer, parts: ResourceParts): void {
  void server.register((maps: ApiServer, _options: object, done: () => void) => {
    setBodyParsers(maps, { 'application/json': boundedJson(BODY_BOUNDS, parseBody) })
    addRoutes(maps, parts)
    done()
  })
}

function addRoutes(server: ApiServer, parts: ResourceParts): void {
  const { db, site } = parts
  const configMaps = new Members(server, parts, RESOURCES.configMap, ConfigMap, (database, accountId, id) =>
    loadConfigMap(database, site, accountId, id),
  )

  addList(server, RESOURCES.configMap, {
    description: 'Those of the account, without their data.',
    form: Collected,
    filters: { name: equals('config_maps.name') },
    select: ({ caller }) =>
      db.selectFrom('config_maps').select(['id', 'name']).where('account_id', '=', caller.accountId),
    represent: (rows) => rows.map((row) => collectedConfigMap(site, row)),
  })
  configMaps.get('With its data, as it was sent.')
  configMaps.create(
    {
      description: 'A name, and a JSON object of any content.',
      body: Type.Object(
        { name: Name, data: Data },
        { title: 'NewConfigMap', examples: [{ name: 'front', data: { workers: 4 } }] },
      ),
      bodyLimit: MAX_BODY_BYTES,
      preHandler: refuseLongData,
    },
    async (tx, { accountId, body }) => {
      const { text } = body.data
      const bytes = Buffer.byteLength(text)
      await refuseBeyondLimit(tx, accountId, 'config_maps_limit')
      await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes)
      const id = await nextId(tx, 'cfg')
      await tx
        .insertInto('config_maps')
        .values({ id, account_id: accountId, name: body.name ?? '', data: text, bytes })
        .execute()
      return id
    },
  )
  configMaps.update(
    {
      description: 'Data replaces the whole map.',
      body: Type.Object(
        { name: Name, data: Type.Optional(Data) },
        { title: 'ConfigMapChange', examples: [{ data: { workers: 8 } }] },
      ),
      bodyLimit: MAX_BODY_BYTES,
      preHandler: refuseLongData,
    },
    (tx, { accountId, id, body: { name, data } }) =>
      update(tx, accountId, id, {
        ...(name !== undefined && { name: name ?? '' }),
        ...(data !== undefined && { data: data.text }),
      }),
  )
  configMaps.remove({ description: 'The response is the last that has its data.' }, async (tx, { accountId, id }) => {
    await tx.deleteFrom('config_maps').where('id', '=', id).where('account_id', '=', accountId).execute()
  })
}

/** What a change writes. */
interface Values {
  readonly name?: string
  readonly data?: string
}

/** Changes a config map, if it exists. */
async function update(tx: Tx, accountId: string, id: string, values: Values): Promise<void> {
  const map = await tx
    .selectFrom('config_maps')
    .select('bytes')
    .where('id', '=', id)
    .where('account_id', '=', accountId)
    .executeTakeFirst()
  if (map === undefined || Object.keys(values).length === 0) return
  const bytes = values.data === undefined ? map.bytes : Buffer.byteLength(values.data)
  await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes - map.bytes)
  await tx
    .updateTable('config_maps')
    .set({ ...values, bytes })
    .where('id', '=', id)
    .execute()
}

function collectedConfigMap(site: Site, { id, name }: { readonly id: string; readonly name: string }) {
  return { ...reference(site, RESOURCES.configMap, id), name }
}

/** Puts the stored text of `data` into the response as it is: parsing would change it. */
async function loadConfigMap(
  database: Reader | Kysely<Tables>,
  site: Site,
  accountId: string,
  id: string,
): Promise<JsonMember> {
  const row = await database
    .selectFrom('config_maps')
    .select((eb) => ['id', 'name', eb.cast<string>('data', 'text').as('data')])
    .where('id', '=', id)
    .where('account_id', '=', accountId)
    .executeTakeFirstOrThrow(() => noSuch('config map', id))
  return new JsonMember(id, `${JSON.stringify(collectedConfigMap(site, row)).slice(0, -1)},"data":${row.data}}`)
}
