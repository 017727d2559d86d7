/**
 * Servers, which guests know as instances. changes/servers.ts has their states, server-forms.ts what a client sees of
 * them.
 */
import type { preValidationHookHandler } from 'fastify'
import { sql, type RawBuilder } from 'kysely'
import Type, { type Static } from 'typebox'
import { MAX_SERVER_GROUPS } from '../../metadata/schema.ts'
import { MAX_LONG_BODY_BYTES } from '../http/body.ts'
import type { Tx } from '../database/transaction.ts'
import { createServer } from '../changes/create-server.ts'
import { setValues } from '../changes/own-rows.ts'
import { deleteServer, lockServer, updateServer, type ServerValues } from '../changes/server-requests.ts'
import { serverCanBecome } from '../changes/servers.ts'
import { GivenOptionsSchema } from '../model/metadata-options.ts'
import { fieldFault, refuseAny } from '../model/refusal.ts'
import { addGuestReports } from './guest-reports.ts'
import { type Tag } from './kit/lists.ts'
import { Members } from './kit/members.ts'
import { addWait } from './kit/waiting.ts'
import { NESTED } from './nested.ts'
import type { ResourceParts } from './kit/parts.ts'
import { GivenId, GivenName, givenTexts, nullable } from './kit/schemas.ts'
import { addServerActions } from './server-actions.ts'
import { SERVER_FORMS, Tags } from './server-forms.ts'

const UserData = nullable(Type.String(), {
  description: 'Base64 of at most 16,384 bytes. Line breaks are allowed, and do not count.',
})
const GroupIds = Type.Array(
  Type.Union([GivenId, Type.Object({ id: Type.String({ minLength: 1, examples: ['grp-6ilgo'] }) })]),
  { maxItems: MAX_SERVER_GROUPS, description: 'Ids, or server groups as a server shows them.' },
)
const Unimplemented = Type.Unknown({ description: 'Null or empty. Anything else is 501.' })
const Fixed = Type.Unknown({
  description: 'The present value, as an id, a handle, or as a server shows it: it cannot be changed.',
})
/** The fields of a server that name another resource, and cannot be changed. */
const FIXED = [
  ['image', NESTED.image],
  ['server_type', NESTED.serverType],
  ['zone', NESTED.zone],
] as const
/** What a request can set at any time, in the order of the document. */
const Later = {
  compatibility_mode: Type.Boolean(),
  ...{ snapshots_schedule: Unimplemented, snapshots_retention: Unimplemented },
  ...{ disk_size: Unimplemented, volumes: Unimplemented },
  metadata_options: GivenOptionsSchema,
  tags: Tags,
}
const Options = Type.Partial(
  Type.Object({
    name: GivenName,
    server_type: Type.String({
      minLength: 1,
      description: 'An id or a handle. Default: the smallest available type with the min_ram of the image.',
    }),
    zone: Type.String({
      minLength: 1,
      description: 'An id or a handle. Default: the zone of the hypervisor with the most free RAM.',
    }),
    user_data: UserData,
    server_groups: GroupIds,
    cloud_ip: Type.Union([Type.Boolean(), GivenId], {
      description: 'true, also as text: a new cloud IP; or the id of an unmapped one.',
    }),
    disk_encrypted: Type.Boolean(),
    ...Later,
  }),
)
const Create = Type.Object(
  { image: Type.String({ minLength: 1, description: 'An id or a handle.' }), ...Options.properties },
  { title: 'NewServer', examples: [{ image: 'debian-12', name: 'web-1' }] },
)
const Given = Type.Partial(Type.Object({ name: GivenName, server_groups: GroupIds, user_data: UserData, ...Later }))
const Update = Type.Partial(
  Type.Object({ ...Given.properties, image: Fixed, server_type: Fixed, zone: Fixed, disk_encrypted: Fixed }),
  { title: 'ServerChange', examples: [{ name: 'web-2', tags: { Role: 'front' } }] },
)

/** What a request may not ask for, and why. Null, an empty text, an empty list and 0 ask for nothing. */
const UNIMPLEMENTED: Readonly<Record<string, string>> = {
  snapshots_schedule: 'no snapshots are made by a schedule',
  snapshots_retention: 'no snapshots are made by a schedule',
  disk_size: 'a disk has the size of the server type',
  volumes: 'there are no volumes',
}
/** Some clients send null or an empty text for these to say that they are not given. */
const MAY_BE_EMPTY = ['server_type', 'zone', 'server_groups', 'cloud_ip', 'compatibility_mode']
const readOptions: preValidationHookHandler = ({ body }, _reply, done) => {
  const given = new Map(Object.entries(body ?? {}))
  const faults = Object.entries(UNIMPLEMENTED)
    .filter(([name]) => !['', '0', 'null', 'undefined'].includes(String(given.get(name))))
    .map(([name, why]) => fieldFault(name, 'unchangeable', `${name} is not implemented: ${why}`))
  for (const name of MAY_BE_EMPTY)
    if (given.has(name) && [null, ''].includes(given.get(name) as string | null)) Reflect.deleteProperty(body!, name)
  refuseAny('not_implemented', faults)
  done()
}
const LONG_BODY = { bodyLimit: MAX_LONG_BODY_BYTES, preValidation: readOptions }

export function addServerRoutes(parts: ResourceParts): void {
  const { compute } = parts
  const servers = new Members(parts, SERVER_FORMS)

  servers.list({
    description: 'Those of the account that are not deleted, in their collected form.',
    filters: { server_group: { idOf: 'grp', where: isInGroup } },
    tagged: hasTags,
  })
  servers.get('Its full form. A deleted one stays readable.')
  addWait(servers, parts, serverCanBecome)
  servers.create(
    {
      description: 'It is `creating`, and `active` when its record is in the store. Only `image` is required.',
      body: Create,
      status: 202,
      options: LONG_BODY,
    },
    async ({ tx, accountId, body }) => {
      const { image, server_type: serverType, zone, cloud_ip = false, disk_encrypted, ...others } = body
      return createServer(tx, compute, accountId, {
        ...{ image, serverType, zone, ...valuesOf(others) },
        cloudIp: cloud_ip === 'true' || cloud_ip,
        diskEncrypted: disk_encrypted ?? false,
      })
    },
  )
  servers.update(
    {
      description: 'Fields that are left out stay. The guest sees the change at its next request.',
      body: Update,
      options: LONG_BODY,
    },
    async ({ tx, accountId, id, body: { image, server_type, zone, disk_encrypted, ...body } }) => {
      const current = await lockServer(tx, accountId, id)
      await refuseOthers(tx, current, { image, server_type, zone, disk_encrypted })
      await updateServer(tx, current, valuesOf(body))
    },
  )
  servers.end(
    { description: 'Unmaps its cloud IPs. Refused (409) while it is locked.', status: 202 },
    ({ tx, accountId, id }) => deleteServer(tx, compute, accountId, id),
  )
  servers.lock(async ({ tx, accountId, id }, locked) => {
    await lockServer(tx, accountId, id)
    await setValues(tx, 'servers', id, { locked })
  })
  addServerActions(servers, parts)
  addGuestReports(servers, parts)
}

function isInGroup(groupId: string): RawBuilder<boolean> {
  return sql`exists (
    select from server_group_members
    where server_group_members.server_id = servers.id and server_group_members.server_group_id = ${groupId}
  )`
}

/** All tags at once, with the account, which is under the key '': so one index finds the servers. */
function hasTags(accountId: string, tags: readonly Tag[]): RawBuilder<boolean> {
  const [keys, values] = [tags.map(([key]) => key), tags.map(([, value]) => value)]
  return sql`servers.found_by @> jsonb_object(${['', ...keys]}::text[], ${[accountId, ...values]}::text[])`
}

/** Refuses values of fields that cannot be changed, unless they are the present ones. Null is no value. */
async function refuseOthers(
  tx: Tx,
  server: Awaited<ReturnType<typeof lockServer>>,
  { disk_encrypted: encrypted, ...given }: Readonly<Record<(typeof FIXED)[number][0] | 'disk_encrypted', unknown>>,
): Promise<void> {
  const others: string[] = (encrypted ?? server.disk_encrypted) === server.disk_encrypted ? [] : ['disk_encrypted']
  for (const [field, form] of FIXED) {
    const value = given[field] as string | { readonly id?: string } | null | undefined
    if (value === null || value === undefined) continue
    const named = typeof value === 'object' ? value.id : value
    const isPresent = sql`${form.isNamed(server[`${field}_id`])} and ${form.isNamed(String(named))}`
    const { rows } = await form.query(tx, { where: isPresent }).execute(tx)
    if (rows.length === 0) others.push(field)
  }
  refuseAny(
    'unprocessable_entity',
    others.map((field) =>
      fieldFault(field, 'unchangeable', `${field} of a server cannot be changed: create another server`),
    ),
  )
}

/** What a request sets. Null clears the name. A group is named by its id, or as a server shows it. */
function valuesOf({ name, server_groups, ...values }: Static<typeof Given>): ServerValues {
  const groupIds = server_groups?.map((group) => (typeof group === 'string' ? group : group.id))
  return {
    ...values,
    ...givenTexts({ name }),
    ...(groupIds !== undefined && { server_groups: [...new Set(groupIds)] }),
  }
}
