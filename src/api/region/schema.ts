/**
 * The schema of the region file, which has what other systems decide (signing up, billing, hardware). Fields have the
 * names that the API gives them. Requests can change some of them later (docs/region-file.md#what-apply-changes).
 * deploy/region.example.yaml is an example.
 */
import Type, { type Static, type TSchema } from 'typebox'
import { Compile } from 'typebox/compile'
import { Format } from 'typebox/format'
import { Settings } from 'typebox/system'
import type { Parsed } from '../../metadata/parsed.ts'
import { parseDocument } from '../../store/document.ts'
import { isPasswordHash } from '../auth/password.ts'
import { ACCOUNT_LIMITS, type AccountLimit } from '../model/account-limits.ts'
import { ACCOUNT_STATES, ENDED_STATES } from '../model/account-states.ts'
import { DATABASE_SERVER_STATES } from '../model/database-server-states.ts'
import { isEmailAddress } from '../model/email-address.ts'
import { FORMATS } from '../model/formats.ts'
import { overlap, parseRange } from '../model/pools.ts'
import { SERVER_TYPE_STATES } from '../model/server-type-states.ts'
import { parseSshKey } from '../model/ssh-key.ts'

const Id = (prefix: string) => Type.String({ pattern: `^${prefix}-[0-9a-z]{5,6}$` })
const Handle = Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' })
const Optional = <T extends TSchema>(schema: T) => Type.Optional(schema)
const Positive = Type.Integer({ minimum: 1, maximum: 2_147_483_647 })
const Count = Type.Integer({ minimum: 0, maximum: 2_147_483_647 })
const Limits = Object.fromEntries(
  Object.entries(ACCOUNT_LIMITS).map(([name, { minimum }]) => [name, Optional(minimum === 0 ? Count : Positive)]),
) as Readonly<Record<AccountLimit, Type.TOptional<typeof Count>>>
const Line = Type.String({ maxLength: 255, format: 'line' })
const Telephone = Type.String({ format: 'telephone' })
/** A file beside the region file. */
const FileName = Type.String({ minLength: 1 })
const closed = { additionalProperties: false } as const

const RegionSchema = Type.Object(
  {
    name: Handle,
    domain: Type.String({ format: 'domain' }),
    library_ftp_host: Optional(Line),
    zones: Type.Array(Type.Object({ id: Id('zon'), handle: Handle }, closed), { minItems: 1 }),
    server_types: Type.Array(
      Type.Object(
        {
          id: Id('typ'),
          handle: Handle,
          name: Line,
          status: Optional(Type.Enum([...SERVER_TYPE_STATES])),
          cores: Positive,
          ram: Positive,
          disk_size: Positive,
          storage_type: Optional(Line),
        },
        closed,
      ),
      { minItems: 1 },
    ),
    images: Type.Array(
      Type.Object(
        {
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
        },
        closed,
      ),
    ),
    hypervisors: Type.Array(Type.Object({ name: Handle, zone: Handle, ram: Positive }, closed)),
    database_server_types: Optional(
      Type.Array(
        Type.Object(
          { id: Id('dbt'), name: Line, description: Optional(Line), disk_size: Positive, ram: Positive },
          closed,
        ),
      ),
    ),
    address_pools: Type.Object(
      {
        mac: Type.Array(Type.String()),
        private_ipv4: Type.Array(Type.String()),
        public_ipv4: Type.Array(Type.String()),
        public_ipv6: Type.Array(Type.String()),
      },
      closed,
    ),
    users: Type.Array(
      Type.Object(
        {
          id: Id('usr'),
          name: Line,
          email_address: Type.String(),
          email_verified: Optional(Type.Boolean()),
          ssh_key: Optional(Type.String()),
          messaging_pref: Optional(Type.Boolean()),
          password_file: Optional(FileName),
          password_hash: Optional(Type.String()),
          totp_secret_file: Optional(FileName),
        },
        closed,
      ),
    ),
    accounts: Type.Array(
      Type.Object(
        {
          id: Id('acc'),
          name: Line,
          owner: Id('usr'),
          collaborators: Optional(Type.Array(Id('usr'))),
          status: Optional(Type.Enum([...ACCOUNT_STATES])),
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
          verified_at: Optional(Type.String()),
          verified_ip: Optional(Line),
          valid_credit_card: Optional(Type.Boolean()),
          ram_limit: Count,
          dbs_ram_limit: Optional(Count),
          cloud_ips_limit: Count,
          load_balancers_limit: Optional(Count),
          block_storage_limit: Optional(Count),
          ...Limits,
          publish_images: Optional(Type.Boolean()),
        },
        closed,
      ),
    ),
    api_clients: Type.Array(
      Type.Object(
        {
          id: Id('cli'),
          account: Id('acc'),
          name: Line,
          description: Optional(Line),
          permissions_group: Optional(Type.Union([Type.Literal('full'), Type.Literal('storage')])),
          secret_file: Optional(FileName),
        },
        closed,
      ),
    ),
    database_servers: Optional(
      Type.Array(
        Type.Object(
          {
            id: Id('dbs'),
            account: Id('acc'),
            name: Optional(Line),
            description: Optional(Type.String({ maxLength: 4096 })),
            status: Optional(Type.Enum([...DATABASE_SERVER_STATES])),
            locked: Optional(Type.Boolean()),
            allow_access: Optional(Type.Array(Line)),
            database_engine: Line,
            database_version: Line,
            database_server_type: Id('dbt'),
            maintenance_weekday: Optional(Type.Integer({ minimum: 0, maximum: 6 })),
            maintenance_hour: Optional(Type.Integer({ minimum: 0, maximum: 23 })),
            zone: Handle,
          },
          closed,
        ),
      ),
    ),
    applications: Optional(
      Type.Array(
        Type.Object(
          {
            id: Id('app'),
            account: Id('acc'),
            name: Line,
            description: Optional(Line),
            secret_file: Optional(FileName),
          },
          closed,
        ),
      ),
    ),
  },
  closed,
)

/** A region file that was checked. */
export type RegionFile = Static<typeof RegionSchema>

for (const [name, { isValid }] of Object.entries(FORMATS)) Format.Set(name, isValid)
Settings.Set({ maxErrors: 1000 }) // without it the library stops at 8
const CHECK = Compile(RegionSchema)

export const POOL_KINDS = ['mac', 'private_ipv4', 'public_ipv4', 'public_ipv6'] as const

/**
 * Parses a region file. Reports every fault of the form of its entries at once, and if there is none, all others: ids
 * given twice, names that do not exist.
 */
export async function parseRegion(text: string): Promise<Parsed<RegionFile, string>> {
  const document = await parseDocument(text, 'YAML')
  if (!document.ok)
    return {
      ok: false,
      faults: document.faults.map(({ message, line }) =>
        line === undefined ? message : `line ${String(line)}: ${message}`,
      ),
    }
  const { value } = document
  if (!CHECK.Check(value)) return { ok: false, faults: formFaults(value) }
  const faults = [...duplicates(value), ...references(value), ...formats(value)]
  return faults.length > 0 ? { ok: false, faults } : { ok: true, value }
}

/** The faults of the form: one a place, the alternatives of a union joined by "or". */
function formFaults(value: unknown): string[] {
  const messages = new Map<string, string[]>()
  for (const { instancePath, keyword, params, message } of CHECK.Errors(value) as FormError[]) {
    const fields = [...(params.requiredProperties ?? []), ...(params.additionalProperties ?? [])]
    if (keyword === 'anyOf' || keyword === 'boolean') continue // what it consists of is a fault too
    for (const field of fields.length === 0 ? [''] : fields) {
      const place = `${instancePath}/${field}`
        .split('/')
        .filter((part) => part !== '')
        .join('.')
      messages.set(place, [...(messages.get(place) ?? []), formFault(keyword, params) ?? message])
    }
  }
  return [...messages].map(
    ([place, list]) => `${place === '' ? 'the file' : place} ${list.join(' or ').replaceAll(' or must be ', ' or ')}`,
  )
}

/** An error of the library, with the parameters that its keywords have. */
interface FormError {
  readonly instancePath: string
  readonly keyword: string
  readonly message: string
  readonly params: Readonly<Partial<Record<'requiredProperties' | 'additionalProperties', readonly string[]>>> & {
    readonly allowedValues?: readonly unknown[]
    readonly allowedValue?: unknown
    readonly format?: string
  }
}

function formFault(
  keyword: string,
  { allowedValues, allowedValue, format = '' }: FormError['params'],
): string | undefined {
  switch (keyword) {
    case 'required':
      return 'is missing'
    case 'additionalProperties':
      return 'is not a known field'
    case 'const':
      return `must be ${JSON.stringify(allowedValue)}`
    case 'enum':
      return `must be ${allowedValues!.map((value) => JSON.stringify(value)).join(' or ')}`
    case 'format':
      return FORMATS[format]?.fault
    default:
      return undefined
  }
}

/** Values that must be unique in the database. */
function duplicates(file: RegionFile): string[] {
  const {
    zones,
    server_types,
    images,
    hypervisors,
    address_pools,
    users,
    accounts,
    api_clients,
    applications = [],
    database_server_types = [],
    database_servers = [],
  } = file
  const lists = [
    [zones, server_types, images, users, accounts, api_clients, applications, database_server_types, database_servers]
      .flat()
      .map(({ id }) => id),
    hypervisors.map(({ name }) => name),
    ...[zones, server_types, images].map((list) => list.flatMap(({ handle }) => handle ?? [])),
    users.map(({ email_address }) => email_address.toLowerCase()),
    ...Object.values(address_pools),
  ]
  return lists.flatMap(repeated).map((text) => `${text} is given twice`)
}

/** The texts that a list has more than once. */
function repeated(list: readonly string[]): string[] {
  const once = new Set(list)
  return [...new Set(list.filter((text) => !once.delete(text)))]
}

function references(file: RegionFile): string[] {
  const {
    zones,
    hypervisors,
    accounts,
    users,
    api_clients,
    applications = [],
    images,
    database_server_types = [],
    database_servers = [],
  } = file
  const userIds = new Set(users.map(({ id }) => id))
  const accountIds = new Set(accounts.map(({ id }) => id))
  const used = accounts.filter(({ status = 'active' }) => !ENDED_STATES.includes(status))
  const firstOf = new Map(used.toReversed().map(({ id, owner }) => [owner, id]))
  return [
    ...hypervisors
      .filter(({ zone }) => !zones.some(({ handle }) => handle === zone))
      .map(({ name, zone }) => `hypervisors: ${name} is in the zone ${zone}, which zones does not have`),
    ...accounts.flatMap(({ id, owner, collaborators = [] }) =>
      [owner, ...collaborators]
        .filter((user) => !userIds.has(user))
        .map((user) => `accounts: ${id} names ${user}, which users does not have`),
    ),
    ...used
      .filter(({ id, owner }) => firstOf.get(owner) !== id)
      .map(
        ({ id, owner }) =>
          `accounts: ${owner} owns ${firstOf.get(owner)!} and ${id}, and a user owns one account that is not closed or deleted`,
      ),
    ...api_clients
      .filter(({ account }) => !accountIds.has(account))
      .map(({ id, account }) => `api_clients: ${id} belongs to ${account}, which accounts does not have`),
    ...applications
      .filter(({ account }) => !accountIds.has(account))
      .map(({ id, account }) => `applications: ${id} belongs to ${account}, which accounts does not have`),
    ...images
      .filter(({ account }) => account !== undefined && !accountIds.has(account))
      .map(({ id, account }) => `images: ${id} belongs to ${account!}, which accounts does not have`),
    ...images
      .filter(
        (image) =>
          image.public === true &&
          accounts.some(({ id, publish_images = false }) => id === image.account && !publish_images),
      )
      .map(({ id, account }) => `images: ${id} is public, and its account ${account!} has no publish_images: true`),
    ...database_servers.flatMap(({ id, account, zone, database_server_type: type }) => [
      ...(accountIds.has(account)
        ? []
        : [`database_servers: ${id} belongs to ${account}, which accounts does not have`]),
      ...(zones.some(({ handle }) => handle === zone)
        ? []
        : [`database_servers: ${id} is in the zone ${zone}, which zones does not have`]),
      ...(database_server_types.some((one) => one.id === type)
        ? []
        : [`database_servers: ${id} has the type ${type}, which database_server_types does not have`]),
    ]),
  ]
}

function formats({ address_pools, accounts, users }: RegionFile): string[] {
  return [
    ...POOL_KINDS.flatMap((kind) =>
      address_pools[kind].flatMap((range) => {
        const parsed = parseRange(kind, range)
        return parsed.ok ? [] : parsed.faults.map((fault) => `address_pools.${kind}: ${fault}`)
      }),
    ),
    ...overlaps(address_pools),
    ...users
      .filter(({ email_address }) => !isEmailAddress(email_address))
      .map(({ id }) => `users: ${id} has an email_address that is not one`),
    ...users.flatMap(({ id, ssh_key = '' }) => {
      const parsed = parseSshKey(ssh_key)
      return parsed.ok ? [] : parsed.faults.map((fault) => `users: the ssh_key of ${id} ${fault}`)
    }),
    ...accounts
      .filter(({ verified_at }) => verified_at !== undefined && Number.isNaN(Date.parse(verified_at)))
      .map(({ id }) => `accounts: ${id} has a verified_at that is not a time`),
    ...users
      .filter(({ password_hash }) => password_hash !== undefined && !isPasswordHash(password_hash))
      .map(
        ({ id }) => `users: ${id} has a password_hash that is not one of scrypt such as $scrypt$ln=15,r=8,p=3$SALT$KEY`,
      ),
    ...users
      .filter(({ password_file, password_hash }) => password_file !== undefined && password_hash !== undefined)
      .map(({ id }) => `users: ${id} has a password_file and a password_hash: keep one of them`),
  ]
}

/** Ranges of one kind that overlap: an address in both could be given twice. */
function overlaps(pools: RegionFile['address_pools']): string[] {
  return POOL_KINDS.flatMap((kind) => {
    const ranges = [...new Set(pools[kind])].flatMap((text) => {
      const parsed = parseRange(kind, text)
      return parsed.ok ? [{ text, range: parsed.value }] : []
    })
    return ranges.flatMap((one, i) =>
      ranges
        .slice(i + 1)
        .filter((other) => overlap(one.range, other.range))
        .map((other) => `address_pools.${kind}: ${one.text} and ${other.text} overlap`),
    )
  })
}
