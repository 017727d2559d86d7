/** What a client sees of servers: their collected and full forms. */
import { sql } from 'kysely'
import Type from 'typebox'
import { TagsSchema } from '../../metadata/schema.ts'
import { imageOfServer, isVisibleTo } from '../changes/images.ts'
import type { ImageTexts } from '../database/tables.ts'
import { completeOptions, MetadataOptionsSchema } from '../model/metadata-options.ts'
import { ipv6Fqdn } from '../model/names.ts'
import { formatOptionalTime } from '../model/time.ts'
import { Field, fixed, formsOf, linked, linkedAll, type FormRow } from './kit/forms.ts'
import { ACCOUNT, NESTED } from './nested.ts'
import { HostName, Ipv6, nullable, NullableString, NullableTime } from './kit/schemas.ts'

/** The image of a server, with what decides what the account sees of it. */
type ImageOfServer = FormRow &
  ImageTexts & {
    readonly account_id: string | null
    readonly source: string
    readonly is_visible: boolean
    readonly texts: ImageTexts | null
  }
const isImage = sql`where images.id = servers.image_id`
const images = NESTED.image.rows(
  isImage,
  sql`, ${isVisibleTo(sql.ref('servers.account_id'))} as is_visible, servers.image_texts as texts`,
)

/** The IPv6 address of the first interface. Left out if there is none, as the other extensions. */
const ipv6Of = ([first]: readonly FormRow[]) => first?.['ipv6_address'] ?? undefined

/**
 * There are no joins with tables that grow, so that a page of servers reads only its own rows. The long columns are only
 * in the full form.
 */
const COLLECTED = {
  ...NESTED.server.fields,
  account: ACCOUNT,
  image: new Field(
    NESTED.image.schema,
    sql`(select to_json(one) from ${images} as one)`,
    ({ is_visible: isVisible, texts, ...image }: ImageOfServer, site) =>
      NESTED.image.show(site, imageOfServer(image, { isVisible, texts })),
    { form: NESTED.image, which: isImage },
  ),
  server_type: linked(NESTED.serverType, sql`server_types.id = servers.server_type_id`),
  zone: linked(NESTED.zone, sql`zones.id = servers.zone_id`),
  cloud_ips: linkedAll(
    NESTED.cloudIp,
    sql`join interfaces on interfaces.id = cloud_ips.interface_id where interfaces.server_id = servers.id`,
  ),
  interfaces: linkedAll(NESTED.interface, sql`where interfaces.server_id = servers.id`, {
    order: sql.ref('interfaces.created_at'),
  }),
  ipv6_address: new Field(Type.Optional(Ipv6), 'interfaces', ipv6Of),
  // a server has one interface
  ipv6_hostname: new Field(
    Type.Optional(HostName),
    sql`(select domain from region where exists (
      select from interfaces where interfaces.server_id = servers.id and interfaces.ipv6_address is not null))`,
    (domain: string | null, _site, { id }) => (domain === null ? undefined : ipv6Fqdn(domain, id)),
  ),
  server_groups: linkedAll(
    NESTED.serverGroup,
    sql`join server_group_members on server_group_members.server_group_id = server_groups.id
      where server_group_members.server_id = servers.id`,
  ),
  snapshots: linkedAll(NESTED.image, sql`where images.source_server_id = servers.id and images.status <> 'deleted'`, {
    order: sql`images.created_at, images.id`,
  }),
  volumes: fixed(Type.Array(Type.Object({}), { description: 'Always empty: volumes are not implemented.' }), []),
  compatibility_mode: Type.Boolean(),
}
/** The tags of a server, which a request gives in the same form. */
export const Tags = {
  ...TagsSchema,
  default: undefined, // Fastify would write it into each response
  description:
    "An extension. At most 50, with EC2's limits. " +
    'The guest sees them if metadata_options.instance_metadata_tags is enabled.',
}
/** Until when the console is open; null: it is not. */
const console_open_until = sql`case
  when servers.console_token_expires > statement_timestamp() and servers.status not in ('deleting', 'deleted', 'failed')
  then servers.console_token_expires end`

/**
 * The full form. It has the extensions only if the server uses them: gobrightbox's tests reject fields that the
 * interface does not have.
 */
export const SERVER_FORMS = formsOf(
  'server',
  COLLECTED,
  {
    user_data: nullable(Type.String(), { description: 'Base64, without white space.' }),
    disk_encrypted: Type.Boolean(),
    console_url: new Field(
      nullable(Type.String({ format: 'uri' })),
      sql`(select 'https://console.' || domain || '/' || servers.id from region where ${console_open_until} is not null)`,
    ),
    console_token: fixed(
      nullable(Type.String(), { description: 'Null but in the response of activate_console.' }),
      null,
    ),
    console_token_expires: new Field(NullableTime, 'console_open_until', formatOptionalTime),
    snapshots_schedule: fixed(NullableString, null),
    snapshots_schedule_next_at: fixed(NullableTime, null),
    snapshots_retention: fixed(NullableString, null),
    metadata_options: new Field(Type.Optional(MetadataOptionsSchema), 'metadata_options', (options: object | null) =>
      options === null ? undefined : completeOptions({}, options),
    ),
    tags: new Field(Type.Optional(Tags), 'tags', (tags: object) => (Object.keys(tags).length > 0 ? tags : undefined)),
  },
  { extra: { console_open_until } },
)
