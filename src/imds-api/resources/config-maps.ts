/** Config maps: a name and a JSON object of any content, which responses show as it was sent. */
import type { preHandlerHookHandler } from 'fastify'
import { sql } from 'kysely'
import Type from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import type { Tx } from '../database/transaction.ts'
import { boundedJson, setBodyParsers } from '../http/body.ts'
import { JsonMember } from '../http/idempotency.ts'
import type { ApiServer } from '../http/server.ts'
import { BODY_BOUNDS, MAX_BODY_BYTES, dataFault, parseBody, type DataText } from '../model/config-data.ts'
import { fieldFault, refuse } from '../model/refusal.ts'
import { Field, Form } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import type { ResourceParts } from './parts.ts'
import { GivenName, givenTexts } from './kit/schemas.ts'
import { RESOURCES } from './kit/table.ts'

const COLLECTED = { name: Type.String() }
const Collected = new Form(RESOURCES.configMap, 'CollectedConfigMap', COLLECTED)
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
const ConfigMap = new Form(RESOURCES.configMap, 'ConfigMap', {
  ...COLLECTED,
  data: new Field(Data, sql`config_maps.data::text`),
})
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
  const configMaps = new Members(server, parts, {
    form: ConfigMap,
    collected: Collected,
    /** Puts the stored text of `data` into the response as it is: parsing would change it. */
    load: async (db, request, id) => {
      const where = sql`config_maps.account_id = ${callerOf(request).accountId}`
      const { data, ...shown } = await ConfigMap.load(db, parts.site, id, { where })
      return new JsonMember(shown.id, `${JSON.stringify(shown).slice(0, -1)},"data":${String(data)}}`)
    },
  })

  configMaps.list({ description: 'Those of the account, without their data.' })
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
        ...givenTexts({ name }),
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
  if (bytes > map.bytes) await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes - map.bytes)
  await tx
    .updateTable('config_maps')
    .set({ ...values, bytes })
    .where('id', '=', id)
    .execute()
}
