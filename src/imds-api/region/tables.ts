/** The tables of the region file, and the rules by which `apply` changes their rows. */
import { sql, type Insertable, type RawBuilder, type Selectable, type Updateable } from 'kysely'
import { atDatabaseServers, moveCloudIps } from '../changes/cloud-ips.ts'
import type { Tables } from '../database/tables.ts'
import type { Tx } from '../database/transaction.ts'

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
  /** Whether `prune` deletes a row that the file does not have. `given`: the ids that region files have had. */
  readonly isPruned?: (row: CurrentRow<Name>, given: ReadonlySet<string>) => boolean
  /** How `prune` hides a row instead of deleting it, because deleted servers are shown with it. */
  readonly hiding?: {
    /** The rows that refer to it. `is_alive`: false for a deleted server and for a hidden hypervisor. */
    readonly references: (key: string) => RawBuilder<{ readonly is_alive: boolean }>
    readonly isHidden: (row: CurrentRow<Name>) => boolean
    readonly values: () => Updateable<Tables[Name]>
  }
  /** Deletes the rows that belong to a row. Returns the lines of the difference. */
  readonly deleteParts?: (tx: Tx, row: CurrentRow<Name>) => Promise<readonly string[]>
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
  region: { key: ['only_row'], name: 'name', isPruned: () => false },
  zones: {
    key: ['id'],
    hiding: {
      references: (id) => sql`
        select deleted_at is null as is_alive from servers where zone_id = ${id}
        union select removed_at is null from hypervisors where zone_id = ${id}`,
      ...hidingByTime(),
    },
  },
  server_types: {
    key: ['id'],
    hiding: {
      references: (id) => sql`select deleted_at is null as is_alive from servers where server_type_id = ${id}`,
      ...hidingByTime(),
    },
  },
  hypervisors: {
    key: ['name'],
    hiding: {
      references: (name) => sql`
        select deleted_at is null as is_alive from servers where ${name} in (hypervisor, migrating_to)`,
      ...hidingByTime(),
    },
  },
  users: { key: ['id'], keptColumns: () => USER, deleteParts: deletePartsOfUser },
  accounts: { key: ['id'], keptColumns: () => ACCOUNT, deleteParts: deletePartsOfAccount },
  images: {
    key: ['id'],
    keptColumns: ({ account_id }) => (account_id === null ? [] : IMAGE), // no request changes an image without an account
    isPruned: ({ source_server_id }) => source_server_id === null, // no region file has a snapshot
    hiding: {
      references: (id) => sql`select deleted_at is null as is_alive from servers where image_id = ${id}`,
      isHidden: ({ status }) => status === 'deleted',
      values: () => ({ status: 'deleted', handle: null }),
    },
  },
  api_clients: {
    key: ['id'],
    keptColumns: (wanted, current) => {
      const secrets = keptSecrets(wanted, current)
      return [...CLIENT, 'permissions_group', ...secrets, ...(secrets.includes('secret_sha256') ? FORMER_SECRET : [])]
    },
    isPruned: ({ id }, given) => given.has(id), // requests can make them too
  },
  applications: {
    key: ['id'],
    keptColumns: (wanted, current) => [...CLIENT, ...keptSecrets(wanted, current)],
    isPruned: ({ id }, given) => given.has(id),
  },
  database_server_types: { key: ['id'] },
  database_servers: {
    key: ['id'],
    keptColumns: () => ['name', 'description'],
    deleteParts: async (tx, { id }) => {
      await moveCloudIps(tx, 'release', atDatabaseServers([id]))
      return []
    },
  },
  address_pools: { key: ['kind', 'range'] },
}

function hidingByTime() {
  return {
    isHidden: ({ removed_at }: { readonly removed_at: Date | null }) => removed_at !== null,
    values: () => ({ removed_at: new Date() }),
  }
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

async function deletePartsOfAccount(tx: Tx, { id }: CurrentRow<'accounts'>): Promise<readonly string[]> {
  await tx.deleteFrom('server_groups').where('account_id', '=', id).where('is_default', '=', true).execute()
  for (const table of ['api_clients', 'applications', 'collaborations'] as const)
    await tx.deleteFrom(table).where('account_id', '=', id).execute()
  return []
}

async function deletePartsOfUser(tx: Tx, { id }: CurrentRow<'users'>): Promise<readonly string[]> {
  const ended = await tx.deleteFrom('collaborations').where('user_id', '=', id).returning('account_id').execute()
  await tx
    .updateTable('collaborations')
    .set({ inviter_id: null, parties: sql`parties || '{"inviter": null}'` })
    .where('inviter_id', '=', id)
    .execute()
  return ended.map(({ account_id }) => `- collaboration of ${id} in ${account_id}`)
}
