/** The tables of the region file, and the rules by which `apply` changes their rows. */
import { sql, type Insertable, type RawBuilder, type Selectable } from 'kysely'
import type { Tables } from '../database/tables.ts'

/** In the order in which they are applied: a row comes after those to which it refers. */
export const REGION_TABLES = [
  'region',
  'zones',
  'server_types',
  'hypervisors',
  'users',
  'accounts',
  'images',
  'api_clients',
  'applications',
  'database_server_types',
  'database_servers',
  'address_pools',
] as const satisfies readonly (keyof Tables)[]
export type RegionTable = (typeof REGION_TABLES)[number]

/** A row as the file has it, and as the database has it. */
export type WantedRow<Name extends RegionTable> = Insertable<Tables[Name]>
export type CurrentRow<Name extends RegionTable> = Selectable<Tables[Name]>
export type RegionColumn<Name extends RegionTable> = keyof WantedRow<Name> & keyof CurrentRow<Name> & string

/** The columns that are in the records of servers (publish/compose.ts) and that a file can change. */
export const SEEN_BY_GUESTS = {
  region: ['name', 'domain'],
  zones: ['handle'],
  server_types: ['handle'],
} as const satisfies { readonly [Name in RegionTable]?: readonly RegionColumn<Name>[] }

/** The rules by which `apply` changes the rows of a table. */
export interface TableRule<Name extends RegionTable> {
  readonly key: readonly RegionColumn<Name>[]
  /** The column that names a row in the difference, if that is not the key. */
  readonly name?: RegionColumn<Name>
  /** The columns of an existing row that keep their values. */
  readonly keptColumns?: (wanted: WantedRow<Name>, current: CurrentRow<Name>) => readonly RegionColumn<Name>[]
  /**
   * The living rows that use a row, if deleted servers are shown with it: then it is not deleted, but gets
   * `removed_at`, or an image the status `deleted`.
   */
  readonly usedBy?: (key: string) => RawBuilder<unknown>
}

/** The fields of the region file that are initial values, because requests can change them. */
const [USER, ACCOUNT, IMAGE, CLIENT] = [
  ['name', 'ssh_key', 'messaging_pref'],
  [
    'name',
    'address_1',
    'address_2',
    'city',
    'county',
    'postcode',
    'country_code',
    'vat_registration_number',
    'telephone_number',
  ],
  ['name', 'username', 'status', 'locked', 'description', 'arch', 'public', 'compatibility_mode', 'min_ram'],
  ['name', 'description'],
] as const
/** The secret before a reset_secret that keeps it for a while. It ends with the secret that replaced it. */
const FORMER_SECRET = ['former_secret_sha256', 'former_secret_until'] as const

/** docs/region-file.md#what-apply-changes explains it to operators. */
export const TABLE_RULES: { readonly [Name in RegionTable]: TableRule<Name> } = {
  region: { key: ['only_row'], name: 'name' },
  zones: {
    key: ['id'],
    usedBy: (id) => sql`
      select from servers where zone_id = ${id} and deleted_at is null
      union all select from hypervisors where zone_id = ${id} and removed_at is null`,
  },
  server_types: {
    key: ['id'],
    usedBy: (id) => sql`select from servers where server_type_id = ${id} and deleted_at is null`,
  },
  hypervisors: {
    key: ['name'],
    usedBy: (name) => sql`select from servers where ${name} in (hypervisor, migrating_to) and deleted_at is null`,
  },
  users: { key: ['id'], keptColumns: () => USER },
  accounts: { key: ['id'], keptColumns: () => ACCOUNT },
  images: {
    key: ['id'],
    keptColumns: ({ account_id }) => (account_id === null ? [] : IMAGE), // no request changes an image without an account
    usedBy: (id) => sql`select from servers where image_id = ${id} and deleted_at is null`,
  },
  api_clients: {
    key: ['id'],
    keptColumns: (wanted, current) => {
      const secrets = keptSecrets(wanted, current)
      return [...CLIENT, 'permissions_group', ...secrets, ...(secrets.includes('secret_sha256') ? FORMER_SECRET : [])]
    },
  },
  applications: { key: ['id'], keptColumns: (wanted, current) => [...CLIENT, ...keptSecrets(wanted, current)] },
  database_server_types: { key: ['id'] },
  database_servers: { key: ['id'], keptColumns: () => ['name', 'description'] },
  address_pools: { key: ['kind', 'range'] },
}

/** An API client or an application. */
interface Client {
  readonly account_id: string
  readonly secret_file_sha256?: Buffer | null | undefined
}

/**
 * The columns of a client's secret that keep their values. The secret changes only if the file has another one than
 * before, so the secret of a later reset_secret stays. A client that moves to another account gets the file's secret in
 * any case, because the old account knows the former secret.
 */
function keptSecrets(wanted: Client, current: Client): readonly ('secret_sha256' | 'secret_file_sha256')[] {
  if (wanted.account_id !== current.account_id) return []
  const secret = wanted.secret_file_sha256 ?? undefined
  if (secret === undefined) return ['secret_sha256', 'secret_file_sha256']
  return current.secret_file_sha256?.equals(secret) === true ? ['secret_sha256'] : []
}
