/**
 * The nested form of every resource. It has the fields of the interface, and others that clients read
 * (docs/api.md#representations).
 */
import { sql } from 'kysely'
import Type, { type TSchema } from 'typebox'
import { MAX_IMAGE_DESCRIPTION, shortDescription } from '../changes/images.ts'
import { cloudIpFqdn } from '../model/names.ts'
import { ROWS } from '../model/resources.ts'
import { SCOPES_OF_GROUP } from '../model/scopes.ts'
import { Field, fixed, Form, linked, type Fields } from './kit/forms.ts'
import { HostName, Ipv4, Ipv6, Megabytes, NullableTime, enumOf, Time } from './kit/schemas.ts'
import { RESOURCES } from './kit/table.ts'

export const ARCHITECTURES = ['i686', 'x86_64'] as const

const Text = Type.String()
const fqdnOf = (table: string) =>
  new Field(HostName, sql`(select ${sql.ref(`${table}.id`)} || '.' || domain from region)`)

/** A summary is short: resources inside of others would have no bound with whole descriptions. */
const shortText = (table: string) =>
  new Field(
    Type.String({ description: 'Only the full form has more than 255 characters of it.' }),
    shortDescription(table),
    // no half of a surrogate pair
    (text: string) => text.slice(0, MAX_IMAGE_DESCRIPTION).replace(/[\ud800-\udbff]$/, ''),
  )

const FIELDS = {
  account: { name: Text, status: enumOf(ROWS.account.states) },
  user: {
    name: Text,
    email_address: Type.String({ format: 'email' }),
    '2fa': new Field(
      Type.Object({ enabled: Type.Boolean() }),
      sql`(users.totp_secret is not null)`,
      (enabled: boolean) => ({ enabled }),
    ),
  },
  apiClient: {
    name: Text,
    description: shortText('api_clients'),
    permissions_group: enumOf(Object.keys(SCOPES_OF_GROUP)),
    trusted_servers: new Field(
      Type.Optional(Type.String({ description: 'An extension. The server group whose servers may act as it.' })),
      'trusted_servers',
      (group: string | null) => group ?? undefined,
    ),
    revoked_at: NullableTime,
  },
  zone: { handle: Text },
  serverType: {
    name: Text,
    status: enumOf(ROWS.serverType.states),
    cores: Type.Integer(),
    ram: Megabytes,
    disk_size: Megabytes,
    handle: Text,
    storage_type: Text,
  },
  image: {
    name: Text,
    username: Text,
    status: Type.String({
      description: 'The region file may give any other status.',
      examples: [...ROWS.image.states, 'deleted'],
    }),
    locked: Type.Boolean(),
    description: shortText('images'),
    source: Text,
    source_trigger: Text,
    arch: enumOf(ARCHITECTURES),
    created_at: Time,
    official: Type.Boolean(),
    public: Type.Boolean(),
    owner: new Field(
      Type.String({ description: 'The id of an account. Empty: an image of the region.' }),
      'account_id',
      (id: string | null) => id ?? '',
    ),
  },
  interface: {
    mac_address: Type.String({ pattern: '^([0-9a-f]{2}:){5}[0-9a-f]{2}$' }),
    ipv4_address: Ipv4,
    /** Left out if there is none: libcloud lists a null among the public addresses. */
    ipv6_address: new Field(Type.Optional(Ipv6), 'ipv6_address', (address: string | null) => address ?? undefined),
  },
  server: {
    name: Text,
    status: enumOf(ROWS.server.states),
    locked: Type.Boolean(),
    hostname: new Field(HostName, 'id'),
    fqdn: fqdnOf('servers'),
    created_at: Time,
    started_at: NullableTime,
    deleted_at: NullableTime,
  },
  serverGroup: {
    name: Text,
    description: shortText('server_groups'),
    created_at: Time,
    default: new Field(Type.Boolean(), 'is_default'),
    fqdn: fqdnOf('server_groups'),
  },
  cloudIp: {
    name: Text,
    public_ip: new Field(Ipv4, 'public_ipv4'),
    public_ipv4: Ipv4,
    public_ipv6: Ipv6,
    fqdn: new Field(
      HostName,
      sql`(select array[domain, cloud_ips.public_ipv4] from region)`,
      ([domain, address]: readonly [string, string]) => cloudIpFqdn(domain, address),
    ),
    status: enumOf(ROWS.cloudIp.states),
    reverse_dns: new Field(
      Type.String({ description: 'Empty: none.' }),
      'reverse_dns',
      (name: string | null) => name ?? '',
    ),
    mode: fixed(Type.Literal('nat'), 'nat'),
  },
  databaseType: { name: Text, description: Text, disk_size: Megabytes, ram: Megabytes },
  databaseServer: {
    name: Text,
    description: shortText('database_servers'),
    status: enumOf(ROWS.databaseServer.states),
    locked: Type.Boolean(),
    allow_access: Type.Array(Text),
    database_engine: Text,
    database_version: Text,
    maintenance_weekday: Type.Integer({ description: '0 is Sunday.' }),
    maintenance_hour: Type.Integer(),
    created_at: Time,
    updated_at: Time,
    deleted_at: NullableTime,
  },
} as const satisfies Readonly<Record<string, Fields>>

type Name = keyof typeof FIELDS
/** The forms in which resources are shown inside of others. */
export const NESTED = Object.fromEntries(
  Object.entries<Fields>(FIELDS).map(([key, fields]) => {
    const { name } = RESOURCES[key as Name]
    return [key, new Form(key as Name, fields, { title: key === 'databaseType' ? name : `Nested${name}` })]
  }),
) as Readonly<Record<Name, Form>>

export function unimplementedForm(name: 'FirewallPolicy' | 'LoadBalancer', type: string): TSchema {
  const title = `Nested${name}`
  return Type.Object({ id: Text, resource_type: Type.Literal(type), url: Type.String({ format: 'uri' }) }, { title })
}

/** The account that a resource belongs to. */
export const ACCOUNT = linked(NESTED.account, sql`accounts.id = account_id`)
