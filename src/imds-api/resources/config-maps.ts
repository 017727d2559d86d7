/** Config maps: a name and a JSON object of any content, which responses show as it was sent. */
import type { FastifyReply } from 'fastify'
import type { Kysely } from 'kysely'
import Type from 'typebox'
import { boundedJson, setBodyParsers } from '../http/body.ts'
import { JsonMember } from '../http/idempotency.ts'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx, Reader } from '../database/transaction.ts'
import { BODY_BOUNDS, MAX_BODY_BYTES, dataFault, parseBody, type DataText } from '../model/config-data.ts'
import { formatId } from '../model/ids.ts'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import { addList, byCreation, equals } from './lists.ts'
import { GivenName, reference, representation, type Site, idParams } from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Collected = representation('CollectedConfigMap', 'config_map', { name: Type.String() })
const Data = Type.Object(
  {},
  {
    additionalProperties: true,
    description:
      'At most 1,048,576 bytes of JSON, with at most 99 levels. ' +
      'It comes back as it was sent, numbers and the order of keys included.',
  },
)
const ConfigMap = Type.Object({ ...Collected.properties, data: Data }, { title: 'ConfigMap' })
const Name = Type.Optional(GivenName)

const TAGS = ['Config maps']
const Params = idParams(formatId('cfg', 1))

/** Adds the routes. Their bodies may be longer than those of other routes. */
export function addConfigMapRoutes(server: ApiServer, parts: ResourceParts): void {
  void server.register((maps: ApiServer, _options: object, done: () => void) => {
    setBodyParsers(maps, { 'application/json': boundedJson(BODY_BOUNDS, parseBody) })
    addRoutes(maps, parts)
    done()
  })
}

function addRoutes(server: ApiServer, { db, accounts, site }: ResourceParts): void {
  addList(server, {
    path: '/config_maps',
    operationId: 'listConfigMaps',
    summary: 'List config maps',
    description: 'Those of the account, without their data.',
    tags: TAGS,
    form: Collected,
    order: byCreation('config_maps'),
    filters: { name: equals('config_maps.name') },
    select: ({ caller }) =>
      db.selectFrom('config_maps').select(['id', 'name']).where('account_id', '=', caller.accountId),
    represent: (rows) => rows.map((row) => collectedConfigMap(site, row)),
  })

  server.get(
    '/config_maps/:id',
    {
      schema: {
        operationId: 'getConfigMap',
        summary: 'Get a config map',
        description: 'With its data, as it was sent.',
        tags: TAGS,
        params: Params,
        response: { 200: ConfigMap },
      },
      config: {
        member: {
          table: 'config_maps',
          load: async (database, { caller }, id) => (await loadConfigMap(database, site, caller.accountId, id)).text,
        },
      },
    },
    async ({ caller, params }, reply) => send(reply, await loadConfigMap(db, site, caller.accountId, params.id)),
  )

  server.post(
    '/config_maps',
    {
      schema: {
        operationId: 'createConfigMap',
        summary: 'Create a config map',
        description: 'A name, and a JSON object of any content.',
        tags: TAGS,
        body: Type.Object(
          { name: Name, data: Data },
          { title: 'NewConfigMap', examples: [{ name: 'front', data: { workers: 4 } }] },
        ),
        response: { 200: ConfigMap },
      },
      bodyLimit: MAX_BODY_BYTES,
    },
    async ({ caller, body }, reply) => {
      const data = body.data as DataText
      const fault = dataFault(data)
      if (fault !== undefined) throw refuse('unprocessable_entity', fieldFault('data', 'too_long', fault))
      return send(
        reply,
        await accounts.commit(caller, async (tx) => {
          const { accountId } = caller
          const bytes = Buffer.byteLength(data.text)
          await refuseBeyondLimit(tx, accountId, 'config_maps_limit')
          await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes)
          const id = await nextId(tx, 'cfg')
          await tx
            .insertInto('config_maps')
            .values({ id, account_id: accountId, name: body.name ?? '', data: data.text, bytes })
            .execute()
          return loadConfigMap(tx, site, accountId, id)
        }),
      )
    },
  )

  server.put(
    '/config_maps/:id',
    {
      schema: {
        operationId: 'updateConfigMap',
        summary: 'Change a config map',
        description: 'Data replaces the whole map.',
        tags: TAGS,
        params: Params,
        body: Type.Object(
          { name: Name, data: Type.Optional(Data) },
          { title: 'ConfigMapChange', examples: [{ data: { workers: 8 } }] },
        ),
        response: { 200: ConfigMap },
      },
      bodyLimit: MAX_BODY_BYTES,
    },
    async ({ caller, params, body }, reply) => {
      const { name, data } = body as { readonly name?: string | null; readonly data?: DataText }
      const fault = data && dataFault(data)
      if (fault !== undefined) throw refuse('unprocessable_entity', fieldFault('data', 'too_long', fault))
      const values = { ...(name !== undefined && { name: name ?? '' }), ...(data !== undefined && { data: data.text }) }
      return send(
        reply,
        await accounts.commit(caller, async (tx) => {
          await update(tx, caller.accountId, params.id, values)
          return loadConfigMap(tx, site, caller.accountId, params.id)
        }),
      )
    },
  )

  server.delete(
    '/config_maps/:id',
    {
      schema: {
        operationId: 'deleteConfigMap',
        summary: 'Delete a config map',
        description: 'The response is the last that has its data.',
        tags: TAGS,
        params: Params,
        response: { 200: ConfigMap },
      },
    },
    async ({ caller, params }, reply) =>
      send(
        reply,
        await accounts.commit(caller, async (tx) => {
          const last = await loadConfigMap(tx, site, caller.accountId, params.id)
          await tx
            .deleteFrom('config_maps')
            .where('id', '=', params.id)
            .where('account_id', '=', caller.accountId)
            .execute()
          return last
        }),
      ),
  )
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
  return { ...reference(site, 'config_map', 'config_maps', id), name }
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

function send(reply: FastifyReply, result: JsonMember): FastifyReply {
  reply.respondedId = result.id
  return reply.code(200).type('application/json; charset=utf-8').send(result.text)
}
