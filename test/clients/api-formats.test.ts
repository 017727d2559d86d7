/**
 * The requests of fog, its command line and gobrightbox get what these clients need, and gobrightbox decodes each answer.
 * The forms of the resources are compared whole in test/imds-api.
 */
import t, { type Test } from 'tap'
import { faultsOfGo } from '../support/fixtures/go-structs.ts'
import {
  ADA,
  ADAS_KEY,
  aRegion,
  CLIENT_OF,
  DATABASE_SERVER,
  ONE,
  WITH_DATABASE_SERVER,
} from '../support/fixtures/region.ts'
import { anApi, type TestApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

/** A request of a client. `{name}` in its path or body is the id that an earlier row has kept as this name. */
interface Row {
  readonly client: 'fog' | 'cli' | 'go'
  readonly send: string
  readonly body?: object
  readonly status: number
  /** What the answer has to contain. */
  readonly match?: object
  /** The values that the client polls for. */
  readonly until?: object
  /** What gobrightbox cannot decode. Default: nothing. */
  readonly undecoded?: readonly string[]
  /** Names for ids in the answer: a path such as `interfaces.0.id`. */
  readonly keep?: Readonly<Record<string, string>>
}

/** Makes a row of a client: its request, the status, and the rest. */
const rowOf =
  (client: Row['client']) =>
  (send: string, status: number, rest: Omit<Row, 'client' | 'send' | 'status'> = {}): Row => ({
    client,
    send,
    status,
    ...rest,
  })
const [fog, cli, go] = [rowOf('fog'), rowOf('cli'), rowOf('go')]

const LONG_TEXT = 'fog at 2026-11-22T15:04:05+00:00'

const ACCOUNTS: readonly Row[] = [
  fog('GET /1.0/accounts?nested=true', 200),
  fog('GET /1.0/account', 200, { match: { library_ftp_password: null }, keep: { account: 'id' } }),
  fog('GET /1.0/accounts/{account}', 200, { match: { library_ftp_password: null } }),
  fog('PUT /1.0/account', 200, { body: { name: 'Analytical Engines' } }),
  fog('PUT /1.0/accounts/{account}', 200, { body: { name: 'Analytical Engines' } }),
  // get_account without an id
  fog('GET /1.0/accounts/', 200),
  cli('GET /1.0/accounts?nested=false', 200),
  cli('GET /1.0/account?nested=false', 200),
  cli('POST /1.0/accounts/{account}/reset_ftp_password', 200, { match: { library_ftp_password: /./ } }),
  fog('POST /1.0/account/reset_ftp_password', 200, { match: { library_ftp_password: /./ } }),
  go('PUT /1.0/accounts/{account}', 200, {
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
  }),
]

const CATALOG: readonly Row[] = [
  fog('GET /1.0/images', 200, { keep: { image: '0.id' } }),
  fog('GET /1.0/images/{image}', 200),
  fog('GET /1.0/server_types', 200, { keep: { type: '0.id' } }),
  fog('GET /1.0/server_types/{type}', 200),
  fog('GET /1.0/zones', 200, { keep: { zone: '0.id' } }),
  fog('GET /1.0/zones/{zone}', 200),
  fog('GET /1.0/database_types', 200, { keep: { database_type: '0.id' } }),
  fog('GET /1.0/database_types/{database_type}', 200),
  fog('GET /1.0/database_servers', 200),
  fog('GET /1.0/database_servers/{database_server}', 200),
  fog('PUT /1.0/database_servers/{database_server}', 200, { body: { name: 'New name' } }),
  ...['firewall_policies', 'load_balancers', 'database_snapshots', 'volumes'].map((path): Row =>
    fog(`GET /1.0/${path}`, 200),
  ),
]

const A_SERVER: readonly Row[] = [
  fog('POST /1.0/servers', 202, {
    body: { image: 'img-deb12' },
    match: { name: '' },
    keep: { server: 'id', interface: 'interfaces.0.id' },
  }),
  fog('GET /1.0/servers/{server}', 200, { until: { status: 'active' } }),
]

const SERVERS: readonly Row[] = [
  ...A_SERVER,
  fog('GET /1.0/servers', 200),
  fog('GET /1.0/interfaces/{interface}', 200),
  fog('PUT /1.0/servers/{server}', 200, { body: { name: LONG_TEXT } }),
  fog('PUT /1.0/servers/{server}/lock_resource', 200),
  fog('PUT /1.0/servers/{server}/unlock_resource', 200),
  fog('POST /1.0/servers/{server}/activate_console', 202, {
    match: { console_url: /./, console_token: /./, console_token_expires: /./ },
  }),
  fog('POST /1.0/servers/{server}/stop', 202),
  fog('GET /1.0/servers/{server}', 200, { until: { status: 'inactive' } }),
  fog('POST /1.0/servers/{server}/start', 202),
  fog('GET /1.0/servers/{server}', 200, { until: { status: 'active' } }),
  cli('POST /1.0/servers/{server}/reboot', 202),
  cli('POST /1.0/servers/{server}/reset', 202),
  fog('POST /1.0/servers/{server}/shutdown', 202),
  fog('POST /1.0/servers/{server}/snapshot', 202, { keep: { snapshot: 'snapshots.0.id' } }),
  fog('GET /1.0/images/{snapshot}', 200, { until: { status: 'available' } }),
  cli('PUT /1.0/images/{snapshot}', 200, {
    body: { name: 'golden', min_ram: 512, public: false, compatibility_mode: false, status: 'deprecated' },
  }),
  cli('PUT /1.0/images/{snapshot}', 200, {
    body: { name: null, username: null, description: null },
    match: { name: '', username: '', description: '' },
  }),
  fog('PUT /1.0/images/{snapshot}/lock_resource', 200),
  fog('PUT /1.0/images/{snapshot}/unlock_resource', 200),
  fog('DELETE /1.0/images/{snapshot}', 202),
  fog('DELETE /1.0/servers/{server}', 202),
  fog('GET /1.0/servers/{server}', 200, { until: { status: 'deleted', deleted_at: /Z$/ } }),
  fog('GET /1.0/servers/srv-00000', 404),
  cli('POST /1.0/servers', 202, {
    keep: { server: 'id' },
    body: {
      name: 'web',
      server_type: 'typ-small',
      zone: 'zon-aaaa1',
      image: 'img-deb12',
      disk_encrypted: true,
      user_data: 'IyEvYmluL3No\nCg==\n',
      cloud_ip: 'true',
    },
    match: { user_data: 'IyEvYmluL3NoCg==', cloud_ips: [{ status: 'reserved' }] },
    // until the server is active (docs/api.md#conformance)
    undecoded: ['the answer.cloud_ips.0.status is "reserved", not mapped,unmapped'],
  }),
  fog('GET /1.0/servers/{server}', 200, {
    until: { status: 'active', cloud_ips: [{ status: 'mapped' }] },
    keep: { cloud_ip: 'cloud_ips.0.id' },
  }),
  cli('PUT /1.0/servers/{server}', 200, {
    body: { name: null, user_data: null, compatibility_mode: true },
    match: { name: '', user_data: null },
  }),
  go('DELETE /1.0/servers/{server}', 202),
  go('DELETE /1.0/cloud_ips/{cloud_ip}', 200),
  go('POST /1.0/server_groups', 202, { body: { name: 'front', description: 'web' }, keep: { group: 'id' } }),
  go('POST /1.0/servers', 202, {
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
    match: { id: /^srv-.{5}$/, compatibility_mode: true, disk_encrypted: true, cloud_ips: { length: 0 } },
  }),
  go('GET /1.0/servers/{server}', 200, { until: { status: 'active' } }),
  go('PUT /1.0/servers/{server}', 200, { body: { name: '', user_data: '' }, match: { name: '' } }),
  go('POST /1.0/server_groups/{group}/remove_servers', 202, { body: { servers: [{ server: '{server}' }] } }),
  go('DELETE /1.0/server_groups/{group}', 202),
  go('DELETE /1.0/servers/{server}', 202),
]

const CLOUD_IPS: readonly Row[] = [
  ...A_SERVER,
  fog('POST /1.0/cloud_ips', 201, { keep: { ip: 'id' } }),
  fog('GET /1.0/cloud_ips', 200),
  fog('POST /1.0/cloud_ips/{ip}/map', 202, { body: { destination: '{interface}' } }),
  fog('GET /1.0/cloud_ips/{ip}', 200, {
    until: { status: 'mapped', interface: { id: /^int-/ }, server: { id: /^srv-/ } },
  }),
  fog('GET /1.0/accounts?nested=true', 200),
  fog('GET /1.0/servers', 200),
  fog('POST /1.0/cloud_ips/{ip}/unmap', 202),
  fog('PUT /1.0/cloud_ips/{ip}', 200, { body: { reverse_dns: 'public.{server}.gb1.example.com' } }),
  fog('PUT /1.0/cloud_ips/{ip}', 200, { body: { reverse_dns: '' } }),
  fog('DELETE /1.0/cloud_ips/{ip}', 200),
  cli('POST /1.0/cloud_ips', 201, {
    body: { name: 'www', port_translators: [{ incoming: '443', outgoing: '8443', protocol: 'tcp' }] },
    keep: { ip: 'id' },
  }),
  go('PUT /1.0/cloud_ips/{ip}', 200, {
    body: {
      reverse_dns: 'www.example.com',
      mode: 'nat',
      name: 'www',
      port_translators: [{ incoming: 53, outgoing: 53, protocol: 'udp' }],
    },
  }),
  go('POST /1.0/cloud_ips/{ip}/map', 202, { body: { destination: '{database_server}' } }),
  go('GET /1.0/cloud_ips/{ip}', 200, { until: { status: 'mapped' } }),
  go('POST /1.0/cloud_ips/{ip}/unmap', 202),
  go('DELETE /1.0/cloud_ips/{ip}', 200, { match: { id: /^cip-/ } }),
  go('DELETE /1.0/servers/{server}', 202),
]

const MEMBERS = { servers: [{ server: '{server}' }] }
const SERVER_GROUPS: readonly Row[] = [
  ...A_SERVER,
  fog('POST /1.0/server_groups', 202, { body: { name: LONG_TEXT, ...MEMBERS }, keep: { group: 'id' } }),
  fog('GET /1.0/server_groups', 200, { match: [{ default: true }], keep: { default_group: '0.id' } }),
  fog('GET /1.0/server_groups/{group}', 200),
  fog('PUT /1.0/server_groups/{group}', 202, { body: { name: `${LONG_TEXT}!` } }),
  fog('POST /1.0/server_groups/{group}/remove_servers', 202, { body: MEMBERS }),
  fog('POST /1.0/server_groups/{group}/add_servers', 202, { body: MEMBERS }),
  fog('POST /1.0/server_groups/{group}/move_servers', 202, { body: { destination: '{default_group}', ...MEMBERS } }),
  cli('PUT /1.0/server_groups/{group}', 202, {
    body: { name: null, description: null },
    match: { name: '', description: '' },
  }),
  fog('DELETE /1.0/server_groups/{group}', 202),
  go('DELETE /1.0/servers/{server}', 202),
]

/** With its id and a colon at most 45 bytes: fog's base64 has line breaks beyond that. */
const SECRET = /^[\w-]{22,35}$/

const API_CLIENTS: readonly Row[] = [
  fog('POST /1.0/api_clients', 201, {
    body: { name: LONG_TEXT, description: 'Description from fog' },
    match: { id: /^cli-.{5}$/ },
    keep: { client: 'id' },
  }),
  fog('GET /1.0/api_clients', 200),
  fog('GET /1.0/api_clients/{client}', 200, { match: { secret: null } }),
  fog('PUT /1.0/api_clients/{client}', 200, { body: { name: `${LONG_TEXT}!` } }),
  fog('POST /1.0/api_clients/{client}/reset_secret', 200, { match: { secret: SECRET } }),
  fog('GET /1.0/accounts?nested=true', 200),
  fog('DELETE /1.0/api_clients/{client}', 200),
  go('POST /1.0/api_clients', 201, {
    body: { name: 'dev client', permissions_group: 'full' },
    match: { description: '' },
    keep: { client: 'id' },
  }),
  go('PUT /1.0/api_clients/{client}', 200, {
    body: { name: 'dev client', description: '', permissions_group: 'storage' },
  }),
  go('DELETE /1.0/api_clients/{client}', 200),
]

const APPLICATIONS: readonly Row[] = [
  fog('POST /1.0/applications', 201, {
    body: { name: LONG_TEXT },
    match: { id: /^app-.{5}$/ },
    keep: { application: 'id' },
  }),
  fog('GET /1.0/applications', 200),
  fog('GET /1.0/applications/{application}', 200),
  fog('PUT /1.0/applications/{application}', 200, { body: { name: `${LONG_TEXT}!` } }),
  fog('POST /1.0/applications/{application}/reset_secret', 200, { match: { secret: SECRET } }),
  fog('DELETE /1.0/applications/{application}', 200),
]

const CONFIG_MAPS: readonly Row[] = [
  fog('POST /1.0/config_maps', 200, { body: { name: 'front', data: { a: 1 } }, keep: { map: 'id' } }),
  go('GET /1.0/config_maps', 200),
  go('GET /1.0/config_maps/{map}', 200, { match: { resource_type: 'config_map' } }),
  go('PUT /1.0/config_maps/{map}', 200, { body: { name: 'back', data: { b: [true] } } }),
  fog('DELETE /1.0/config_maps/{map}', 200, { match: { id: /^cfg-/ } }),
]

const COLLABORATIONS: readonly Row[] = [
  fog('POST /1.0/collaborations', 201, {
    body: { email: 'paul@example.com', role: 'admin' },
    keep: { collaboration: 'id' },
  }),
  fog('GET /1.0/collaborations', 200),
  fog('GET /1.0/collaborations/{collaboration}', 200),
  fog('POST /1.0/collaborations/{collaboration}/resend', 200),
  fog('DELETE /1.0/collaborations/{collaboration}', 200, { match: { status: 'cancelled' } }),
]

const USERS: readonly Row[] = [
  fog('GET /1.0/users', 200, { keep: { user: '0.id', name: '0.name', email: '0.email_address' } }),
  fog('GET /1.0/users/{user}', 200),
  fog('PUT /1.0/users/{user}', 200, { body: { name: '{name}' } }),
  fog('GET /1.0/user', 200, { match: { default_account: { id: ONE } } }),
]

/** Rows that only a user may send. */
const OWN: readonly Row[] = [
  cli('PUT /1.0/users/{user}', 200, {
    body: { email_address: '{email}', ssh_key: `${ADAS_KEY}\n`, name: '{name}' },
  }),
  fog('GET /1.0/user/collaborations', 200),
  fog('GET /1.0/user/collaborations/col-abcde', 404),
]

const region = aRegion(WITH_DATABASE_SERVER)

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
      ).catch((error: unknown) => t.fail((error as Error).message, { found: answer.body }))
    }
    t.equal(answer.status, row.status, `${name}: the status`)
    t.match(answer.contentType, /^application\/json\b/, `${name}: the content type`)
    if (answer.status !== row.status) t.comment(JSON.stringify(answer.body))
    if (answer.status >= 400) {
      t.match(answer.body, { error_name: /./, errors: [/./] }, `${name}: the error`)
      continue
    }
    t.strictSame(faultsOfGo(answer.body), row.undecoded ?? [], `${name}: gobrightbox decodes the answer`)
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
  const api = await anApi(t, { region })
  await api.startPublisher()
  const callers = [
    ['an API client without account_id', await api.token(CLIENT_OF[ONE]), ''],
    ['an API client that names its account', await api.token(CLIENT_OF[ONE]), `account_id=${ONE}`],
    ['a user', await api.userToken(ADA), `account_id=${ONE}`],
  ] as const
  for (const [caller, token, query] of callers) {
    for (const [suite, rows] of Object.entries(SUITES)) {
      t.test(`${suite}: ${caller} gets what the clients demand`, (t) =>
        play(t, { api, token, query, kept: new Map([['database_server', DATABASE_SERVER]]) }, rows),
      )
    }
  }

  t.test('users change their own profile and list their own collaborations', (t) =>
    play(t, { api, token: callers[2][1], query: callers[2][2], kept: new Map() }, [...USERS, ...OWN]),
  )
})
