/**
 * What API clients send and demand, from their own code: fog-brightbox (Ruby), brightbox-cli (Ruby, on fog) and
 * gobrightbox (Go). Each row is one request as the client sends it, and what it demands of the answer: the status, the
 * format of its test suite, or a value that it waits for. Each answer has to be one that gobrightbox decodes. The rows
 * are in the order in which the client's own tests or commands send them.
 *
 * Creates of database servers, load balancers, firewall policies and volumes are not here: imds-api does not
 * implement them.
 */
import { Secret, TOTP } from 'otpauth'
import t, { type Test } from 'tap'
import {
  ADA,
  APPLICATION,
  aRegion,
  CLIENT_OF,
  MARY,
  ONE,
  secretOf,
  TOTP_SECRET,
  TWO,
  withMary,
} from '../support/fixtures/region.ts'
import { FOG, faultsOfFormat, faultsOfGo, type Format } from '../support/fixtures/client-formats.ts'
import { anApi, basic, type TestApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

/** A request of a client. `{name}` in its path or body is the id that an earlier row has kept as this name. */
interface Row {
  readonly client: 'fog' | 'cli' | 'go'
  readonly send: string
  readonly body?: object
  readonly status: number
  readonly format?: Format
  /** What the answer has to contain. */
  readonly match?: object
  /** The values that the client polls for. */
  readonly until?: object
  /** What gobrightbox cannot decode. Default: nothing. */
  readonly undecoded?: readonly string[]
  /** Names for ids in the answer: a path such as `interfaces.0.id`. */
  readonly keep?: Readonly<Record<string, string>>
}

const LONG_TEXT = 'fog at 2026-11-22T15:04:05+00:00'

const ACCOUNTS: readonly Row[] = [
  { client: 'fog', send: 'GET /1.0/accounts?nested=true', status: 200, format: [FOG.account.collected] },
  {
    client: 'fog',
    send: 'GET /1.0/account',
    status: 200,
    format: FOG.account.full,
    match: { library_ftp_password: null },
    keep: { account: 'id' },
  },
  {
    client: 'fog',
    send: 'GET /1.0/accounts/{account}',
    status: 200,
    format: FOG.account.full,
    match: { library_ftp_password: null },
  },
  {
    client: 'fog',
    send: 'PUT /1.0/account',
    body: { name: 'Analytical Engines' },
    status: 200,
    format: FOG.account.full,
  },
  {
    client: 'fog',
    send: 'PUT /1.0/accounts/{account}',
    body: { name: 'Analytical Engines' },
    status: 200,
    format: FOG.account.full,
  },
  // get_account without an id
  { client: 'fog', send: 'GET /1.0/accounts/', status: 200, format: [FOG.account.collected] },
  { client: 'cli', send: 'GET /1.0/accounts?nested=false', status: 200, format: [FOG.account.collected] },
  { client: 'cli', send: 'GET /1.0/account?nested=false', status: 200, format: FOG.account.full },
  {
    client: 'cli',
    send: 'POST /1.0/accounts/{account}/reset_ftp_password',
    status: 200,
    format: FOG.account.full,
    match: { library_ftp_password: /./ },
  },
  {
    client: 'fog',
    send: 'POST /1.0/account/reset_ftp_password',
    status: 200,
    format: FOG.account.full,
    match: { library_ftp_password: /./ },
  },
  {
    client: 'go',
    send: 'PUT /1.0/accounts/{account}',
    status: 200,
    body: {
      name: 'Analytical Engines',
      address_1: '1 Dorset Street',
      address_2: '',
      city: 'London',
      county: '',
      postcode: 'W1U 4EG',
      country_code: 'GB',
      vat_registration_number: '',
      telephone_number: '+442079460000',
    },
  },
]

const CATALOG: readonly Row[] = [
  { client: 'fog', send: 'GET /1.0/images', status: 200, format: [FOG.image], keep: { image: '0.id' } },
  { client: 'fog', send: 'GET /1.0/images/{image}', status: 200, format: FOG.image },
  { client: 'fog', send: 'GET /1.0/images/img-00000', status: 404 },
  { client: 'fog', send: 'GET /1.0/server_types', status: 200, format: [FOG.serverType], keep: { type: '0.id' } },
  { client: 'fog', send: 'GET /1.0/server_types/{type}', status: 200, format: FOG.serverType },
  { client: 'fog', send: 'GET /1.0/server_types/typ-00000', status: 404 },
  { client: 'fog', send: 'GET /1.0/zones', status: 200, format: [FOG.zone], keep: { zone: '0.id' } },
  { client: 'fog', send: 'GET /1.0/zones/{zone}', status: 200, format: FOG.zone },
  {
    client: 'fog',
    send: 'GET /1.0/database_types',
    status: 200,
    format: [FOG.databaseType],
    keep: { database_type: '0.id' },
  },
  { client: 'fog', send: 'GET /1.0/database_types/{database_type}', status: 200, format: FOG.databaseType },
  {
    client: 'fog',
    send: 'GET /1.0/database_servers',
    status: 200,
    format: [FOG.databaseServer.collected],
    keep: { database_server: '0.id' },
  },
  { client: 'fog', send: 'GET /1.0/database_servers/{database_server}', status: 200, format: FOG.databaseServer.full },
  {
    client: 'fog',
    send: 'PUT /1.0/database_servers/{database_server}',
    body: { name: 'New name' },
    status: 200,
    format: FOG.databaseServer.full,
    match: { name: 'New name' },
  },
  { client: 'fog', send: 'GET /1.0/database_servers/dbs-00000', status: 404 },
  ...['firewall_policies', 'load_balancers', 'database_snapshots', 'volumes'].map((path): Row => ({
    client: 'fog',
    send: `GET /1.0/${path}`,
    status: 200,
    format: ['object or null'],
  })),
]

const A_SERVER: readonly Row[] = [
  {
    client: 'fog',
    send: 'POST /1.0/servers',
    body: { image: 'img-deb12' },
    status: 202,
    format: FOG.server.full,
    match: { name: '' },
    keep: { server: 'id', interface: 'interfaces.0.id' },
  },
  { client: 'fog', send: 'GET /1.0/servers/{server}', status: 200, until: { status: 'active' } },
]

const SERVERS: readonly Row[] = [
  ...A_SERVER,
  { client: 'fog', send: 'GET /1.0/servers', status: 200, format: [FOG.server.collected] },
  { client: 'fog', send: 'GET /1.0/servers/{server}', status: 200, format: FOG.server.full },
  { client: 'fog', send: 'GET /1.0/interfaces/{interface}', status: 200, format: FOG.interface },
  {
    client: 'fog',
    send: 'PUT /1.0/servers/{server}',
    body: { name: LONG_TEXT },
    status: 200,
    format: FOG.server.full,
    match: { name: LONG_TEXT },
  },
  {
    client: 'fog',
    send: 'PUT /1.0/servers/{server}/lock_resource',
    status: 200,
    format: FOG.server.full,
    match: { locked: true },
  },
  {
    client: 'fog',
    send: 'PUT /1.0/servers/{server}/unlock_resource',
    status: 200,
    format: FOG.server.full,
    match: { locked: false },
  },
  {
    client: 'fog',
    send: 'POST /1.0/servers/{server}/activate_console',
    status: 202,
    format: FOG.server.full,
    match: { console_url: /./, console_token: /./, console_token_expires: /./ },
  },
  { client: 'fog', send: 'POST /1.0/servers/{server}/stop', status: 202, format: FOG.server.full },
  { client: 'fog', send: 'GET /1.0/servers/{server}', status: 200, until: { status: 'inactive' } },
  { client: 'fog', send: 'POST /1.0/servers/{server}/start', status: 202, format: FOG.server.full },
  { client: 'fog', send: 'GET /1.0/servers/{server}', status: 200, until: { status: 'active' } },
  { client: 'cli', send: 'POST /1.0/servers/{server}/reboot', status: 202, format: FOG.server.full },
  { client: 'cli', send: 'POST /1.0/servers/{server}/reset', status: 202, format: FOG.server.full },
  { client: 'fog', send: 'POST /1.0/servers/{server}/shutdown', status: 202, format: FOG.server.full },
  {
    client: 'fog',
    send: 'POST /1.0/servers/{server}/snapshot',
    status: 202,
    format: FOG.server.full,
    keep: { snapshot: 'snapshots.0.id' },
  },
  { client: 'fog', send: 'GET /1.0/images/{snapshot}', status: 200, format: FOG.image, until: { status: 'available' } },
  {
    client: 'cli',
    send: 'PUT /1.0/images/{snapshot}',
    body: { name: 'golden', min_ram: 512, public: false, compatibility_mode: false, status: 'deprecated' },
    status: 200,
    format: FOG.image,
  },
  {
    client: 'cli',
    send: 'PUT /1.0/images/{snapshot}',
    body: { name: null, username: null, description: null },
    status: 200,
    format: FOG.image,
    match: { name: '', username: '', description: '' },
  },
  { client: 'fog', send: 'PUT /1.0/images/{snapshot}/lock_resource', status: 200, format: FOG.image },
  { client: 'fog', send: 'PUT /1.0/images/{snapshot}/unlock_resource', status: 200, format: FOG.image },
  { client: 'fog', send: 'DELETE /1.0/images/{snapshot}', status: 202, format: FOG.image },
  { client: 'fog', send: 'DELETE /1.0/servers/{server}', status: 202, format: FOG.server.full },
  { client: 'fog', send: 'GET /1.0/servers/{server}', status: 200, until: { status: 'deleted', deleted_at: /Z$/ } },
  { client: 'fog', send: 'GET /1.0/servers/srv-00000', status: 404 },
  { client: 'fog', send: 'GET /1.0/interfaces/int-00000', status: 404 },
  {
    client: 'cli',
    send: 'POST /1.0/servers',
    status: 202,
    format: FOG.server.full,
    keep: { server: 'id' },
    body: {
      name: 'web',
      server_type: 'typ-small',
      zone: 'zon-aaaa1',
      user_data: 'IyEvYmluL3No\nCg==\n',
      image: 'img-deb12',
      cloud_ip: 'true',
      disk_encrypted: true,
    },
    match: { user_data: 'IyEvYmluL3NoCg==', disk_encrypted: true, cloud_ips: [{ status: 'reserved' }] },
    // until the server is active (docs/api-conformance.md#extensions-and-what-we-chose)
    undecoded: ['the answer.cloud_ips.0.status is "reserved", not mapped,unmapped'],
  },
  {
    client: 'fog',
    send: 'GET /1.0/servers/{server}',
    status: 200,
    until: { status: 'active', cloud_ips: [{ status: 'mapped' }] },
    keep: { cloud_ip: 'cloud_ips.0.id' },
  },
  {
    client: 'cli',
    send: 'PUT /1.0/servers/{server}',
    body: { name: null, user_data: null, compatibility_mode: true },
    status: 200,
    format: FOG.server.full,
    match: { name: '', user_data: null },
  },
  { client: 'go', send: 'DELETE /1.0/servers/{server}', status: 202 },
  { client: 'go', send: 'DELETE /1.0/cloud_ips/{cloud_ip}', status: 200 },
  {
    client: 'go',
    send: 'POST /1.0/server_groups',
    body: { name: 'front', description: 'web' },
    status: 202,
    keep: { group: 'id' },
  },
  {
    client: 'go',
    send: 'POST /1.0/servers',
    status: 202,
    keep: { server: 'id' },
    body: {
      image: 'img-deb12',
      name: 'web',
      server_type: 'typ-small',
      zone: 'zon-bbbb2',
      user_data: 'YQ==',
      server_groups: ['{group}'],
      compatibility_mode: true,
      disk_encrypted: true,
      cloud_ip: false,
    },
    match: {
      id: /^srv-.{5}$/,
      zone: { handle: 'gb1-b' },
      user_data: 'YQ==',
      server_groups: [{ name: 'front' }],
      compatibility_mode: true,
      disk_encrypted: true,
    },
  },
  { client: 'go', send: 'GET /1.0/servers/{server}', status: 200, until: { status: 'active' } },
  {
    client: 'go',
    send: 'PUT /1.0/servers/{server}',
    body: { name: '', user_data: '' },
    status: 200,
    match: { name: '' },
  },
  {
    client: 'go',
    send: 'POST /1.0/server_groups/{group}/remove_servers',
    body: { servers: [{ server: '{server}' }] },
    status: 202,
    match: { servers: { length: 0 } },
  },
  { client: 'go', send: 'DELETE /1.0/server_groups/{group}', status: 202 },
  { client: 'go', send: 'DELETE /1.0/servers/{server}', status: 202 },
]

const CLOUD_IPS: readonly Row[] = [
  ...A_SERVER,
  { client: 'fog', send: 'POST /1.0/cloud_ips', status: 201, format: FOG.cloudIp, keep: { ip: 'id' } },
  { client: 'fog', send: 'GET /1.0/cloud_ips', status: 200, format: [FOG.cloudIp] },
  { client: 'fog', send: 'GET /1.0/cloud_ips/{ip}', status: 200, format: FOG.cloudIp },
  {
    client: 'fog',
    send: 'POST /1.0/cloud_ips/{ip}/map',
    body: { destination: '{interface}' },
    status: 202,
    format: FOG.cloudIp,
  },
  {
    client: 'fog',
    send: 'GET /1.0/cloud_ips/{ip}',
    status: 200,
    until: { status: 'mapped', interface: { id: /^int-/ }, server: { id: /^srv-/ } },
  },
  { client: 'fog', send: 'GET /1.0/accounts?nested=true', status: 200, format: [FOG.account.collected] },
  { client: 'fog', send: 'GET /1.0/servers', status: 200, format: [FOG.server.collected] },
  { client: 'fog', send: 'POST /1.0/cloud_ips/{ip}/unmap', status: 202, format: FOG.cloudIp },
  {
    client: 'fog',
    send: 'PUT /1.0/cloud_ips/{ip}',
    body: { reverse_dns: 'public.{server}.gb1.example.com' },
    status: 200,
    format: FOG.cloudIp,
    match: { reverse_dns: /^public\.srv-/ },
  },
  { client: 'fog', send: 'PUT /1.0/cloud_ips/{ip}', body: { reverse_dns: '' }, status: 200, format: FOG.cloudIp },
  { client: 'fog', send: 'DELETE /1.0/cloud_ips/{ip}', status: 200, format: FOG.cloudIp },
  { client: 'fog', send: 'GET /1.0/cloud_ips/cip-00000', status: 404 },
  {
    client: 'cli',
    send: 'POST /1.0/cloud_ips',
    body: { name: 'www', port_translators: [{ incoming: '443', outgoing: '8443', protocol: 'tcp' }] },
    status: 201,
    format: FOG.cloudIp,
    keep: { ip: 'id' },
    match: { port_translators: [{ incoming: 443, outgoing: 8443, protocol: 'tcp' }] },
  },
  {
    client: 'go',
    send: 'PUT /1.0/cloud_ips/{ip}',
    body: {
      reverse_dns: 'www.example.com',
      mode: 'nat',
      name: 'www',
      port_translators: [{ incoming: 53, outgoing: 53, protocol: 'udp' }],
    },
    status: 200,
  },
  { client: 'go', send: 'POST /1.0/cloud_ips/{ip}/map', body: { destination: '{database_server}' }, status: 202 },
  { client: 'go', send: 'GET /1.0/cloud_ips/{ip}', status: 200, until: { status: 'mapped' } },
  { client: 'go', send: 'POST /1.0/cloud_ips/{ip}/unmap', status: 202 },
  { client: 'go', send: 'DELETE /1.0/cloud_ips/{ip}', status: 200, match: { id: /^cip-/ } },
  { client: 'go', send: 'DELETE /1.0/servers/{server}', status: 202 },
]

const MEMBERS = [{ server: '{server}' }]
const SERVER_GROUPS: readonly Row[] = [
  ...A_SERVER,
  {
    client: 'fog',
    send: 'POST /1.0/server_groups',
    body: { name: LONG_TEXT, servers: MEMBERS },
    status: 202,
    format: FOG.serverGroup,
    keep: { group: 'id' },
    match: { servers: [{ id: /^srv-/ }] },
  },
  {
    client: 'fog',
    send: 'GET /1.0/server_groups',
    status: 200,
    format: [FOG.serverGroup],
    match: [{ default: true }],
    keep: { default_group: '0.id' },
  },
  { client: 'fog', send: 'GET /1.0/server_groups/{group}', status: 200, format: FOG.serverGroup },
  {
    client: 'fog',
    send: 'PUT /1.0/server_groups/{group}',
    body: { name: `${LONG_TEXT}!` },
    status: 202,
    format: FOG.serverGroup,
  },
  {
    client: 'fog',
    send: 'POST /1.0/server_groups/{group}/remove_servers',
    body: { servers: MEMBERS },
    status: 202,
    format: FOG.serverGroup,
  },
  {
    client: 'fog',
    send: 'POST /1.0/server_groups/{group}/add_servers',
    body: { servers: MEMBERS },
    status: 202,
    format: FOG.serverGroup,
  },
  {
    client: 'fog',
    send: 'POST /1.0/server_groups/{group}/move_servers',
    body: { destination: '{default_group}', servers: MEMBERS },
    status: 202,
    format: FOG.serverGroup,
    match: { servers: { length: 0 } },
  },
  {
    client: 'cli',
    send: 'PUT /1.0/server_groups/{group}',
    body: { name: null, description: null },
    status: 202,
    format: FOG.serverGroup,
    match: { name: '', description: '' },
  },
  { client: 'fog', send: 'DELETE /1.0/server_groups/{group}', status: 202, format: FOG.serverGroup },
  { client: 'fog', send: 'GET /1.0/server_groups/grp-00000', status: 404 },
  { client: 'go', send: 'DELETE /1.0/servers/{server}', status: 202 },
]

/** With its id and a colon at most 45 bytes: fog's base64 has line breaks beyond that. */
const SECRET = /^[\w-]{22,35}$/

const API_CLIENTS: readonly Row[] = [
  {
    client: 'fog',
    send: 'POST /1.0/api_clients',
    body: { name: LONG_TEXT, description: 'Description from fog' },
    status: 201,
    format: FOG.apiClient.full,
    match: { id: /^cli-.{5}$/ },
    keep: { client: 'id' },
  },
  { client: 'fog', send: 'GET /1.0/api_clients', status: 200, format: [FOG.apiClient.collected] },
  {
    client: 'fog',
    send: 'GET /1.0/api_clients/{client}',
    status: 200,
    format: FOG.apiClient.full,
    match: { secret: null },
  },
  {
    client: 'fog',
    send: 'PUT /1.0/api_clients/{client}',
    body: { name: `${LONG_TEXT}!` },
    status: 200,
    format: FOG.apiClient.full,
    match: { name: `${LONG_TEXT}!` },
  },
  {
    client: 'fog',
    send: 'POST /1.0/api_clients/{client}/reset_secret',
    status: 200,
    format: FOG.apiClient.full,
    match: { secret: SECRET },
  },
  { client: 'fog', send: 'GET /1.0/accounts?nested=true', status: 200, format: [FOG.account.collected] },
  { client: 'fog', send: 'DELETE /1.0/api_clients/{client}', status: 200, format: FOG.apiClient.full },
  { client: 'fog', send: 'GET /1.0/api_clients/cli-00000', status: 404 },
  {
    client: 'go',
    send: 'POST /1.0/api_clients',
    body: { name: 'dev client', permissions_group: 'full' },
    status: 201,
    match: { permissions_group: 'full', description: '' },
    keep: { client: 'id' },
  },
  {
    client: 'go',
    send: 'PUT /1.0/api_clients/{client}',
    body: { name: 'dev client', description: '', permissions_group: 'storage' },
    status: 200,
    match: { permissions_group: 'storage' },
  },
  { client: 'go', send: 'DELETE /1.0/api_clients/{client}', status: 200 },
]

const APPLICATIONS: readonly Row[] = [
  {
    client: 'fog',
    send: 'POST /1.0/applications',
    body: { name: LONG_TEXT },
    status: 201,
    format: FOG.application.full,
    match: { id: /^app-.{5}$/ },
    keep: { application: 'id' },
  },
  { client: 'fog', send: 'GET /1.0/applications', status: 200, format: [FOG.application.collected] },
  { client: 'fog', send: 'GET /1.0/applications/{application}', status: 200, format: FOG.application.full },
  {
    client: 'fog',
    send: 'PUT /1.0/applications/{application}',
    body: { name: `${LONG_TEXT}!` },
    status: 200,
    format: FOG.application.full,
    match: { name: `${LONG_TEXT}!` },
  },
  {
    client: 'fog',
    send: 'POST /1.0/applications/{application}/reset_secret',
    status: 200,
    format: FOG.application.full,
    match: { secret: SECRET },
  },
  { client: 'fog', send: 'DELETE /1.0/applications/{application}', status: 200, format: FOG.application.full },
  { client: 'fog', send: 'GET /1.0/applications/app-00000', status: 404 },
]

const CONFIG_MAPS: readonly Row[] = [
  {
    client: 'fog',
    send: 'POST /1.0/config_maps',
    body: { name: 'front', data: { a: 1 } },
    status: 200,
    match: { data: { a: 1 } },
    keep: { map: 'id' },
  },
  { client: 'go', send: 'GET /1.0/config_maps', status: 200 },
  {
    client: 'go',
    send: 'GET /1.0/config_maps/{map}',
    status: 200,
    match: { resource_type: 'config_map', name: 'front', data: { a: 1 } },
  },
  {
    client: 'go',
    send: 'PUT /1.0/config_maps/{map}',
    body: { name: 'back', data: { b: [true] } },
    status: 200,
    match: { name: 'back', data: { b: [true] } },
  },
  { client: 'fog', send: 'DELETE /1.0/config_maps/{map}', status: 200, match: { id: /^cfg-/ } },
]

const COLLABORATIONS: readonly Row[] = [
  {
    client: 'fog',
    send: 'POST /1.0/collaborations',
    body: { email: 'paul@example.com', role: 'admin' },
    status: 201,
    format: FOG.collaboration,
    keep: { collaboration: 'id' },
  },
  { client: 'fog', send: 'GET /1.0/collaborations', status: 200, format: [FOG.collaboration] },
  { client: 'fog', send: 'GET /1.0/collaborations/{collaboration}', status: 200, format: FOG.collaboration },
  { client: 'fog', send: 'POST /1.0/collaborations/{collaboration}/resend', status: 200, format: FOG.collaboration },
  {
    client: 'fog',
    send: 'DELETE /1.0/collaborations/{collaboration}',
    status: 200,
    format: FOG.collaboration,
    match: { status: 'cancelled' },
  },
  { client: 'fog', send: 'GET /1.0/collaborations/col-abcde', status: 404 },
]

const USERS: readonly Row[] = [
  {
    client: 'fog',
    send: 'GET /1.0/users',
    status: 200,
    format: [FOG.user.collected],
    keep: { user: '0.id', name: '0.name', email: '0.email_address' },
  },
  { client: 'fog', send: 'GET /1.0/users/{user}', status: 200, format: FOG.user.full },
  { client: 'fog', send: 'PUT /1.0/users/{user}', body: { name: '{name}' }, status: 200, format: FOG.user.full },
  { client: 'fog', send: 'GET /1.0/user', status: 200, format: FOG.user.full, match: { default_account: { id: ONE } } },
]

/** Rows that only a user may send. */
const OWN: readonly Row[] = [
  {
    client: 'cli',
    send: 'PUT /1.0/users/{user}',
    body: {
      email_address: '{email}',
      ssh_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIJ9kBsoVT7mSAkVSPe8FDJhBVmJsYKJBSdLmYh3oVdD me\n',
      name: '{name}',
    },
    status: 200,
    format: FOG.user.full,
  },
  { client: 'fog', send: 'GET /1.0/user/collaborations', status: 200, format: [FOG.collaboration] },
  { client: 'fog', send: 'GET /1.0/user/collaborations/col-abcde', status: 404 },
]

let nowMs = Date.now()
const [mary] = withMary().users.filter(({ id }) => id === MARY)
const region = withMary({
  users: [
    ...aRegion().users.map((user) => (user.id === ADA ? { ...user, totp_secret_file: 'ada.totp' } : user)),
    mary!,
  ],
  applications: [{ id: APPLICATION, account: ONE, name: 'CLI', secret_file: `${APPLICATION}.secret` }],
  database_server_types: [{ id: 'dbt-small', name: 'Small', ram: 2048, disk_size: 81_920 }],
  database_servers: [
    {
      id: 'dbs-one01',
      account: ONE,
      database_engine: 'mysql',
      database_version: '8.0',
      database_server_type: 'dbt-small',
      zone: 'gb1-a',
    },
  ],
})

interface Session {
  readonly api: TestApi
  readonly token: string
  readonly query: string
  readonly kept: Map<string, string>
}

async function send(
  { api, token, query, kept }: Session,
  { send: line, body }: Row,
): Promise<{ status: number; contentType: unknown; body: unknown }> {
  const fill = (text: string) => text.replaceAll(/\{(\w+)\}/g, (_all, name: string) => kept.get(name) ?? `no-${name}`)
  const [method, url = ''] = fill(line).split(' ')
  const named = query === '' ? url : `${url}${url.includes('?') ? '&' : '?'}${query}`
  const answer = await api.server.inject({
    method: method as 'GET',
    url: named,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', accept: 'application/json' },
    ...(body !== undefined && { payload: fill(JSON.stringify(body)) }),
  })
  return {
    status: answer.statusCode,
    contentType: answer.headers['content-type'],
    body: JSON.parse(answer.body) as unknown,
  }
}

function valueAt(body: unknown, path: string): string {
  return String(
    path.split('.').reduce((value, field) => (value as Readonly<Record<string, unknown>> | undefined)?.[field], body),
  )
}

/** Sends the rows, and checks each answer. */
async function play(t: Test, session: Session, rows: readonly Row[]): Promise<void> {
  for (const row of rows) {
    const name = `${row.client}: ${row.send}`
    let answer = await send(session, row)
    if (row.until !== undefined) {
      const wanted = row.until
      await until(
        async () => {
          answer = await send(session, row)
          return matches(answer.body, wanted)
        },
        `${name} to be ${JSON.stringify(wanted)}`,
        3000,
      ).catch((error: unknown) => {
        t.fail((error as Error).message, { found: answer.body })
      })
    }
    t.equal(answer.status, row.status, `${name}: the status`)
    t.match(answer.contentType, /^application\/json\b/, `${name}: the content type`)
    if (answer.status !== row.status) t.comment(JSON.stringify(answer.body))
    if (answer.status >= 400) {
      t.match(answer.body, { error_name: /./, errors: [/./] }, `${name}: the error`)
      continue
    }
    t.strictSame(faultsOfGo(answer.body), row.undecoded ?? [], `${name}: gobrightbox decodes the answer`)
    if (row.format !== undefined) t.strictSame(faultsOfFormat(answer.body, row.format), [], `${name}: fog's format`)
    if (row.match !== undefined) t.match(answer.body, row.match, `${name}: the values`)
    for (const [as, path] of Object.entries(row.keep ?? {})) session.kept.set(as, valueAt(answer.body, path))
  }
}

/** Whether a value has the fields of a pattern: texts, or expressions. */
function matches(value: unknown, pattern: unknown): boolean {
  if (pattern instanceof RegExp) return typeof value === 'string' && pattern.test(value)
  if (typeof pattern !== 'object' || pattern === null) return value === pattern
  return (
    typeof value === 'object' &&
    value !== null &&
    Object.entries(pattern).every(([field, inner]) => matches((value as Record<string, unknown>)[field], inner))
  )
}

const SUITES: Readonly<Record<string, readonly Row[]>> = {
  accounts: ACCOUNTS,
  catalog: CATALOG,
  servers: SERVERS,
  'cloud IPs': CLOUD_IPS,
  'server groups': SERVER_GROUPS,
  'API clients': API_CLIENTS,
  applications: APPLICATIONS,
  'config maps': CONFIG_MAPS,
  collaborations: COLLABORATIONS,
  users: USERS,
}

t.test('the requests of the clients', async (t) => {
  const api = await anApi(t, { region, now: () => nowMs })
  await api.startPublisher()
  const callers = [
    ['an API client without account_id', await api.token(CLIENT_OF[ONE]), ''],
    ['an API client that names its account', await api.token(CLIENT_OF[ONE]), `account_id=${ONE}`],
    ['a user', await api.userToken(ADA), `account_id=${ONE}`],
  ] as const
  for (const [caller, token, query] of callers) {
    for (const [suite, rows] of Object.entries(SUITES)) {
      t.test(`${suite}: ${caller} gets what the clients demand`, (t) =>
        play(t, { api, token, query, kept: new Map([['database_server', 'dbs-one01']]) }, rows),
      )
    }
  }

  t.test('users change their own profile and list their own collaborations', (t) =>
    play(t, { api, token: callers[2][1], query: callers[2][2], kept: new Map() }, [...USERS, ...OWN]),
  )

  t.test('an API client has no collaborations of its own: 403, also for ids that do not exist', (t) =>
    play(t, { api, token: callers[0][1], query: '', kept: new Map() }, [
      { client: 'fog', send: 'GET /1.0/user/collaborations', status: 403 },
      { client: 'fog', send: 'GET /1.0/user/collaborations/col-abcde', status: 403 },
    ]),
  )

  t.test('users need no account_id for their own user, users, accounts and collaborations', (t) =>
    play(t, { api, token: callers[2][1], query: '', kept: new Map() }, [
      { client: 'cli', send: 'GET /1.0/user', status: 200, format: FOG.user.full },
      { client: 'cli', send: 'GET /1.0/users', status: 200, format: [FOG.user.collected] },
      {
        client: 'cli',
        send: 'GET /1.0/accounts',
        status: 200,
        format: [FOG.account.collected],
        match: [{ id: ONE }, { id: TWO }],
      },
      { client: 'cli', send: 'GET /1.0/user/collaborations', status: 200, format: [FOG.collaboration] },
    ]),
  )

  t.test('an invited user accepts', async (t) => {
    const kept = new Map<string, string>()
    await play(t, { api, token: callers[0][1], query: '', kept }, [
      {
        client: 'fog',
        send: 'POST /1.0/collaborations',
        body: { email: 'mary@example.com', role: 'admin' },
        status: 201,
        format: FOG.collaboration,
        keep: { collaboration: 'id' },
      },
    ])
    await play(t, { api, token: await api.userToken(MARY), query: '', kept }, [
      {
        client: 'cli',
        send: 'GET /1.0/user/collaborations',
        status: 200,
        format: [FOG.collaboration],
        match: [{ status: 'pending', account: { id: ONE } }],
      },
      {
        client: 'fog',
        send: 'POST /1.0/user/collaborations/{collaboration}/accept',
        status: 200,
        format: FOG.collaboration,
        match: { status: 'accepted', user: { id: MARY } },
      },
      { client: 'cli', send: 'GET /1.0/accounts', status: 200, format: [FOG.account.collected], match: [{ id: ONE }] },
      {
        client: 'fog',
        send: 'DELETE /1.0/user/collaborations/{collaboration}',
        status: 200,
        format: FOG.collaboration,
        match: { status: 'ended' },
      },
    ])
  })

  t.test('a bad access token is 401, and fog gets a new one by JSON, gobrightbox by a form', async (t) => {
    const get = (token: string) =>
      api.server.inject({
        url: '/1.0/user',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      })
    t.match(await get('bad-token'), { statusCode: 401 })
    t.match((await get('')).statusCode, 401)
    const headers = { authorization: basic(CLIENT_OF[ONE]) }
    const fog = await api.server.inject({
      method: 'POST',
      url: '/token',
      headers: { ...headers, 'content-type': 'application/json' },
      payload: JSON.stringify({ grant_type: 'client_credentials', client_id: CLIENT_OF[ONE] }),
    })
    const go = await api.server.inject({
      method: 'POST',
      url: '/token/',
      headers: { ...headers, 'content-type': 'application/x-www-form-urlencoded' },
      payload: 'grant_type=client_credentials&scope=infrastructure+orbit',
    })
    for (const { statusCode, body } of [fog, go]) {
      t.equal(statusCode, 200)
      const answer = JSON.parse(body) as { access_token: string }
      t.match(answer, { token_type: 'Bearer', scope: 'infrastructure, orbit', expires_in: 7200 })
      t.match(await get(answer.access_token), { statusCode: 200 })
    }
  })

  t.test(
    'the CLI asks for a one-time password only after a right password, and then needs none to refresh',
    async (t) => {
      const signIn = async (body: object, headers: Readonly<Record<string, string>> = {}) => {
        const answer = await api.server.inject({
          method: 'POST',
          url: '/token',
          headers: { authorization: basic(APPLICATION), 'content-type': 'application/json', ...headers },
          payload: JSON.stringify(body),
        })
        return {
          status: answer.statusCode,
          headers: answer.headers,
          body: JSON.parse(answer.body) as Record<string, unknown>,
        }
      }
      const password = { grant_type: 'password', username: 'ada@example.com', password: secretOf(ADA) }
      const freshCode = () => {
        nowMs += 120_000
        return new TOTP({ secret: Secret.fromBase32(TOTP_SECRET) }).generate({ timestamp: nowMs })
      }
      const wrong = await signIn({ ...password, password: 'wrong' })
      t.match(wrong, {
        status: 401,
        headers: { 'www-authenticate': /^Basic realm="/ },
        body: { error: 'invalid_client' },
      })
      t.equal(wrong.headers['x-brightbox-otp'], undefined, 'the CLI says that the password is wrong')
      t.match(await signIn(password), { status: 401, headers: { 'x-brightbox-otp': 'required' } }, 'the CLI prompts')
      t.match(await signIn(password, { 'X-Brightbox-OTP': '000000' }), { status: 401 })
      const { status, body } = await signIn(password, { 'X-Brightbox-OTP': freshCode() })
      t.match(
        { status, body },
        { status: 200, body: { access_token: /./, refresh_token: /./, token_type: 'Bearer', expires_in: 7200 } },
      )
      const refreshed = await signIn({ grant_type: 'refresh_token', refresh_token: body['refresh_token'] })
      t.match(refreshed, { status: 200, body: { access_token: /./, refresh_token: /./ } })
      t.match(await api.callWith(String(refreshed.body['access_token']), 'GET', '/1.0/user'), {
        status: 200,
        body: { id: ADA, '2fa': { enabled: true } },
      })
      t.match(
        await signIn({ grant_type: 'refresh_token', refresh_token: 'stale' }),
        { status: 400, body: { error: 'invalid_grant' } },
        'the CLI asks for the password',
      )
      t.match(
        await signIn({ ...password, password: `${secretOf(ADA)}+${freshCode()}` }),
        { status: 200 },
        'old versions append the code to the password',
      )
      t.match(await signIn({ grant_type: 'client_credentials' }), {
        status: 400,
        body: { error: 'unauthorized_client' },
      })
      t.match(await signIn({ grant_type: 'none' }), { status: 400, body: { error: 'unsupported_grant_type' } })
    },
  )
})
