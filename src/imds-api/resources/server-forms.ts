/** What a client sees of servers: their collected and full forms. */
import { sql, type InferResult } from 'kysely'
import { jsonArrayFrom, jsonObjectFrom } from 'kysely/helpers/postgres'
import Type, { type Static } from 'typebox'
import { TagsSchema } from '../../metadata/schema.ts'
import { imageOfServer, isVisibleTo } from '../changes/images.ts'
import type { Reader } from '../database/transaction.ts'
import { completeOptions, MetadataOptionsSchema } from '../model/metadata-options.ts'
import { noSuch } from '../model/refusal.ts'
import { formatTime } from '../model/time.ts'
import { ReportedFields } from './guest-reports.ts'
import { ACCOUNT_COLUMNS, accountOf, NESTED, NullableString, NullableTime, type Site } from './nested.ts'

const Links = {
  account: NESTED.account.schema,
  image: NESTED.image.schema,
  server_type: NESTED.serverType.schema,
  zone: NESTED.zone.schema,
  cloud_ips: Type.Array(NESTED.cloudIp.schema),
  interfaces: Type.Array(NESTED.interface.schema),
  server_groups: Type.Array(NESTED.serverGroup.schema),
  snapshots: Type.Array(NESTED.image.schema),
  volumes: Type.Array(Type.Object({}), {
    description: 'Always empty: volumes are not implemented.',
  }),
}
export const Collected = Type.Object(
  { ...NESTED.server.schema.properties, ...Links, compatibility_mode: Type.Boolean() },
  { title: 'CollectedServer' },
)
/** The tags of a server, which a request gives in the same form. */
export const Tags = {
  ...TagsSchema,
  default: undefined, // Fastify would write it into each response
  description:
    "An extension. At most 50, with EC2's limits. " +
    'The guest sees them if metadata_options.instance_metadata_tags is enabled.',
}
/** What a server waits for before it is `active`, which a request gives in the same form. */
export const WaitFor = Type.Literal('boot', {
  description: 'An extension: the server is active when its guest has reported the boot phase done, and not before.',
})
/** The full form. */
export const Server = Type.Object(
  {
    ...Collected.properties,
    user_data: Type.Union([Type.String(), Type.Null()], { description: 'Base64, without white space.' }),
    disk_encrypted: Type.Boolean(),
    console_url: Type.Union([Type.String({ format: 'uri' }), Type.Null()]),
    console_token: Type.Union([Type.String(), Type.Null()], {
      description: 'Null but in the response of activate_console.',
    }),
    console_token_expires: NullableTime,
    snapshots_schedule: NullableString,
    snapshots_schedule_next_at: NullableTime,
    snapshots_retention: NullableString,
    metadata_options: Type.Optional(MetadataOptionsSchema),
    tags: Type.Optional(Tags),
    wait_for: Type.Optional(WaitFor),
    ...ReportedFields,
  },
  { title: 'Server' },
)

/**
 * Servers with everything that their collected form shows, in one query. It leaves out the long columns, which only the
 * full form has. There are no joins with tables that grow, so that a page of servers reads only its own rows.
 */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the query
export function selectServers(database: Reader, accountId: string) {
  return database
    .selectFrom('servers')
    .innerJoin('accounts', 'accounts.id', 'servers.account_id')
    .select((eb) => [
      ...NESTED.server.columns,
      'servers.compatibility_mode',
      ...ACCOUNT_COLUMNS,
      'servers.image_texts',
      jsonObjectFrom(
        eb
          .selectFrom('images')
          .select([...NESTED.image.columns, isVisibleTo(sql.ref('servers.account_id')).as('is_visible')])
          .whereRef('images.id', '=', 'servers.image_id'),
      ).as('image'),
      jsonObjectFrom(
        eb
          .selectFrom('server_types')
          .select(NESTED.serverType.columns)
          .whereRef('server_types.id', '=', 'servers.server_type_id'),
      ).as('server_type'),
      jsonObjectFrom(
        eb.selectFrom('zones').select(NESTED.zone.columns).whereRef('zones.id', '=', 'servers.zone_id'),
      ).as('zone'),
      jsonArrayFrom(
        eb
          .selectFrom('interfaces')
          .select(NESTED.interface.columns)
          .whereRef('interfaces.server_id', '=', 'servers.id')
          .orderBy('interfaces.created_at'),
      ).as('interfaces'),
      jsonArrayFrom(
        eb
          .selectFrom('server_groups')
          .innerJoin('server_group_members', 'server_group_members.server_group_id', 'server_groups.id')
          .select(NESTED.serverGroup.columns)
          .whereRef('server_group_members.server_id', '=', 'servers.id')
          .orderBy('server_groups.id'),
      ).as('server_groups'),
      jsonArrayFrom(
        eb
          .selectFrom('cloud_ips')
          .innerJoin('interfaces', 'interfaces.id', 'cloud_ips.interface_id')
          .select(NESTED.cloudIp.columns)
          .whereRef('interfaces.server_id', '=', 'servers.id')
          .orderBy('cloud_ips.id'),
      ).as('cloud_ips'),
      jsonArrayFrom(
        eb
          .selectFrom('images')
          .select(NESTED.image.columns)
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
      'servers.wait_for',
    ])
}

type CollectedRow = InferResult<ReturnType<typeof selectServers>>[number]
type Row = InferResult<ReturnType<typeof selectServer>>[number]

/** Loads a server in its full form. */
export async function loadServer(
  database: Reader,
  site: Site,
  accountId: string,
  id: string,
): Promise<Static<typeof Server>> {
  const row = await selectServer(database, accountId, id).executeTakeFirstOrThrow(() => noSuch('server', id))
  return fullServer(site, row)
}

export function collectedServer(site: Site, row: CollectedRow): Static<typeof Collected> {
  const image = imageOfServer(row.image!, { isVisible: row.image!.is_visible, texts: row.image_texts })
  return {
    ...NESTED.server.show(site, row),
    account: accountOf(site, row),
    image: NESTED.image.show(site, image),
    server_type: NESTED.serverType.show(site, row.server_type!),
    zone: NESTED.zone.show(site, row.zone!),
    cloud_ips: row.cloud_ips.map((cloudIp) => NESTED.cloudIp.show(site, cloudIp)),
    interfaces: row.interfaces.map((one) => NESTED.interface.show(site, one)),
    server_groups: row.server_groups.map((group) => NESTED.serverGroup.show(site, group)),
    snapshots: row.snapshots.map((image) => NESTED.image.show(site, image)),
    volumes: [],
    compatibility_mode: row.compatibility_mode,
  }
}

/**
 * The full form. It has the extensions only if the server uses them: gobrightbox's tests reject fields that the
 * interface does not have.
 */
function fullServer(site: Site, row: Row): Static<typeof Server> {
  const { user_data, disk_encrypted, status, console_token_expires: expires } = row
  const hasConsole =
    expires !== null && expires > new Date() && status !== 'deleting' && status !== 'deleted' && status !== 'failed'
  return {
    ...collectedServer(site, row),
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
    ...(row.wait_for !== null && { wait_for: row.wait_for }),
  }
}
