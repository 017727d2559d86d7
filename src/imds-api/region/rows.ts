/** The rows that a region file has for each table. Pure. */
import { DEFAULT_LIMITS } from '../model/account-limits.ts'
import { POOL_KINDS } from '../model/pools.ts'
import { parseSshKeys } from '../model/ssh-key.ts'
import { parseVatNumber } from '../model/vat-number.ts'
import type { RegionCredentials } from './credentials.ts'
import type { RegionFile } from './schema.ts'
import type { RegionSecrets } from './secrets.ts'
import type { RegionTable, WantedRow } from './tables.ts'

/** The rows of each table. The columns are in the order in which a difference names them. */
export type RegionRows = { readonly [Name in RegionTable]: readonly WantedRow<Name>[] }

/** Returns the rows of a file. `credentials`: in the order of its users. */
export function buildRegionRows(
  file: RegionFile,
  { digests }: RegionSecrets,
  credentials: readonly RegionCredentials[],
): RegionRows {
  const ipv6Networks = new Map(Object.entries(file.address_pools.ipv6 ?? {}))
  const zoneIds = new Map(file.zones.map(({ id, handle }) => [handle, id]))
  const clientRow = <Client extends { readonly id: string; readonly account: string; readonly secret_file?: string }>({
    account,
    secret_file,
    ...client
  }: Client) => ({
    description: '',
    ...client,
    account_id: account,
    secret_sha256: digests.get(client.id) ?? null,
    secret_file_sha256: digests.get(client.id) ?? null,
  })
  return {
    region: [
      {
        only_row: true,
        name: file.name,
        domain: file.domain,
        library_ftp_host: file.library_ftp_host ?? `ftp.library.${file.domain}`,
      },
    ],
    zones: file.zones.map((zone) => ({ ...zone, removed_at: null })),
    server_types: file.server_types.map((type) => ({
      status: 'available',
      storage_type: 'local',
      ...type,
      removed_at: null,
    })),
    hypervisors: file.hypervisors.map(({ name, zone, ram }) => ({
      name,
      zone_id: zoneIds.get(zone) ?? zone,
      ram,
      removed_at: null,
    })),
    users: file.users.map(({ ssh_key = '', password_file, totp_secret_file, ...user }, i) => ({
      email_verified: true,
      messaging_pref: true,
      ...user,
      ssh_key: sshKeys(ssh_key),
      password_hash: credentials[i]!.passwordHash,
      totp_secret: credentials[i]!.totpSecret,
    })),
    accounts: file.accounts.map(accountRow),
    images: file.images.map(imageRow),
    api_clients: file.api_clients.map((client) => ({
      ...clientRow({ permissions_group: 'full' as const, ...client }),
      former_secret_sha256: null,
      former_secret_until: null,
    })),
    applications: (file.applications ?? []).map(clientRow),
    database_server_types: (file.database_server_types ?? []).map((type) => ({ description: '', ...type })),
    database_servers: (file.database_servers ?? []).map(({ account, zone, database_server_type, ...server }) => ({
      name: '',
      description: '',
      status: 'active',
      locked: false,
      allow_access: [],
      maintenance_weekday: 0,
      maintenance_hour: 6,
      ...server,
      account_id: account,
      zone_id: zoneIds.get(zone) ?? zone,
      database_server_type_id: database_server_type,
    })),
    address_pools: POOL_KINDS.flatMap((kind) =>
      file.address_pools[kind].map((range) => ({
        kind,
        range,
        ipv6_network: kind === 'private_ipv4' ? (ipv6Networks.get(range) ?? null) : null,
      })),
    ),
  }
}

/** The keys of a valid file, as users.ts would write them. */
function sshKeys(text: string): string | null {
  const keys = parseSshKeys(text)
  return keys.ok && keys.value !== '' ? keys.value : null
}

function accountRow({
  owner,
  collaborators,
  verified_at,
  vat_registration_number = '',
  ...account
}: RegionFile['accounts'][number]): WantedRow<'accounts'> {
  return {
    status: 'active',
    telephone_verified: true,
    verified_telephone: null,
    verified_ip: null,
    valid_credit_card: true,
    dbs_ram_limit: 0,
    load_balancers_limit: 0,
    block_storage_limit: 0,
    ...DEFAULT_LIMITS,
    publish_images: false,
    address_1: '',
    address_2: '',
    city: '',
    county: '',
    postcode: '',
    ...account,
    vat_registration_number: parseVatNumber(vat_registration_number) ?? null,
    owner_id: owner,
    verified_at: verified_at === undefined ? null : new Date(verified_at),
  }
}

function imageRow({ account, ...image }: RegionFile['images'][number]): WantedRow<'images'> {
  return {
    handle: null,
    username: 'root',
    status: 'available',
    locked: false,
    description: '',
    source: image.name,
    source_trigger: 'manual',
    source_type: 'upload',
    arch: 'x86_64',
    official: account === undefined,
    public: account === undefined,
    compatibility_mode: false,
    min_ram: null,
    licence_name: null,
    ...image,
    account_id: account ?? null,
  }
}
