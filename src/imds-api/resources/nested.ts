/**
 * The nested form of every resource: its schema, and the function that makes it from a row. It has the fields of the
 * interface, and others that clients read (docs/api.md#representations).
 */
import type { Selectable } from 'kysely'
import Type, { type Static, type TNull, type TObject, type TProperties, type TUnion } from 'typebox'
import { shortDescription, MAX_IMAGE_DESCRIPTION, IMAGE_STATES } from '../changes/images.ts'
import { cloudIpFqdn } from '../model/names.ts'
import type { Tables } from '../database/tables.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { ACCOUNT_STATES, type AccountStatus } from '../model/account-states.ts'
import { CLOUD_IP_STATES } from '../model/cloud-ip-states.ts'
import { DATABASE_SERVER_STATES } from '../model/database-server-states.ts'
import { SCOPES_OF_GROUP, type PermissionsGroup } from '../model/scopes.ts'
import { SERVER_STATES } from '../model/server-actions.ts'
import { SERVER_TYPE_STATES } from '../model/server-type-states.ts'
import { RESOURCES, type Resource } from './table.ts'

/** The URL of this API, without a final slash, and the domain of its region. */
export interface Site {
  readonly baseUrl: string
  readonly domain: string
}

/** Text or null. */
export const NullableString = Type.Union([Type.String(), Type.Null()])
/** A name in a request. Some clients clear it with null. */
export const GivenName = Type.Union([Type.String({ maxLength: 255 }), Type.Null()], {
  description: 'Null is the same as an empty text.',
})
/** An id in a body, or where the description says so a handle. */
export const GivenId = Type.String({ minLength: 1 })
/** A time. */
export const Time = Type.String({ format: 'date-time', description: 'UTC, such as 2026-11-20T15:04:05Z.' })
/** A time, or null. */
export const NullableTime = Type.Union([Time, Type.Null()])

/** The architectures of images. */
export const ARCHITECTURES = ['i686', 'x86_64'] as const
const Ipv4 = Type.String({ format: 'ipv4' })
const HostName = Type.String({ format: 'hostname' })

/** One of some texts. With its type, unlike Type.Enum, since the serializer of such a text is faster. */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the schema
export function oneOf<const T extends readonly string[]>(values: T) {
  return Type.Unsafe<T[number]>({ type: 'string', enum: [...values] })
}

/** The schema of a representation, whose title is `name`: id, resource_type and url, and more. */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the schema
export function representation<T extends TProperties>(name: string, { type }: Pick<Resource, 'type'>, properties: T) {
  return Type.Object(
    {
      id: Type.String(),
      resource_type: Type.Literal(type),
      url: Type.String({ format: 'uri' }),
      ...properties,
    },
    { title: name },
  )
}

/** A field that is always null. It has a form too, since generators leave out what is only null. */
export function alwaysNull<T extends TObject>(form: T): TUnion<[T, TNull]> {
  return Type.Union([form, Type.Null()], { description: 'Always null.' })
}

/** Names columns with their table. */
function columnsOf<const Table extends keyof Tables, const Columns extends readonly (keyof Tables[Table] & string)[]>(
  table: Table,
  columns: Columns,
): { readonly [I in keyof Columns]: `${Table}.${Columns[I]}` } {
  return columns.map((column) => `${table}.${column}`) as never
}

/** A row with these columns, or its JSON, in which a time is text. */
type RowOf<Columns extends readonly string[]> = {
  readonly [Column in Columns[number] as Column extends `${string}.${infer Name}` ? Name : never]: Value<Column>
}
type Value<Column> = Column extends `${infer Table extends keyof Tables}.${infer Name}`
  ? ValueOf<Selectable<Tables[Table]>, Name>
  : never
type ValueOf<Row, Name> = Name extends keyof Row ? OrText<Row[Name]> : never
type OrText<T> = T extends Date ? T | string : T

/** The first three fields of every representation. */
export function reference<T extends string>(
  site: Site,
  { type, path }: Pick<Resource<T>, 'type' | 'path'>,
  id: string,
): { id: string; resource_type: T; url: string } {
  return { id, resource_type: type, url: `${site.baseUrl}/1.0/${path}/${id}` }
}

/** A nested form. `columns`: of the row that `show` takes. */
interface Nested<Schema extends TObject, Columns extends readonly string[]> {
  readonly schema: Schema
  readonly columns: Columns
  readonly show: (site: Site, row: RowOf<Columns>) => Static<Schema>
}

function nested<Schema extends TObject, Columns extends readonly string[]>(
  schema: Schema,
  columns: Columns,
  show: (site: Site, row: RowOf<Columns>) => Static<Schema>,
): Nested<Schema, Columns> {
  return { schema, columns, show }
}

const IMAGE = representation('NestedImage', RESOURCES.image, {
  name: Type.String(),
  username: Type.String(),
  status: Type.String({
    description: 'The region file may give any other status.',
    examples: IMAGE_STATES.filter((state) => state !== 'other'),
  }),
  locked: Type.Boolean(),
  description: Type.String({ description: 'Only the full form has more than 255 characters of it.' }),
  source: Type.String(),
  source_trigger: Type.String(),
  arch: oneOf(ARCHITECTURES),
  created_at: Time,
  official: Type.Boolean(),
  public: Type.Boolean(),
  owner: Type.String({ description: 'The id of an account. Empty: an image of the region.' }),
})
/** Without the description, which may have 64 KiB. */
export const SHORT_IMAGE_COLUMNS = columnsOf('images', [
  'id',
  'name',
  'username',
  'status',
  'locked',
  'source',
  'source_trigger',
  'arch',
  'created_at',
  'official',
  'public',
  'account_id',
])

/** The forms in which resources are shown inside of others. */
export const NESTED = {
  account: nested(
    representation('NestedAccount', RESOURCES.account, {
      name: Type.String(),
      status: oneOf(ACCOUNT_STATES),
    }),
    columnsOf('accounts', ['id', 'name', 'status']),
    (site, row) => ({ ...reference(site, RESOURCES.account, row.id), name: row.name, status: row.status }),
  ),
  user: nested(
    representation('NestedUser', RESOURCES.user, {
      name: Type.String(),
      email_address: Type.String({ format: 'email' }),
      '2fa': Type.Object({ enabled: Type.Boolean() }),
    }),
    columnsOf('users', ['id', 'name', 'email_address', 'totp_secret']),
    (site, row) => ({
      ...reference(site, RESOURCES.user, row.id),
      name: row.name,
      email_address: row.email_address,
      '2fa': { enabled: row.totp_secret !== null },
    }),
  ),
  apiClient: nested(
    representation('NestedApiClient', RESOURCES.apiClient, {
      name: Type.String(),
      description: Type.String(),
      permissions_group: oneOf(Object.keys(SCOPES_OF_GROUP) as PermissionsGroup[]),
      revoked_at: NullableTime,
    }),
    columnsOf('api_clients', ['id', 'name', 'description', 'permissions_group', 'revoked_at']),
    (site, row) => ({
      ...reference(site, RESOURCES.apiClient, row.id),
      name: row.name,
      description: row.description,
      permissions_group: row.permissions_group,
      revoked_at: formatOptionalTime(row.revoked_at),
    }),
  ),
  zone: nested(
    representation('NestedZone', RESOURCES.zone, { handle: Type.String() }),
    columnsOf('zones', ['id', 'handle']),
    (site, row) => ({ ...reference(site, RESOURCES.zone, row.id), handle: row.handle }),
  ),
  serverType: nested(
    representation('NestedServerType', RESOURCES.serverType, {
      name: Type.String(),
      status: oneOf(SERVER_TYPE_STATES),
      cores: Type.Integer(),
      ram: Type.Integer({ description: 'MB.' }),
      disk_size: Type.Integer({ description: 'MB.' }),
      handle: Type.String(),
      storage_type: Type.String(),
    }),
    columnsOf('server_types', ['id', 'name', 'status', 'cores', 'ram', 'disk_size', 'handle', 'storage_type']),
    (site, row) => {
      const { name, status, cores, ram, disk_size, handle, storage_type } = row
      return {
        ...reference(site, RESOURCES.serverType, row.id),
        ...{ name, status, cores, ram, disk_size, handle, storage_type },
      }
    },
  ),
  image: {
    schema: IMAGE,
    columns: [...SHORT_IMAGE_COLUMNS, shortDescription('images').as('description')],
    show(site: Site, row: RowOf<typeof SHORT_IMAGE_COLUMNS> & { readonly description: string }): Static<typeof IMAGE> {
      const { name, username, status, locked, source, source_trigger, arch, official } = row
      // no half of a surrogate pair
      const description = row.description.slice(0, MAX_IMAGE_DESCRIPTION).replace(/[\ud800-\udbff]$/, '')
      return {
        ...reference(site, RESOURCES.image, row.id),
        ...{ name, username, status, locked, description, source, source_trigger, arch, official },
        created_at: formatTime(row.created_at),
        public: row.public,
        owner: row.account_id ?? '',
      }
    },
  },
  interface: nested(
    representation('NestedInterface', RESOURCES.interface, {
      mac_address: Type.String({ pattern: '^([0-9a-f]{2}:){5}[0-9a-f]{2}$' }),
      ipv4_address: Ipv4,
    }),
    columnsOf('interfaces', ['id', 'mac_address', 'ipv4_address']),
    (site, row) => ({
      ...reference(site, RESOURCES.interface, row.id),
      mac_address: row.mac_address,
      ipv4_address: row.ipv4_address,
    }),
  ),
  server: nested(
    representation('NestedServer', RESOURCES.server, {
      name: Type.String(),
      status: oneOf(SERVER_STATES),
      locked: Type.Boolean(),
      hostname: HostName,
      fqdn: HostName,
      created_at: Time,
      started_at: NullableTime,
      deleted_at: NullableTime,
    }),
    columnsOf('servers', ['id', 'name', 'status', 'locked', 'created_at', 'started_at', 'deleted_at']),
    (site, row) => ({
      ...reference(site, RESOURCES.server, row.id),
      name: row.name,
      status: row.status,
      locked: row.locked,
      hostname: row.id,
      fqdn: `${row.id}.${site.domain}`,
      created_at: formatTime(row.created_at),
      started_at: formatOptionalTime(row.started_at),
      deleted_at: formatOptionalTime(row.deleted_at),
    }),
  ),
  serverGroup: nested(
    representation('NestedServerGroup', RESOURCES.serverGroup, {
      name: Type.String(),
      description: Type.String(),
      created_at: Time,
      default: Type.Boolean(),
      fqdn: HostName,
    }),
    columnsOf('server_groups', ['id', 'name', 'description', 'is_default', 'created_at']),
    (site, row) => ({
      ...reference(site, RESOURCES.serverGroup, row.id),
      name: row.name,
      description: row.description,
      created_at: formatTime(row.created_at),
      default: row.is_default,
      fqdn: `${row.id}.${site.domain}`,
    }),
  ),
  cloudIp: nested(
    representation('NestedCloudIp', RESOURCES.cloudIp, {
      name: Type.String(),
      public_ip: Ipv4,
      public_ipv4: Ipv4,
      public_ipv6: Type.String({ format: 'ipv6' }),
      fqdn: HostName,
      status: oneOf(CLOUD_IP_STATES),
      reverse_dns: Type.String({ description: 'Empty: none.' }),
      mode: Type.Literal('nat'),
    }),
    columnsOf('cloud_ips', ['id', 'name', 'public_ipv4', 'public_ipv6', 'status', 'reverse_dns']),
    (site, row) => {
      const { name, public_ipv4, public_ipv6, status, reverse_dns } = row
      return {
        ...reference(site, RESOURCES.cloudIp, row.id),
        name,
        public_ip: public_ipv4,
        public_ipv4,
        public_ipv6,
        fqdn: cloudIpFqdn(site.domain, public_ipv4),
        status,
        reverse_dns: reverse_dns ?? '',
        mode: 'nat' as const,
      }
    },
  ),
  databaseType: nested(
    representation('DatabaseType', RESOURCES.databaseType, {
      name: Type.String(),
      description: Type.String(),
      disk_size: Type.Integer({ description: 'MB.' }),
      ram: Type.Integer({ description: 'MB.' }),
    }),
    columnsOf('database_server_types', ['id', 'name', 'description', 'disk_size', 'ram']),
    (site, { id, name, description, disk_size, ram }) => ({
      ...reference(site, RESOURCES.databaseType, id),
      name,
      description,
      disk_size,
      ram,
    }),
  ),
  databaseServer: nested(
    representation('NestedDatabaseServer', RESOURCES.databaseServer, {
      name: Type.String(),
      description: Type.String(),
      status: oneOf(DATABASE_SERVER_STATES),
      locked: Type.Boolean(),
      allow_access: Type.Array(Type.String()),
      database_engine: Type.String(),
      database_version: Type.String(),
      maintenance_weekday: Type.Integer({ description: '0 is Sunday.' }),
      maintenance_hour: Type.Integer(),
      created_at: Time,
      updated_at: Time,
      deleted_at: NullableTime,
    }),
    columnsOf('database_servers', [
      ...([
        'id',
        'name',
        'description',
        'status',
        'locked',
        'allow_access',
        'database_engine',
        'database_version',
      ] as const),
      ...(['maintenance_weekday', 'maintenance_hour', 'created_at', 'updated_at', 'deleted_at'] as const),
    ]),
    (site, row) => {
      const { name, description, status, locked, database_engine, database_version } = row
      const { maintenance_weekday, maintenance_hour } = row
      return {
        ...reference(site, RESOURCES.databaseServer, row.id),
        ...{
          name,
          description,
          status,
          locked,
          database_engine,
          database_version,
          maintenance_weekday,
          maintenance_hour,
        },
        allow_access: [...row.allow_access],
        created_at: formatTime(row.created_at),
        updated_at: formatTime(row.updated_at),
        deleted_at: formatOptionalTime(row.deleted_at),
      }
    },
  ),
} as const

/** The account of a row that is joined with `accounts`. */
export const ACCOUNT_COLUMNS = [
  'accounts.id as account_id',
  'accounts.name as account_name',
  'accounts.status as account_status',
] as const
export function accountOf(
  site: Site,
  row: { readonly account_id: string; readonly account_name: string; readonly account_status: AccountStatus },
): Static<typeof NESTED.account.schema> {
  return NESTED.account.show(site, { id: row.account_id, name: row.account_name, status: row.account_status })
}
