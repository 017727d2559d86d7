/** Servers, which guests know as instances. changes/servers.ts has their states. */
import type { InferResult } from 'kysely'
import { jsonArrayFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import { SERVER_GROUPS_MAX, TagsSchema } from '../../metadata/schema.ts'
import { LONG_BODY_LIMIT } from '../http/body.ts'
import { createServer } from '../changes/create-server.ts'
import {
  deleteServer,
  lockServer,
  setServerLocked,
  updateServer,
  type ServerValues,
} from '../changes/server-requests.ts'
import type { Reader } from '../database/transaction.ts'
import { completeOptions, GivenOptionsSchema, MetadataOptionsSchema } from '../model/metadata-options.ts'
import { formatTime } from '../model/time.ts'
import { fieldFault, noSuch, refuse } from '../model/refusal.ts'
import type { ApiServer } from '../http/server.ts'
import {
  GivenId,
  GivenName,
  listOf,
  NestedAccount,
  nestedAccount,
  NestedCloudIp,
  nestedCloudIp,
  NestedImage,
  nestedImage,
  NestedInterface,
  nestedInterface,
  NestedServer,
  nestedServer,
  NestedServerGroup,
  nestedServerGroup,
  NestedServerType,
  nestedServerType,
  NestedZone,
  nestedZone,
  NullableString,
  NullableTime,
  type Site,
} from './nested.ts'
import type { ResourceParts } from './parts.ts'

const Links = {
  account: NestedAccount,
  image: NestedImage,
  server_type: NestedServerType,
  zone: NestedZone,
  cloud_ips: Type.Array(NestedCloudIp),
  interfaces: Type.Array(NestedInterface),
  server_groups: Type.Array(NestedServerGroup),
  snapshots: Type.Array(NestedImage),
  volumes: Type.Array(Type.Object({}), {
    description: 'Always empty: volumes are not implemented.',
  }),
}
const Collected = Type.Object(
  { ...NestedServer.properties, ...Links, compatibility_mode: Type.Boolean() },
  { title: 'CollectedServer' },
)
const Tags = {
  ...TagsSchema,
  default: undefined, // Fastify would write it into each response
  description:
    "An extension. At most 50, with EC2's limits. " +
    'The guest sees them if metadata_options.instance_metadata_tags is enabled.',
}
/** The full form. */
export const Server = Type.Object(
  {
    ...Collected.properties,
    user_data: Type.Union([Type.String(), Type.Null()], { description: 'Base64, without white space.' }),
    disk_encrypted: Type.Boolean(),
    console_url: NullableString,
    console_token: Type.Union([Type.String(), Type.Null()], {
      description: 'Null but in the response of activate_console.',
    }),
    console_token_expires: NullableTime,
    snapshots_schedule: NullableString,
    snapshots_schedule_next_at: NullableTime,
    snapshots_retention: NullableString,
    metadata_options: Type.Optional(MetadataOptionsSchema),
    tags: Type.Optional(Tags),
  },
  { title: 'Server' },
)

const UserData = Type.Union([Type.String(), Type.Null()], {
  description: 'Base64 of at most 16,384 bytes. Line breaks are allowed, and do not count.',
})
const GroupIds = Type.Array(
  Type.Union([GivenId, Type.Object({ id: Type.String({ minLength: 1, examples: ['grp-6ilgo'] }) })]),
  { maxItems: SERVER_GROUPS_MAX, description: 'Ids, or server groups as a server shows them.' },
)
/** Fields that must be null: other values are refused, since no snapshots are made by a schedule. */
const SCHEDULE = ['snapshots_schedule', 'snapshots_retention'] as const
const Unscheduled = Type.Optional(Type.Unknown({ description: 'Null. Anything else is 501.' }))
const Schedule = { snapshots_schedule: Unscheduled, snapshots_retention: Unscheduled }
const Extensions = { metadata_options: Type.Optional(GivenOptionsSchema), tags: Type.Optional(Tags) }
const Create = Type.Object({
  image: Type.String({ minLength: 1, description: 'An id or a handle.' }),
  name: Type.Optional(GivenName),
  server_type: Type.Optional(
    Type.String({
      minLength: 1,
      description: 'An id or a handle. Default: the smallest available type with the min_ram of the image.',
    }),
  ),
  zone: Type.Optional(
    Type.String({
      minLength: 1,
      description: 'An id or a handle. Default: the zone of the hypervisor with the most free RAM.',
    }),
  ),
  user_data: Type.Optional(UserData),
  server_groups: Type.Optional(GroupIds),
  cloud_ip: Type.Optional(
    Type.Union([Type.Boolean(), GivenId], {
      description: 'true, also as text: a new cloud IP; or the id of an unmapped one.',
    }),
  ),
  disk_encrypted: Type.Optional(Type.Boolean()),
  compatibility_mode: Type.Optional(Type.Boolean()),
  ...Schedule,
  ...Extensions,
})
const Update = Type.Object({
  name: Type.Optional(GivenName),
  server_groups: Type.Optional(GroupIds),
  user_data: Type.Optional(UserData),
  compatibility_mode: Type.Optional(Type.Boolean()),
  ...Schedule,
  ...Extensions,
})

const TAGS = ['Servers']
const Params = Type.Object({ id: Type.String() })

/** Adds the routes. */
export function addServerRoutes(server: ApiServer, { db, accounts, site, compute }: ResourceParts): void {
  server.get(
    '/servers',
    { schema: { summary: 'List servers', tags: TAGS, response: { 200: listOf(Collected) } } },
    async ({ caller }) =>
      (
        await selectServers(db, caller.accountId)
          .where('servers.deleted_at', 'is', null)
          .orderBy('servers.created_at')
          .orderBy('servers.id')
          .execute()
      ).map((row) => collect(site, row)),
  )

  server.get(
    '/servers/:id',
    { schema: { summary: 'Get a server', tags: TAGS, params: Params, response: { 200: Server } } },
    async ({ caller, params }) => await load(db, site, caller.accountId, params.id),
  )

  server.post(
    '/servers',
    {
      bodyLimit: LONG_BODY_LIMIT,
      schema: { summary: 'Create a server', tags: TAGS, body: Create, response: { 202: Server } },
    },
    async ({ caller, body }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          refuseSchedule(body)
          const id = await createServer(tx, compute, caller.accountId, {
            image: body.image,
            serverType: body.server_type,
            zone: body.zone,
            cloudIp: body.cloud_ip === 'true' || (body.cloud_ip ?? false),
            diskEncrypted: body.disk_encrypted ?? false,
            ...valuesOf(body),
          })
          return load(tx, site, caller.accountId, id)
        }),
      ),
  )

  server.put(
    '/servers/:id',
    {
      bodyLimit: LONG_BODY_LIMIT,
      schema: { summary: 'Change a server', tags: TAGS, params: Params, body: Update, response: { 200: Server } },
    },
    async ({ caller, params, body }) =>
      await accounts.commit(caller, async (tx) => {
        const current = await lockServer(tx, caller.accountId, params.id)
        refuseSchedule(body)
        await updateServer(tx, current, valuesOf(body))
        return load(tx, site, caller.accountId, params.id)
      }),
  )

  server.delete(
    '/servers/:id',
    {
      schema: {
        summary: 'Delete a server',
        description: 'Unmaps its cloud IPs. Refused (409) while it is locked.',
        tags: TAGS,
        params: Params,
        response: { 202: Server },
      },
    },
    async ({ caller, params }, reply) =>
      reply.code(202).send(
        await accounts.commit(caller, async (tx) => {
          await deleteServer(tx, compute, caller.accountId, params.id)
          return load(tx, site, caller.accountId, params.id)
        }),
      ),
  )

  for (const [verb, locked] of [
    ['lock', true],
    ['unlock', false],
  ] as const) {
    server.put(
      `/servers/:id/${verb}_resource`,
      {
        schema: {
          summary: `${locked ? 'Lock' : 'Unlock'} a server`,
          description: 'A locked server cannot be deleted.',
          tags: TAGS,
          params: Params,
          response: { 200: Server },
        },
      },
      async ({ caller, params }) =>
        await accounts.commit(caller, async (tx) => {
          await setServerLocked(tx, caller.accountId, params.id, locked)
          return load(tx, site, caller.accountId, params.id)
        }),
    )
  }
}

/** What a request sets. Null clears the name. A group is named by its id, or as a server shows it. */
function valuesOf({ name, server_groups, ...body }: Static<typeof Update>): ServerValues {
  const { user_data, compatibility_mode, metadata_options, tags } = body
  const groupIds = server_groups?.map((group) => (typeof group === 'string' ? group : group.id))
  return {
    ...(name !== undefined && { name: name ?? '' }),
    ...(groupIds !== undefined && { server_groups: [...new Set(groupIds)] }),
    ...(user_data !== undefined && { user_data }),
    ...(compatibility_mode !== undefined && { compatibility_mode }),
    ...(metadata_options !== undefined && { metadata_options }),
    ...(tags !== undefined && { tags }),
  }
}

function refuseSchedule(body: Static<typeof Update>): void {
  const [first, ...others] = SCHEDULE.filter((field) => (body[field] ?? null) !== null).map((field) =>
    fieldFault(field, 'unchangeable', `${field} is not implemented: no snapshots are made by a schedule`),
  )
  if (first !== undefined) throw refuse('not_implemented', first, ...others)
}

/**
 * Servers with everything that their collected form shows, in one query. It leaves out the long columns, which only the
 * full form has.
 */
function selectServers(database: Reader, accountId: string) {
  return database
    .selectFrom('servers')
    .innerJoin('accounts', 'accounts.id', 'servers.account_id')
    .innerJoin('images', 'images.id', 'servers.image_id')
    .innerJoin('server_types', 'server_types.id', 'servers.server_type_id')
    .innerJoin('zones', 'zones.id', 'servers.zone_id')
    .select((eb) => [
      'servers.id',
      'servers.name',
      'servers.status',
      'servers.locked',
      'servers.created_at',
      'servers.started_at',
      'servers.deleted_at',
      'servers.zone_id',
      'servers.compatibility_mode',
      'servers.account_id',
      'accounts.name as account_name',
      'accounts.status as account_status',
      'zones.handle as zone_handle',
      eb.fn.toJson('images').as('image'),
      eb.fn.toJson('server_types').as('server_type'),
      jsonArrayFrom(
        eb
          .selectFrom('interfaces')
          .select(['interfaces.id', 'interfaces.mac_address', 'interfaces.ipv4_address'])
          .whereRef('interfaces.server_id', '=', 'servers.id')
          .orderBy('interfaces.created_at'),
      ).as('interfaces'),
      jsonArrayFrom(
        eb
          .selectFrom('server_groups')
          .innerJoin('server_group_members', 'server_group_members.server_group_id', 'server_groups.id')
          .select([
            'server_groups.id',
            'server_groups.name',
            'server_groups.description',
            'server_groups.is_default',
            'server_groups.created_at',
          ])
          .whereRef('server_group_members.server_id', '=', 'servers.id')
          .orderBy('server_groups.id'),
      ).as('server_groups'),
      jsonArrayFrom(
        eb
          .selectFrom('cloud_ips')
          .innerJoin('interfaces', 'interfaces.id', 'cloud_ips.interface_id')
          .select([
            'cloud_ips.id',
            'cloud_ips.name',
            'cloud_ips.public_ipv4',
            'cloud_ips.public_ipv6',
            'cloud_ips.status',
            'cloud_ips.reverse_dns',
          ])
          .whereRef('interfaces.server_id', '=', 'servers.id')
          .orderBy('cloud_ips.id'),
      ).as('cloud_ips'),
      jsonArrayFrom(
        eb
          .selectFrom('images')
          .selectAll('images')
          .whereRef('images.source_server_id', '=', 'servers.id')
          .where('images.status', '!=', 'deleted')
          .orderBy('images.created_at')
          .orderBy('images.id'),
      ).as('snapshots'),
    ])
    .where('servers.account_id', '=', accountId)
}

function selectServer(database: Reader, accountId: string, id: string) {
  return selectServers(database, accountId)
    .where('servers.id', '=', id)
    .select([
      'servers.user_data',
      'servers.disk_encrypted',
      'servers.console_token_expires',
      'servers.metadata_options',
      'servers.tags',
    ])
}

type CollectedRow = InferResult<ReturnType<typeof selectServers>>[number]
type Row = InferResult<ReturnType<typeof selectServer>>[number]

/** Loads a server in its full form. */
export async function load(
  database: Reader,
  site: Site,
  accountId: string,
  id: string,
): Promise<Static<typeof Server>> {
  const row = await selectServer(database, accountId, id).executeTakeFirst()
  if (row === undefined) throw noSuch('server', id)
  return represent(site, row)
}

function collect(site: Site, row: CollectedRow): Static<typeof Collected> {
  return {
    ...nestedServer(site, row),
    account: nestedAccount(site, { id: row.account_id, name: row.account_name, status: row.account_status }),
    image: nestedImage(site, row.image),
    server_type: nestedServerType(site, row.server_type),
    zone: nestedZone(site, { id: row.zone_id, handle: row.zone_handle }),
    cloud_ips: row.cloud_ips.map((cloudIp) => nestedCloudIp(site, cloudIp)),
    interfaces: row.interfaces.map((one) => nestedInterface(site, one)),
    server_groups: row.server_groups.map((group) => nestedServerGroup(site, group)),
    snapshots: row.snapshots.map((image) => nestedImage(site, image)),
    volumes: [],
    compatibility_mode: row.compatibility_mode,
  }
}

/**
 * The full form. It has the extensions only if the server uses them: gobrightbox's tests reject fields that the
 * interface does not have.
 */
function represent(site: Site, row: Row): Static<typeof Server> {
  const { user_data, disk_encrypted, status, console_token_expires: expires } = row
  const hasConsole =
    expires !== null && expires > new Date() && status !== 'deleting' && status !== 'deleted' && status !== 'failed'
  return {
    ...collect(site, row),
    user_data,
    disk_encrypted,
    console_url: hasConsole ? `https://console.${site.domain}/${row.id}` : null,
    console_token: null,
    console_token_expires: hasConsole ? formatTime(expires) : null,
    snapshots_schedule: null,
    snapshots_schedule_next_at: null,
    snapshots_retention: null,
    ...(row.metadata_options !== null && { metadata_options: completeOptions({}, row.metadata_options) }),
    ...(Object.keys(row.tags).length > 0 && { tags: row.tags }),
  }
}
