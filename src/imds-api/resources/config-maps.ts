/** Config maps: a name and a JSON object of any content. */
import Type from 'typebox'
import { nextId } from '../changes/allocate.ts'
import { refuseBeyondLimit } from '../changes/limits.ts'
import { addRow, lockRow, setValues } from '../changes/own-rows.ts'
import type { Tx } from '../database/transaction.ts'
import { jsonParser, setBodyParsers } from '../http/body.ts'
import type { ApiServer } from '../http/server.ts'
import { fieldFault, refuse } from '../model/refusal.ts'
import { formsOf } from './kit/forms.ts'
import { Members } from './kit/members.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenName, givenTexts } from './kit/schemas.ts'

/** The API's limit of `data`, in bytes of its JSON text. */
const MAX_DATA_BYTES = 1_048_576
/** Clients that send ASCII only, as Python does, need up to three bytes for each byte of data. The rest is for the name. */
const LONG_BODY = { bodyLimit: 3 * MAX_DATA_BYTES + 65_536 }
const Data = Type.Object(
  {},
  {
    additionalProperties: true,
    description: 'At most 1,048,576 bytes of JSON text, with at most 99 levels. Numbers are doubles.',
  },
)
const FORMS = formsOf('configMap', { name: Type.String() }, { data: Data })
const Name = Type.Optional(GivenName)

/** Adds the routes. Their bodies may be longer than those of other routes. */
export function addConfigMapRoutes(parts: ResourceParts): void {
  void parts.server.register((server: ApiServer, _options: object, done: () => void) => {
    setBodyParsers(server, { 'application/json': jsonParser(Infinity) })
    addRoutes({ ...parts, server })
    done()
  })
}

/** The text of data. Refuses one that is too long. */
function textOf(data: object): string {
  const text = JSON.stringify(data)
  const bytes = Buffer.byteLength(text)
  if (bytes <= MAX_DATA_BYTES) return text
  const fault = `data must be at most ${MAX_DATA_BYTES} bytes; it is ${bytes}`
  throw refuse('unprocessable_entity', fieldFault('data', 'too_long', fault))
}

function addRoutes(parts: ResourceParts): void {
  const configMaps = new Members(parts, FORMS)

  configMaps.list({ description: 'Those of the account, without their data.' })
  configMaps.get('With its data.')
  configMaps.create(
    {
      description: 'A name, and a JSON object of any content.',
      body: Type.Object(
        { name: Name, data: Data },
        { title: 'NewConfigMap', examples: [{ name: 'front', data: { workers: 4 } }] },
      ),
      options: LONG_BODY,
    },
    async ({ tx, accountId, body }) => {
      const text = textOf(body.data)
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
    ({ tx, accountId, id, body: { name, data } }) =>
      update(tx, accountId, id, givenTexts({ name, data: data && textOf(data) })),
  )
  configMaps.remove({ description: 'The response is the last that has its data.' }, async ({ tx, accountId, id }) => {
    await tx.deleteFrom('config_maps').where('id', '=', id).where('account_id', '=', accountId).execute()
  })
}

async function update(
  tx: Tx,
  accountId: string,
  id: string,
  values: { readonly name?: string; readonly data?: string },
): Promise<void> {
  const { bytes: before } = await lockRow(tx, 'configMap', accountId, id)
  const bytes = values.data === undefined ? before : Buffer.byteLength(values.data)
  if (bytes > before) await refuseBeyondLimit(tx, accountId, 'config_maps_bytes_limit', bytes - before)
  await setValues(tx, 'config_maps', id, { ...values, bytes })
}
