/**
 * The region of the fuzzed API: three accounts with the same resources, whose texts have the marker of their account.
 * Nobody signs in for the third account.
 */
import type { RegionFile } from '../../../src/imds-api/region/schema.ts'
import { ADAS_KEY, aRegion } from '../../support/fixtures/region.ts'

/** An account, who acts for it, and a text that only they may see. */
export interface Account {
  readonly id: string
  /** A text that is also base64 of its own, so that a response shows it in user_data too. */
  readonly marker: string
  readonly owner: string
  readonly client: string
  /** The address that it invites: no two accounts the same, since whoever is invited sees the name of the account. */
  readonly invites: string
}

const accountOf = (name: string): Account => ({
  id: `acc-${name}0`,
  marker: `markerof${name}`,
  owner: `usr-${name}0`,
  client: `cli-${name}0`,
  invites: `friend@${name}.example.net`,
})
export const ACCOUNTS = [accountOf('once'), accountOf('twin'), accountOf('tris')] as const
export const [ONE, TWO] = ACCOUNTS
/** The application that owners sign in with. */
export const APPLICATION = 'app-sign1'
/** What token requests of the fuzzer name. Nothing else uses them, since their oldest tokens end. */
export const TOKEN_CLIENT = 'cli-tokn1'
export const TOKEN_APPLICATION = 'app-tokn1'
export const TOKEN_USER = 'usr-tokn1'
/** Clients of ONE: one may only read, one is for the storage, one is revoked, and the token of one has expired. */
export const OTHER_CLIENTS = { readOnly: 'cli-read1', storage: 'cli-stor1', revoked: 'cli-rvkd1', expired: 'cli-expd1' }
/** A user without an account, whom ONE may invite. */
export const INVITED = 'usr-mary1'

const withMarker = ({ marker }: Account, text: string) => `${text} ${marker}`

/** Ids and handles of what all accounts see. */
export const COMMON = [
  ...['zon-aaaa1', 'zon-bbbb2', 'typ-small', 'typ-large', 'img-deb12', 'dbt-small'],
  ...['gb1-a', '1gb.ssd', 'debian-12'],
]

/** The region file. The limits are low, so that requests reach them. */
export function fuzzRegion(): RegionFile {
  const signsIn = (id: string, account: string) => ({ id, account, name: id, secret_file: `${id}.secret` })
  const user = (id: string, name: string, email_address: string) => ({
    ...{ id, name, email_address, ssh_key: '', password_file: `${id}.password` },
  })
  return aRegion({
    hypervisors: [
      { name: 'hv-1', zone: 'gb1-a', ram: 1_048_576 },
      { name: 'hv-2', zone: 'gb1-b', ram: 1_048_576 },
    ],
    images: [
      aRegion().images[0]!,
      ...ACCOUNTS.map((account) => ({
        ...{ id: account.id.replace('acc', 'img'), account: account.id, name: withMarker(account, 'Image') },
        ...{ description: withMarker(account, 'An image'), disk_size: 1024, virtual_size: 2048 },
      })),
    ],
    users: [
      ...ACCOUNTS.map((account) => ({
        ...user(account.owner, withMarker(account, 'Owner'), `${account.marker}@example.net`),
        ssh_key: ADAS_KEY.replace('ada@example', account.marker),
      })),
      user(INVITED, 'Mary', ONE.invites),
      user(TOKEN_USER, 'Tess', 'tess@example.net'),
    ],
    accounts: ACCOUNTS.map((account) => ({
      ...{ id: account.id, name: withMarker(account, 'Account'), owner: account.owner },
      ...{ city: withMarker(account, 'City'), country_code: 'GB', telephone_number: '+442079460000' },
      ...{ ram_limit: 24_576, cloud_ips_limit: 8, server_groups_limit: 20, config_maps_limit: 10, images_limit: 10 },
      ...{ api_clients_limit: 20, applications_limit: 20, collaborations_limit: 20 },
    })),
    api_clients: [
      ...ACCOUNTS.map((account) => signsIn(account.client, account.id)),
      ...[TOKEN_CLIENT, ...Object.values(OTHER_CLIENTS)].map((id) => ({
        ...signsIn(id, ONE.id),
        ...(id === OTHER_CLIENTS.storage && { permissions_group: 'storage' as const }),
      })),
    ],
    applications: [APPLICATION, TOKEN_APPLICATION].map((id) => signsIn(id, ONE.id)),
    database_server_types: [{ id: 'dbt-small', name: 'Small', ram: 2048, disk_size: 81_920 }],
    database_servers: ACCOUNTS.map((account) => ({
      ...{ id: account.id.replace('acc', 'dbs'), account: account.id, name: withMarker(account, 'Database') },
      ...{ database_engine: 'mysql', database_version: '8.0', database_server_type: 'dbt-small', zone: 'gb1-a' },
    })),
  })
}
