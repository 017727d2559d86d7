/**
 * The nested form of every resource: its schema, and the function that makes it from a row. It has the fields of the
 * interface, and others that clients read (docs/api.md#representations).
 */
import Type, { type Static, type TNull, type TObject, type TProperties, type TUnion } from 'typebox'
import { shortDescription, MAX_IMAGE_DESCRIPTION, IMAGE_STATES } from '../changes/images.ts'
import { cloudIpFqdn } from '../model/names.ts'
import { formatOptionalTime, formatTime } from '../model/time.ts'
import { ACCOUNT_STATES, type AccountStatus } from '../model/account-states.ts'
import { CLOUD_IP_STATES, type CloudIpStatus } from '../model/cloud-ip-states.ts'
import { DATABASE_SERVER_STATES, type DatabaseServerStatus } from '../model/database-server-states.ts'
import { SCOPES_OF_GROUP, type PermissionsGroup } from '../model/scopes.ts'
import { SERVER_STATES, type ServerStatus } from '../model/server-actions.ts'
import { SERVER_TYPE_STATES, type ServerTypeStatus } from '../model/server-type-states.ts'

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

/** The schema of a representation: id, resource_type and url, and more. */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the schema
export function representation<T extends TProperties>(name: string, resourceType: string, properties: T) {
  return Type.Object(
    {
      id: Type.String(),
      resource_type: Type.Literal(resourceType),
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

/**
 * The parameter of the path of a member. `example`: an id or handle that the demo's region has, at least once the first
 * such resource is created.
 */
// eslint-disable-next-line @typescript-eslint/explicit-module-boundary-types -- the type is the schema
export function idParams(example: string, description = 'The id.') {
  return Type.Object({ id: Type.String({ description, examples: [example] }) })
}

/** The first three fields of every representation. `path`: of its collection, such as servers. */
export function reference<T extends string>(
  site: Site,
  resourceType: T,
  path: string,
  id: string,
): { id: string; resource_type: T; url: string } {
  return { id, resource_type: resourceType, url: `${site.baseUrl}/1.0/${path}/${id}` }
}

export const NestedAccount = representation('NestedAccount', 'account', {
  name: Type.String(),
  status: oneOf(ACCOUNT_STATES),
})
export function nestedAccount(
  site: Site,
  row: { readonly id: string; readonly name: string; readonly status: AccountStatus },
): Static<typeof NestedAccount> {
  return { ...reference(site, 'account', 'accounts', row.id), name: row.name, status: row.status }
}

export const NestedUser = representation('NestedUser', 'user', {
  name: Type.String(),
  email_address: Type.String({ format: 'email' }),
  '2fa': Type.Object({ enabled: Type.Boolean() }),
})
export interface UserRow {
  readonly id: string
  readonly name: string
  readonly email_address: string
  readonly totp_secret: string | null
}
/** The columns of a UserRow. */
export const USER_COLUMNS = ['users.id', 'users.name', 'users.email_address', 'users.totp_secret'] as const
export function nestedUser(site: Site, row: UserRow): Static<typeof NestedUser> {
  return {
    ...reference(site, 'user', 'users', row.id),
    name: row.name,
    email_address: row.email_address,
    '2fa': { enabled: row.totp_secret !== null },
  }
}

export const NestedApiClient = representation('NestedApiClient', 'api_client', {
  name: Type.String(),
  description: Type.String(),
  permissions_group: oneOf(Object.keys(SCOPES_OF_GROUP) as PermissionsGroup[]),
  revoked_at: NullableTime,
})
export interface ApiClientRow {
  readonly id: string
  readonly name: string
  readonly description: string
  readonly permissions_group: PermissionsGroup
  readonly revoked_at: Date | string | null
}
/** The columns of an ApiClientRow. */
export const API_CLIENT_COLUMNS = [
  'api_clients.id',
  'api_clients.name',
  'api_clients.description',
  'api_clients.permissions_group',
  'api_clients.revoked_at',
] as const
export function nestedApiClient(site: Site, row: ApiClientRow): Static<typeof NestedApiClient> {
  return {
    ...reference(site, 'api_client', 'api_clients', row.id),
    name: row.name,
    description: row.description,
    permissions_group: row.permissions_group,
    revoked_at: formatOptionalTime(row.revoked_at),
  }
}

export const NestedZone = representation('NestedZone', 'zone', { handle: Type.String() })
export function nestedZone(
  site: Site,
  row: { readonly id: string; readonly handle: string },
): Static<typeof NestedZone> {
  return { ...reference(site, 'zone', 'zones', row.id), handle: row.handle }
}

export const NestedServerType = representation('NestedServerType', 'server_type', {
  name: Type.String(),
  status: oneOf(SERVER_TYPE_STATES),
  cores: Type.Integer(),
  ram: Type.Integer({ description: 'MB.' }),
  disk_size: Type.Integer({ description: 'MB.' }),
  handle: Type.String(),
  storage_type: Type.String(),
})
export interface ServerTypeRow {
  readonly id: string
  readonly name: string
  readonly status: ServerTypeStatus
  readonly cores: number
  readonly ram: number
  readonly disk_size: number
  readonly handle: string
  readonly storage_type: string
}
/** The columns of a ServerTypeRow. */
export const SERVER_TYPE_COLUMNS = [
  'server_types.id',
  'server_types.name',
  'server_types.status',
  'server_types.cores',
  'server_types.ram',
  'server_types.disk_size',
  'server_types.handle',
  'server_types.storage_type',
] as const
export function nestedServerType(site: Site, row: ServerTypeRow): Static<typeof NestedServerType> {
  const { name, status, cores, ram, disk_size, handle, storage_type } = row
  return {
    ...reference(site, 'server_type', 'server_types', row.id),
    name,
    status,
    cores,
    ram,
    disk_size,
    handle,
    storage_type,
  }
}

export const NestedImage = representation('NestedImage', 'image', {
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
export interface ImageRow {
  readonly id: string
  readonly name: string
  readonly username: string
  readonly status: string
  readonly locked: boolean
  readonly description: string
  readonly source: string
  readonly source_trigger: string
  readonly arch: (typeof ARCHITECTURES)[number]
  readonly created_at: Date | string
  readonly official: boolean
  readonly public: boolean
  readonly account_id: string | null
}
/** The columns of an ImageRow, but the description, which may have 64 KiB. */
export const SHORT_IMAGE_COLUMNS = [
  'images.id',
  'images.name',
  'images.username',
  'images.status',
  'images.locked',
  'images.source',
  'images.source_trigger',
  'images.arch',
  'images.created_at',
  'images.official',
  'images.public',
  'images.account_id',
] as const
/** The columns of an ImageRow. */
export const IMAGE_COLUMNS = [...SHORT_IMAGE_COLUMNS, shortDescription('images').as('description')] as const
export function nestedImage(site: Site, row: ImageRow): Static<typeof NestedImage> {
  const { name, username, status, locked, source, source_trigger, arch, official } = row
  // no half of a surrogate pair
  const description = row.description.slice(0, MAX_IMAGE_DESCRIPTION).replace(/[\ud800-\udbff]$/, '')
  return {
    ...reference(site, 'image', 'images', row.id),
    name,
    username,
    status,
    locked,
    description,
    source,
    source_trigger,
    arch,
    created_at: formatTime(row.created_at),
    official,
    public: row.public,
    owner: row.account_id ?? '',
  }
}

export const NestedInterface = representation('NestedInterface', 'interface', {
  mac_address: Type.String({ pattern: '^([0-9a-f]{2}:){5}[0-9a-f]{2}$' }),
  ipv4_address: Ipv4,
})
export interface InterfaceRow {
  readonly id: string
  readonly mac_address: string
  readonly ipv4_address: string
}
/** The columns of an InterfaceRow. */
export const INTERFACE_COLUMNS = ['interfaces.id', 'interfaces.mac_address', 'interfaces.ipv4_address'] as const
export function nestedInterface(site: Site, row: InterfaceRow): Static<typeof NestedInterface> {
  return {
    ...reference(site, 'interface', 'interfaces', row.id),
    mac_address: row.mac_address,
    ipv4_address: row.ipv4_address,
  }
}

export const NestedServer = representation('NestedServer', 'server', {
  name: Type.String(),
  status: oneOf(SERVER_STATES),
  locked: Type.Boolean(),
  hostname: HostName,
  fqdn: HostName,
  created_at: Time,
  started_at: NullableTime,
  deleted_at: NullableTime,
})
export interface ServerRow {
  readonly id: string
  readonly name: string
  readonly status: ServerStatus
  readonly locked: boolean
  readonly created_at: Date | string
  readonly started_at: Date | string | null
  readonly deleted_at: Date | string | null
}
/** The columns of a ServerRow. */
export const SERVER_COLUMNS = [
  'servers.id',
  'servers.name',
  'servers.status',
  'servers.locked',
  'servers.created_at',
  'servers.started_at',
  'servers.deleted_at',
] as const
export function nestedServer(site: Site, row: ServerRow): Static<typeof NestedServer> {
  return {
    ...reference(site, 'server', 'servers', row.id),
    name: row.name,
    status: row.status,
    locked: row.locked,
    hostname: row.id,
    fqdn: `${row.id}.${site.domain}`,
    created_at: formatTime(row.created_at),
    started_at: formatOptionalTime(row.started_at),
    deleted_at: formatOptionalTime(row.deleted_at),
  }
}

export const NestedServerGroup = representation('NestedServerGroup', 'server_group', {
  name: Type.String(),
  description: Type.String(),
  created_at: Time,
  default: Type.Boolean(),
  fqdn: HostName,
})
export interface ServerGroupRow {
  readonly id: string
  readonly name: string
  readonly description: string
  readonly is_default: boolean
  readonly created_at: Date | string
}
/** The columns of a ServerGroupRow. */
export const SERVER_GROUP_COLUMNS = [
  'server_groups.id',
  'server_groups.name',
  'server_groups.description',
  'server_groups.is_default',
  'server_groups.created_at',
] as const
export function nestedServerGroup(site: Site, row: ServerGroupRow): Static<typeof NestedServerGroup> {
  return {
    ...reference(site, 'server_group', 'server_groups', row.id),
    name: row.name,
    description: row.description,
    created_at: formatTime(row.created_at),
    default: row.is_default,
    fqdn: `${row.id}.${site.domain}`,
  }
}

export const NestedCloudIp = representation('NestedCloudIp', 'cloud_ip', {
  name: Type.String(),
  public_ip: Ipv4,
  public_ipv4: Ipv4,
  public_ipv6: Type.String({ format: 'ipv6' }),
  fqdn: HostName,
  status: oneOf(CLOUD_IP_STATES),
  reverse_dns: Type.String({ description: 'Empty: none.' }),
  mode: Type.Literal('nat'),
})
export interface CloudIpRow {
  readonly id: string
  readonly name: string
  readonly public_ipv4: string
  readonly public_ipv6: string
  readonly status: CloudIpStatus
  readonly reverse_dns: string | null
}
/** The columns of a CloudIpRow. */
export const CLOUD_IP_COLUMNS = [
  'cloud_ips.id',
  'cloud_ips.name',
  'cloud_ips.public_ipv4',
  'cloud_ips.public_ipv6',
  'cloud_ips.status',
  'cloud_ips.reverse_dns',
] as const
export function nestedCloudIp(site: Site, row: CloudIpRow): Static<typeof NestedCloudIp> {
  const { name, public_ipv4, public_ipv6, status, reverse_dns } = row
  return {
    ...reference(site, 'cloud_ip', 'cloud_ips', row.id),
    name,
    public_ip: public_ipv4,
    public_ipv4,
    public_ipv6,
    fqdn: cloudIpFqdn(site.domain, public_ipv4),
    status,
    reverse_dns: reverse_dns ?? '',
    mode: 'nat',
  }
}

export const NestedDatabaseType = representation('DatabaseType', 'database_type', {
  name: Type.String(),
  description: Type.String(),
  disk_size: Type.Integer({ description: 'MB.' }),
  ram: Type.Integer({ description: 'MB.' }),
})
export interface DatabaseTypeRow {
  readonly id: string
  readonly name: string
  readonly description: string
  readonly disk_size: number
  readonly ram: number
}
export function nestedDatabaseType(
  site: Site,
  { id, name, description, disk_size, ram }: DatabaseTypeRow,
): Static<typeof NestedDatabaseType> {
  return { ...reference(site, 'database_type', 'database_types', id), name, description, disk_size, ram }
}

export const NestedDatabaseServer = representation('NestedDatabaseServer', 'database_server', {
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
})
export interface DatabaseServerRow {
  readonly id: string
  readonly name: string
  readonly description: string
  readonly status: DatabaseServerStatus
  readonly locked: boolean
  readonly allow_access: readonly string[]
  readonly database_engine: string
  readonly database_version: string
  readonly maintenance_weekday: number
  readonly maintenance_hour: number
  readonly created_at: Date | string
  readonly updated_at: Date | string
  readonly deleted_at: Date | string | null
}
export function nestedDatabaseServer(site: Site, row: DatabaseServerRow): Static<typeof NestedDatabaseServer> {
  const {
    name,
    description,
    status,
    locked,
    allow_access,
    database_engine,
    database_version,
    maintenance_weekday,
    maintenance_hour,
  } = row
  return {
    ...reference(site, 'database_server', 'database_servers', row.id),
    name,
    description,
    status,
    locked,
    allow_access: [...allow_access],
    database_engine,
    database_version,
    maintenance_weekday,
    maintenance_hour,
    created_at: formatTime(row.created_at),
    updated_at: formatTime(row.updated_at),
    deleted_at: formatOptionalTime(row.deleted_at),
  }
}
