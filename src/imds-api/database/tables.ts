/** The columns of every table, as Kysely reads and writes them. The migrations have their constraints. */
import type { ColumnType, Generated, JSONColumnType, RawBuilder } from 'kysely'
import type { MaintenanceEvent } from '../../metadata/events.ts'
import type { AccountLimit } from '../model/account-limits.ts'
import type { AccountStatus } from '../model/account-states.ts'
import type { CollaborationStatus, Role } from '../model/collaborations.ts'
import type { ActionKind, ActionOutcome, ServerStatus } from '../model/server-actions.ts'
import type { PoolKind } from '../model/pools.ts'
import type { PermissionsGroup } from '../model/scopes.ts'
import type { PortTranslator } from '../model/port-translator.ts'
import type { CloudIpStatus, DatabaseServerStatus, ServerTypeStatus } from '../model/resources.ts'

/** Set by the database unless it is given. */
type Default<T> = ColumnType<T, T | undefined, T>
/** Null unless it is given. */
type Nullable<T> = ColumnType<T | null, T | null | undefined, T | null>

/**
 * `database_id`: the store has it beside the region, so that no other database publishes there. `store_history`: the
 * history of the store that has everything which is not in the outbox (publish/region-database.ts). `store_order`: the
 * last order that is known. `store_behind`: its mark for which everything is published again.
 */
interface Region {
  readonly only_row: Generated<boolean>
  readonly database_id: Generated<string>
  name: string
  domain: string
  library_ftp_host: string
  /** In each cursor of an event: another one ends the cursors that were given before. */
  event_epoch: Default<string>
  keys_deleted_until: Default<Date>
  store_history: Nullable<string>
  /** A bigint, which arrives as text. */
  store_order: ColumnType<string, number | undefined, number>
  store_behind: Nullable<string>
}
/**
 * `removed_at`: when the region file removed it. The row stays, because deleted servers refer to it; a hypervisor still
 * deletes their snapshots.
 */
interface Removable {
  removed_at: Nullable<Date>
}
/** What belongs to an account. */
interface Owned {
  id: string
  account_id: string
  name: string
  created_at: Default<Date>
}
interface Zones extends Removable {
  id: string
  handle: string
}
interface ServerTypes extends Removable {
  id: string
  handle: string
  name: string
  status: ServerTypeStatus
  cores: number
  ram: number
  disk_size: number
  storage_type: string
}
/** `drained_at`: when it was drained (changes/hypervisors.ts); null: it is not. */
interface Hypervisors extends Removable {
  name: string
  zone_id: string
  ram: number
  drained_at: Nullable<Date>
}

interface Users {
  id: string
  name: string
  email_address: string
  email_verified: boolean
  /** Keys, one per line. */
  ssh_key: string | null
  messaging_pref: boolean
  password_hash: string | null
  totp_secret: string | null
  /** The time step of the last one-time password that was accepted: each is accepted once. */
  totp_last_step: Nullable<number>
  created_at: Default<Date>
}

interface Accounts extends Record<AccountLimit, Default<number>> {
  id: string
  name: string
  status: AccountStatus
  owner_id: string
  address_1: string
  address_2: string
  city: string
  county: string
  postcode: string
  country_code: string
  vat_registration_number: string | null
  telephone_number: string
  telephone_verified: boolean
  verified_telephone: string | null
  verified_at: Date | null
  verified_ip: string | null
  valid_credit_card: boolean
  ram_limit: number
  dbs_ram_limit: number
  cloud_ips_limit: number
  load_balancers_limit: number
  block_storage_limit: number
  /** False: only the account sees its images, even those that are public. */
  publish_images: Default<boolean>
  library_ftp_password_hash: string | null
  created_at: Default<Date>
}

/** A user, as shown to the other side of a collaboration. */
export interface PartyUser {
  readonly id: string
  readonly name: string
  readonly email_address: string
  readonly two_factor: boolean
}
/** The parties of a collaboration, as shown to each other. */
export interface Parties {
  readonly account: { readonly id: string; readonly name: string; readonly status: AccountStatus }
  readonly user: PartyUser | null
  readonly inviter: PartyUser | null
}
interface Collaborations {
  id: string
  account_id: string
  /** The user who has accepted. */
  user_id: Nullable<string>
  inviter_id: string | null
  email: string
  role: Role
  status: CollaborationStatus
  created_at: Default<Date>
  started_at: Nullable<Date>
  finished_at: Nullable<Date>
  /** Of a finished one: its account, user and inviter as they were then (changes/collaborations.ts). */
  parties: ColumnType<Parties | null, never, RawBuilder<object>>
  /** When the invitation was last sent; null: it is waiting to be sent. */
  invited_at: Nullable<Date>
  /** The next attempt to send it, or the end of the present one; null: as soon as possible. */
  send_at: Nullable<Date>
  /** Why it could not be sent. */
  send_fault: Nullable<string>
  /** When clients asked to send the invitation again. Times older than an hour may be missing. */
  resends: Default<Date[]>
}

interface Images {
  id: string
  handle: Nullable<string>
  account_id: string | null
  name: string
  username: string
  status: string
  locked: boolean
  description: string
  source: string
  source_trigger: string
  source_type: string
  arch: 'i686' | 'x86_64'
  official: boolean
  public: boolean
  compatibility_mode: boolean
  min_ram: Nullable<number>
  disk_size: number
  virtual_size: number
  licence_name: string | null
  source_server_id: Nullable<string>
  created_at: Default<Date>
}

interface Applications extends Owned {
  description: string
  secret_sha256: Nullable<Buffer>
  /** The secret of the region file that was applied last. */
  secret_file_sha256: Nullable<Buffer>
  revoked_at: Nullable<Date>
}
interface ApiClients extends Applications {
  permissions_group: PermissionsGroup
  /** The secret before the last reset, and until when it is valid too. */
  former_secret_sha256: Nullable<Buffer>
  former_secret_until: Nullable<Date>
  read_only: Default<boolean>
  expires_at: Nullable<Date>
  allow_access: Default<string[]>
  /** A server group. */
  trusted_servers: Nullable<string>
}

/** Either `client_id` and `account_id`, or `family_id`. */
interface AccessTokens {
  sha256: Buffer
  client_id: Nullable<string>
  account_id: Nullable<string>
  /** The server that acts as the client. */
  server_id: Nullable<string>
  family_id: Nullable<number>
  scopes: string[]
  expires_at: Date
}
/** A family: the refresh tokens that come from one sign-in, and the access tokens that came with them. */
interface TokenFamilies {
  readonly id: Generated<number>
  application_id: string
  user_id: string
  scopes: string[]
  revoked_at: Nullable<Date>
}
interface RefreshTokens {
  sha256: Buffer
  family_id: number
  expires_at: Date
  used_at: Nullable<Date>
}

/** `used_at`: for the purge, which is hours later. */
interface UsedAssertions {
  server_id: string
  jti_sha256: Buffer
  used_at: Default<Date>
}

interface AddressPools {
  readonly id: Generated<number>
  kind: PoolKind
  range: string
  /** Of a private range: where its servers have their IPv6 addresses. */
  ipv6_network: Nullable<string>
}
/**
 * `freed_account`, `freed_after`: the holder is gone, and records of this account may name the address until this row
 * of the outbox is published.
 */
interface Allocations {
  pool_id: number
  number: number
  holder: string
  freed_account: Nullable<string>
  freed_after: Nullable<number>
}

/** What an image says of itself, as `servers.image_texts` has it. */
export type ImageTexts = Pick<Images, 'name' | 'username' | 'description' | 'arch'>
interface Servers extends Owned {
  status: ServerStatus
  locked: Default<boolean>
  image_id: string
  /** Of another account's image: its texts when the server was made (changes/images.ts). */
  image_texts: ColumnType<ImageTexts | null, string | undefined, never>
  server_type_id: string
  zone_id: string
  hypervisor: string
  /** Base64, as it was sent. */
  user_data: Nullable<string>
  compatibility_mode: boolean
  disk_encrypted: boolean
  /** That of its image when it was created, in the words of a record. */
  architecture: 'i386' | 'x86_64'
  started_at: Nullable<Date>
  deleted_at: Nullable<Date>
  /** Which of several servers with its id, after a restore of an older database. */
  incarnation: Default<string>
  /** True once the store has had its record. */
  is_published: Default<boolean>
  /** The revision of its record. Every change that the guest can see increases it. */
  revision: Default<number>
  /** Why the last publish failed; null: it did not. */
  publish_fault: Nullable<string>
  metadata_options: ColumnType<object | null, string | null | undefined, string | null>
  tags: ColumnType<Readonly<Record<string, string>>, string | undefined, string>
  /** Of the tags and the account, for filters (migrations/0001-first.ts). PostgreSQL makes it. */
  found_by: ColumnType<object, never, never>
  console_token_expires: Nullable<Date>
  /** The hypervisor to which it migrates now. */
  migrating_to: Nullable<string>
  /** Since when no guest gets its user-data. */
  sealed_at: Nullable<Date>
  events: ColumnType<readonly MaintenanceEvent[], string | undefined, string>
}

interface ServerKeys {
  server_id: string
  user_id: string
  /** Keys, one per line. */
  key: string
}
interface Interfaces {
  id: string
  server_id: string
  mac_address: string
  ipv4_address: string
  /** The length of the network, null where the pool is a span. */
  ipv4_prefix_length: number | null
  /** Null where the private range has no IPv6 network. */
  ipv6_address: Nullable<string>
  /** The /64 that belongs to the server; null: it has none. */
  ipv6_prefix: Nullable<string>
  created_at: Default<Date>
}

interface ServerGroups extends Owned {
  description: string
  is_default: boolean
}
interface ServerGroupMembers {
  server_group_id: string
  server_id: string
}

interface CloudIps extends Owned {
  public_ipv4: string
  public_ipv6: string
  reverse_dns: Nullable<string>
  port_translators: JSONColumnType<PortTranslator[]>
  status: CloudIpStatus
  interface_id: Nullable<string>
  server_group_id: Nullable<string>
  database_server_id: Nullable<string>
  /** When it was last mapped or reserved. */
  mapped_at: Nullable<Date>
}

/** `data`: written as JSON text. `bytes`: of this text, in UTF-8. */
interface ConfigMaps extends Owned {
  data: ColumnType<object, string, string>
  bytes: number
}

interface DatabaseServerTypes {
  id: string
  name: string
  description: string
  disk_size: number
  ram: number
}
interface DatabaseServers extends Owned {
  description: string
  status: DatabaseServerStatus
  locked: boolean
  allow_access: string[]
  database_engine: string
  database_version: string
  database_server_type_id: string
  maintenance_weekday: number
  maintenance_hour: number
  zone_id: string
  updated_at: Default<Date>
  deleted_at: Nullable<Date>
}

/** The actions on a server (docs/api.md#actions). `outcome`: null until it is reported. */
interface ComputeActions {
  readonly id: Generated<number>
  server_id: string
  kind: ActionKind
  /** The snapshot that is made or deleted. */
  image_id: Nullable<string>
  /** Deleted when the action is finished. */
  console_token: Nullable<string>
  requested_at: Default<Date>
  given_out_at: Nullable<Date>
  /** The hypervisor that got it last. */
  given_to: Nullable<string>
  finished_at: Nullable<Date>
  outcome: Nullable<ActionOutcome>
  fault: Nullable<string>
}

/**
 * `account_id` and `urgent`: for the order in which servers are published. `retry_at`: when a publish that failed is
 * tried again.
 */
interface Outbox {
  readonly id: Generated<number>
  server_id: string
  account_id: string
  urgent: Default<boolean>
  /** Published again, by `imds-api reconcile` or after a loss of the store, and not tried yet. */
  rebuild: Default<boolean>
  created_at: Default<Date>
  retry_at: Nullable<Date>
}

/**
 * The response to a change whose request had an Idempotency-Key (changes/keyed-change.ts). `position`: the end of
 * its bytes, counted over all keys of the owner. `refusal`: its name if the change was refused; the body has the details.
 */
interface IdempotencyKeys {
  /** An account, or a user for a change of a profile. */
  owner: string
  client: string
  key: string
  position: number
  /** Of method, path and body. */
  digest: Buffer
  refusal: string | null
  status: number
  body: string
  link: string | null
  /** Fields of the response that are not in the body. */
  omitted: string[]
  /** The server whose user_data was in the response. */
  server_id: string | null
  created_at: Default<Date>
}

/** Written by triggers only (migrations/0014-event-triggers.ts). `id`: counts the events of the account. */
interface Events {
  account_id: string
  id: number
  type: string
  /** Its id. */
  resource: string
  action: 'create' | 'update' | 'delete'
  actor: string
  /** The names of the changed fields. */
  fields: string[]
  /** The ids of what it was linked to before. */
  links: string[]
  /** Of the request; null: no client has asked for the change. */
  request_id: Nullable<string>
  idempotency_key: Nullable<string>
  created_at: Default<Date>
}

export interface Tables {
  region: Region
  zones: Zones
  server_types: ServerTypes
  hypervisors: Hypervisors
  users: Users
  accounts: Accounts
  collaborations: Collaborations
  images: Images
  api_clients: ApiClients
  applications: Applications
  access_tokens: AccessTokens
  used_assertions: UsedAssertions
  token_families: TokenFamilies
  refresh_tokens: RefreshTokens
  address_pools: AddressPools
  allocations: Allocations
  servers: Servers
  server_keys: ServerKeys
  interfaces: Interfaces
  server_groups: ServerGroups
  server_group_members: ServerGroupMembers
  cloud_ips: CloudIps
  config_maps: ConfigMaps
  database_server_types: DatabaseServerTypes
  database_servers: DatabaseServers
  compute_actions: ComputeActions
  outbox: Outbox
  idempotency_keys: IdempotencyKeys
  event_feeds: { account_id: string }
  events: Events
  given_ids: { id: string }
}
