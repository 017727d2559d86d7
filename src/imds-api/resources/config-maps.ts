/** Config maps: a name and a JSON object of any content, which responses show as it was sent. */
import type { preHandlerHookHandler } from 'fastify'
import { sql } from 'kysely'
import Type from 'typebox'
import { callerOf } from '../auth/account-choice.ts'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import { addRow, setValues } from '../changes/own-rows.ts'
import type { Tx } from '../database/transaction.ts'
import { boundedJson, setBodyParsers } from '../http/body.ts'
import { JsonMember } from '../http/idempotency.ts'
import type { ApiServer } from '../http/server.ts'
import { BODY_BOUNDS, MAX_BODY_BYTES, dataFault, parseBody, type DataText } from '../model/config-data.ts'
import { fieldFault, refuse } from '../model/refusal.ts'
import { Field, formsOf } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import type { ResourceParts } from './parts.ts'
import { GivenName, givenTexts } from './kit/schemas.ts'

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
const FORMS = formsOf('configMap', { name: Type.String() }, { data: new Field(Data, sql`config_maps.data::text`) })
const Name = Type.Optional(GivenName)

const refuseLongData: preHandlerHookHandler = ({ body }, _reply, done) => {
  const { data } = body as { readonly data?: DataText }
  const fault = data && dataFault(data)
  done(fault === undefined ? undefined : refuse('unprocessable_entity', fieldFault('data', 'too_long', fault)))
}
const LONG_BODY = { bodyLimit: MAX_BODY_BYTES, preHandler: refuseLongData }

/** Adds the routes. Their bodies may be longer than those of other routes. */
export function addConfigMapRoutes(parts: ResourceParts): void {
  void parts.server.register((server: ApiServer, _options: object, done: () => void) => {
    setBodyParsers(server, { 'application/json': boundedJson(BODY_BOUNDS, parseBody) })
    addRoutes({ ...parts, server })
    done()
  })
}

function addRoutes(parts: ResourceParts): void {
  const configMaps = new Members(parts, {
    ...FORMS,
    /** Puts the stored text of `data` into the response as it is: parsing would change it. */
    load: async (db, request, id) => {
      const where = sql`config_maps.account_id = ${callerOf(request).accountId}`
      const map = await FORMS.form.load(db, parts.site, id, { where })
      const members = Object.entries(map).map(
        ([name, value]) => `"${name}":${name === 'data' ? String(value) : JSON.stringify(value)}`,
      )
      return new JsonMember(map.id, `{${members.join(',')}}`)
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
      options: LONG_BODY,
    },
    async (tx, { accountId, body }) => {
      const { text } = body.data
      const bytes = Buffer.byteLength(text)
      await refuseBeyondLimit(tx, accountId, 'config_maps_limit')
      await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes)
      const id = await nextId(tx, 'cfg')
      await addRow(tx, 'config_maps', { id, account_id: accountId, name: body.name ?? '', data: text, bytes })
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
      options: LONG_BODY,
    },
    (tx, { accountId, id, body: { name, data } }) => update(tx, accountId, id, givenTexts({ name, data: data?.text })),
  )
  configMaps.remove({ description: 'The response is the last that has its data.' }, async (tx, { accountId, id }) => {
    await tx.deleteFrom('config_maps').where('id', '=', id).where('account_id', '=', accountId).execute()
  })
}

/** Changes a config map, if it exists. */
async function update(
  tx: Tx,
  accountId: string,
  id: string,
  values: { readonly name?: string; readonly data?: string },
): Promise<void> {
  const map = await tx
    .selectFrom('config_maps')
    .select('bytes')
    .where('id', '=', id)
    .where('account_id', '=', accountId)
    .executeTakeFirst()
  if (map === undefined || Object.keys(values).length === 0) return
  const bytes = values.data === undefined ? map.bytes : Buffer.byteLength(values.data)
  if (bytes > map.bytes) await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes - map.bytes)
  await setValues(tx, 'config_maps', id, { ...values, bytes })
}
