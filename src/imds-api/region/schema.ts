/**
 * The schema of the region file, which has what other systems decide (signing up, billing, hardware). Fields have the
 * names that the API gives them. Requests can change some of them later (docs/region-file.md#what-apply-changes).
 * deploy/region.example.yaml is an example.
 */
import Type, { type Static, type TProperties } from 'typebox'
import { ACCOUNT_LIMITS, type AccountLimit } from '../model/account-limits.ts'
import { ROWS } from '../model/resources.ts'

const Id = (prefix: string) =>
  Type.String({ pattern: `^${prefix}-[0-9a-z]{5,6}$`, hint: `an id such as ${prefix}-demo1` })
const Handle = Type.String({
  pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$',
  hint: 'a name of at most 63 letters, digits, dots, dashes and underscores',
})
const { Optional } = Type
const MAX_INTEGER = 2_147_483_647
const Positive = Type.Integer({ minimum: 1, maximum: MAX_INTEGER })
const Count = Type.Integer({ minimum: 0, maximum: MAX_INTEGER })
const Limits = Object.fromEntries(
  Object.entries(ACCOUNT_LIMITS).map(([name, { minimum, maximum = MAX_INTEGER }]) => [
    name,
    Optional(Type.Integer({ minimum, maximum })),
  ]),
) as Readonly<Record<AccountLimit, Type.TOptional<typeof Count>>>
const Line = Type.String({ maxLength: 255, format: 'line' })
const Telephone = Type.String({ format: 'telephone' })
/** A file beside the region file. */
const FileName = Type.String({ minLength: 1 })
/** An object without other fields. */
const closed = <T extends TProperties>(fields: T) => Type.Object(fields, { additionalProperties: false })
const closedList = <T extends TProperties>(fields: T) => Type.Array(closed(fields))
const Client = (prefix: string) => ({
  id: Id(prefix),
  account: Id('acc'),
  name: Line,
  description: Optional(Line),
  secret_file: Optional(FileName),
})

export const RegionSchema = closed({
  name: Handle,
  domain: Type.String({ format: 'domain' }),
  library_ftp_host: Optional(Line),
  zones: Type.Array(closed({ id: Id('zon'), handle: Handle }), { minItems: 1 }),
  server_types: Type.Array(
    closed({
      id: Id('typ'),
      handle: Handle,
      name: Line,
      status: Optional(Type.Enum([...ROWS.serverType.states])),
      cores: Positive,
      ram: Positive,
      disk_size: Positive,
      storage_type: Optional(Line),
    }),
    { minItems: 1 },
  ),
  images: closedList({
    id: Id('img'),
    handle: Optional(Handle),
    account: Optional(Id('acc')),
    name: Line,
    username: Optional(Line),
    status: Optional(Line),
    description: Optional(Type.String()),
    source: Optional(Line),
    arch: Optional(Type.Union([Type.Literal('i686'), Type.Literal('x86_64')])),
    official: Optional(Type.Boolean()),
    public: Optional(Type.Boolean()),
    compatibility_mode: Optional(Type.Boolean()),
    min_ram: Optional(Positive),
    disk_size: Positive,
    virtual_size: Positive,
    licence_name: Optional(Line),
  }),
  hypervisors: closedList({ name: Handle, zone: Handle, ram: Positive }),
  database_server_types: Optional(
    closedList({ id: Id('dbt'), name: Line, description: Optional(Line), disk_size: Positive, ram: Positive }),
  ),
  address_pools: closed({
    mac: Type.Array(Type.String()),
    private_ipv4: Type.Array(Type.String()),
    public_ipv4: Type.Array(Type.String()),
    public_ipv6: Type.Array(Type.String()),
    ipv6: Optional(Type.Record(Type.String(), Type.String())),
  }),
  users: closedList({
    id: Id('usr'),
    name: Line,
    email_address: Type.String({ format: 'email-address' }),
    email_verified: Optional(Type.Boolean()),
    ssh_key: Optional(Type.String({ format: 'ssh-keys' })),
    messaging_pref: Optional(Type.Boolean()),
    password_file: Optional(FileName),
    password_hash: Optional(Type.String()),
    totp_secret_file: Optional(FileName),
  }),
  accounts: closedList({
    id: Id('acc'),
    name: Line,
    owner: Id('usr'),
    collaborators: Optional(Type.Array(Id('usr'))),
    status: Optional(Type.Enum([...ROWS.account.states])),
    address_1: Optional(Line),
    address_2: Optional(Line),
    city: Optional(Line),
    county: Optional(Line),
    postcode: Optional(Line),
    country_code: Type.String({ format: 'country-code' }),
    vat_registration_number: Optional(Type.String({ format: 'eu-vat-number' })),
    telephone_number: Telephone,
    telephone_verified: Optional(Type.Boolean()),
    verified_telephone: Optional(Telephone),
    verified_at: Optional(Type.String({ format: 'timestamp' })),
    verified_ip: Optional(Line),
    valid_credit_card: Optional(Type.Boolean()),
    ram_limit: Count,
    dbs_ram_limit: Optional(Count),
    cloud_ips_limit: Count,
    load_balancers_limit: Optional(Count),
    block_storage_limit: Optional(Count),
    ...Limits,
    publish_images: Optional(Type.Boolean()),
  }),
  api_clients: closedList({
    ...Client('cli'),
    permissions_group: Optional(Type.Union([Type.Literal('full'), Type.Literal('storage')])),
  }),
  database_servers: Optional(
    closedList({
      id: Id('dbs'),
      account: Id('acc'),
      name: Optional(Line),
      description: Optional(Type.String({ maxLength: 4096 })),
      status: Optional(Type.Enum([...ROWS.databaseServer.states])),
      locked: Optional(Type.Boolean()),
      allow_access: Optional(Type.Array(Line)),
      database_engine: Line,
      database_version: Line,
      database_server_type: Id('dbt'),
      maintenance_weekday: Optional(Type.Integer({ minimum: 0, maximum: 6 })),
      maintenance_hour: Optional(Type.Integer({ minimum: 0, maximum: 23 })),
      zone: Handle,
    }),
  ),
  applications: Optional(closedList(Client('app'))),
})

export type RegionFile = Static<typeof RegionSchema>
