/**
 * The plans of the statements that imds-api sends in a region of 12,000 servers: for every operation of the API, the
 * compute interface, the publisher, and what runs at intervals. None reads a table that grows from end to end.
 */
import { statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { purgeActions } from '../../src/imds-api/changes/action-queue.ts'
import { purgeEvents } from '../../src/imds-api/changes/events.ts'
import { purgeKeys } from '../../src/imds-api/changes/keyed-change.ts'
import { purgeServers } from '../../src/imds-api/changes/server-purge.ts'
import { openDatabase } from '../../src/imds-api/database/open.ts'
import { buildAuth } from '../../src/imds-api/service/rest.ts'
import { aLargeRegion, fillRegion, largeId } from '../support/fixtures/large-region.ts'
import { keyLines } from '../support/fixtures/record-keys.ts'
import { APPLICATION, CLIENT_OF, GRACE, ONE, secretOf } from '../support/fixtures/region.ts'
import { basic, startImdsApi, type TestImdsApi } from '../support/programs/api.ts'
import { LOG_PLANS, readPlans, readsOf, type TableRead } from '../support/programs/plans.ts'
import { startPostgres } from '../support/programs/postgres.ts'
import { freePort, startRedis } from '../support/redis/redis.ts'
import { testDirectory } from '../support/test-directory.ts'
import { without } from '../support/packages.ts'

const SIZE = { accounts: 2_000, hypervisors: 1_000, servers: 12_000, ofAccount: 100 }

/** The tables that may be read as a whole, and why they do not grow with accounts, servers or requests. */
const SMALL: Readonly<Record<string, string>> = {
  region: 'one row',
  zones: 'the region file',
  server_types: 'the region file',
  database_server_types: 'the region file',
  address_pools: 'the region file',
  given_ids: 'the ids of the region file',
  hypervisors: 'the region file',
}

/** The indexes that may be read as a whole: they have only rows in a state that does not last. */
const PARTIAL: Readonly<Record<string, string>> = {
  accounts_publishing: 'accounts that publish images: an operator allows it',
  images_public: 'public images: those of the operator and of such accounts',
  collaborations_to_invite: 'invitations that wait for the sender',
  compute_actions_server: 'actions without an outcome',
  images_deleted: 'deleted images, until no server refers to them',
  servers_refused: 'servers whose record the store refuses',
  outbox_retries: 'their changes, each of which waits for a minute',
  allocations_freed: 'addresses that wait for a publish',
}

/** The statements that may read a table as a whole. */
const COUNTS: readonly { readonly statement: RegExp; readonly why: string }[] = [
  { statement: /^with used as \( select location.hypervisor/, why: 'RAM of the region: for a scrape' },
  { statement: /^select kind, range, .* from address_pools/, why: 'pools of the region: for a scrape' },
  { statement: /^select count\(distinct server_id\) as length, .* from outbox$/, why: 'what waits: for a scrape' },
  { statement: /^update outbox set retry_at = null/, why: 'all failed publishes, when all are due' },
  { statement: /^select account_id from event_feeds as feed cross join/, why: 'a row an account, each hour' },
]

interface Document {
  readonly paths: Readonly<
    Record<
      string,
      Readonly<
        Record<
          string,
          {
            readonly parameters?: readonly {
              readonly name: string
              readonly schema?: { readonly enum?: readonly string[] }
            }[]
          }
        >
      >
    >
  >
}
interface Member {
  readonly id: string
}
interface Tokens {
  readonly access_token: string
  readonly refresh_token: string
}
interface Action {
  readonly id: number
}

/** A client of ONE, Grace, who is a user of another account, and all hypervisors. */
interface Callers {
  readonly paths: Document['paths']
  /** The operations that were called. */
  readonly called: ReadonlySet<string>
  /** Calls an operation: its method and its path in the document, perhaps with a query. */
  call(operation: string, id?: string, body?: object, isGrace?: 'grace'): Promise<Member>
  hypervisor(method: string, path: string, body?: object): Promise<unknown>
  /** Has the hypervisor of a server carry out its actions. */
  carryOut(server: string): Promise<void>
  /** Waits until a resource has a state. */
  becomes(path: string, id: string, state: string): Promise<Member>
}

async function aCaller(t: Test, { baseUrl }: TestImdsApi, compute: string): Promise<Callers> {
  const { paths } = (await (await fetch(`${baseUrl}/1.0/openapi.json`)).json()) as Document
  const called = new Set(['POST /token'])
  const token = (who: string, body: object) =>
    send(t, 'POST', `${baseUrl}/token`, { authorization: basic(who) }, body) as Promise<Tokens>
  const client = await token(CLIENT_OF[ONE], { grant_type: 'client_credentials' })
  const first = await token(APPLICATION, { grant_type: 'password', username: GRACE, password: secretOf(GRACE) })
  const grace = await token(APPLICATION, { grant_type: 'refresh_token', refresh_token: first.refresh_token })
  let calls = 0
  const call: Callers['call'] = (operation, id = '', body, isGrace) => {
    const [method, path] = operation.split(' ') as [string, string]
    called.add(operation.split('?')[0]!)
    const headers = {
      authorization: `Bearer ${(isGrace === undefined ? client : grace).access_token}`,
      'idempotency-key': `a-key-${calls++}`,
    }
    return send(t, method, baseUrl + path.replace(/\{\w+\}/, id), headers, body) as Promise<Member>
  }
  const hypervisor: Callers['hypervisor'] = (method, path, body) =>
    send(t, method, `http://${compute}${path}`, {}, body)
  return {
    paths,
    called,
    call,
    hypervisor,
    carryOut: async (server) => {
      const { hypervisor: name } = (await hypervisor('GET', `/servers/${server}`)) as { hypervisor: string }
      for (const { id } of (await hypervisor('GET', `/hypervisors/${name}/actions?wait=60`)) as readonly Action[])
        await hypervisor('POST', `/hypervisors/${name}/actions/${id}/outcome`, { outcome: 'succeeded' })
    },
    becomes: (path, id, state) => call(`GET /1.0/${path}/{id}/wait?status=${state}`, id),
  }
}

async function send(
  t: Test,
  method: string,
  url: string,
  headers: Readonly<Record<string, string>>,
  body?: object,
): Promise<unknown> {
  const response = await fetch(url, {
    method,
    headers: { ...headers, ...(body !== undefined && { 'content-type': 'application/json' }) },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  })
  const text = await response.text()
  t.ok(response.ok, `${method} ${url}: ${response.status} ${response.ok ? '' : text}`)
  return response.headers.get('content-type')?.includes('json') === true ? JSON.parse(text) : text
}

/** A new server and its cloud IP, each action, a migration and a seal. Returns the new server. */
async function useServers({ call, hypervisor, carryOut, becomes }: Callers): Promise<string> {
  const [active, other] = [largeId('srv', 1), largeId('srv', 2)]
  const cloudIp = await call('POST /1.0/cloud_ips', '', { name: 'one' })
  const server = await call('POST /1.0/servers', '', { image: 'debian-12', zone: 'gb1-a', cloud_ip: cloudIp.id })
  await carryOut(server.id)
  await becomes('servers', server.id, 'active')
  await becomes('cloud_ips', cloudIp.id, 'mapped')
  await call('PUT /1.0/servers/{id}', server.id, { name: 'two', tags: { Role: 'front' }, user_data: 'b25l' })
  await call('PUT /1.0/servers/{id}/lock_resource', server.id)
  await call('PUT /1.0/servers/{id}/unlock_resource', server.id)
  for (const action of ['stop', 'start', 'shutdown', 'start', 'reboot', 'reset', 'activate_console', 'snapshot']) {
    await call(`POST /1.0/servers/{id}/${action}`, active)
    await carryOut(active)
  }
  await hypervisor('POST', `/servers/${other}/migration`, { to: largeId('hv', 4) })
  await hypervisor('DELETE', `/servers/${other}/migration`)
  await hypervisor('POST', `/servers/${other}/migration`, { to: largeId('hv', 4) })
  await hypervisor('POST', `/servers/${other}/migration/end`)
  await hypervisor('POST', `/servers/${other}/seal`)
  await call('POST /1.0/cloud_ips/{id}/unmap', cloudIp.id)
  await call('DELETE /1.0/cloud_ips/{id}', cloudIp.id)
  return server.id
}

/** Groups, and the cloud IP of one. Returns a group. */
async function useGroups({ call }: Callers, server: string): Promise<string> {
  const group = await call('POST /1.0/server_groups', '', { name: 'a', servers: [{ server }] })
  const members = { servers: [{ server: largeId('srv', 1) }] }
  await call('PUT /1.0/server_groups/{id}', group.id, { name: 'b' })
  await call('POST /1.0/server_groups/{id}/add_servers', group.id, members)
  const destination = await call('POST /1.0/server_groups', '', { name: 'c' })
  await call('POST /1.0/server_groups/{id}/move_servers', group.id, { ...members, destination: destination.id })
  await call('POST /1.0/server_groups/{id}/remove_servers', destination.id, members)
  await call('DELETE /1.0/server_groups/{id}', destination.id)
  const cloudIp = await call('POST /1.0/cloud_ips')
  await call('PUT /1.0/cloud_ips/{id}', cloudIp.id, { name: 'two' })
  await call('POST /1.0/cloud_ips/{id}/map', cloudIp.id, { destination: group.id })
  await call('POST /1.0/cloud_ips/{id}/unmap', cloudIp.id)
  await call('DELETE /1.0/cloud_ips/{id}', cloudIp.id)
  return group.id
}

/** What an account has beside servers. */
async function useOthers({ call, becomes }: Callers): Promise<void> {
  for (const path of ['/1.0/api_clients', '/1.0/applications']) {
    const { id } = await call(`POST ${path}`, '', { name: 'a' })
    await call(`PUT ${path}/{id}`, id, { name: 'b' })
    await call(`POST ${path}/{id}/reset_secret`, id)
    await call(`DELETE ${path}/{id}`, id)
  }
  const { id: map } = await call('POST /1.0/config_maps', '', { name: 'a', data: {} })
  await call('PUT /1.0/config_maps/{id}', map, { name: 'b', data: { c: 1 } })
  await call('DELETE /1.0/config_maps/{id}', map)
  await call('PUT /1.0/database_servers/{id}', largeId('dbs', 0), { name: 'a' })
  const image = largeId('img', 0)
  await call('PUT /1.0/images/{id}', image, { name: 'a' })
  await call('PUT /1.0/images/{id}/lock_resource', image)
  await call('PUT /1.0/images/{id}/unlock_resource', image)
  await becomes('images', image, 'available')
  await call('DELETE /1.0/images/{id}', image)
}

/** Collaborations, users and accounts. Returns a collaboration. */
async function usePeople({ call, becomes }: Callers): Promise<string> {
  const invite = () => call('POST /1.0/collaborations', '', { email: 'grace@example.com', role: 'admin' })
  await call('POST /1.0/user/collaborations/{id}/reject', (await invite()).id, undefined, 'grace')
  const accepted = await invite()
  await call('POST /1.0/collaborations/{id}/resend', accepted.id)
  await call('POST /1.0/user/collaborations/{id}/accept', accepted.id, undefined, 'grace')
  await becomes('collaborations', accepted.id, 'accepted')
  await call('DELETE /1.0/user/collaborations/{id}', accepted.id, undefined, 'grace')
  await call('DELETE /1.0/collaborations/{id}', (await invite()).id)

  await call('PUT /1.0/user', '', { name: 'Grace' }, 'grace')
  await call('PUT /1.0/users/{id}', GRACE, { name: 'Grace Hopper' }, 'grace')
  for (const [path, id] of [
    ['/1.0/account', ''],
    ['/1.0/accounts/{id}', ONE],
  ] as const) {
    await call(`PUT ${path}`, id, { name: 'One' })
    await call(`POST ${path}/reset_ftp_password`, id)
  }
  return accepted.id
}

/** Every collection with every filter, and a member of each kind. */
async function readAll({ paths, call }: Callers, group: string, collaboration: string): Promise<void> {
  const ids: Readonly<Record<string, string>> = {
    accounts: ONE,
    'user/collaborations': collaboration,
    users: GRACE,
    api_clients: CLIENT_OF[ONE],
    applications: APPLICATION,
    zones: 'gb1-a',
    server_types: 'typ-small',
    images: largeId('img', 1),
    servers: largeId('srv', 1),
    'servers/{id}/reports': largeId('srv', 1),
    interfaces: largeId('int', 1),
    server_groups: group,
    cloud_ips: largeId('cip', 1),
    collaborations: collaboration,
    database_types: 'dbt-large',
    database_servers: largeId('dbs', 0),
    config_maps: largeId('cfg', 0),
  }
  for (const [path, { get }] of Object.entries(paths)) {
    const who = path.includes('/user') ? 'grace' : undefined
    const [, kind = ''] = /^\/1\.0\/(.*?)(?:\/\{id\})?$/.exec(path) ?? []
    if (get === undefined || path.endsWith('/wait')) continue
    await call(`GET ${path}`, ids[kind] ?? '', undefined, who)
    for (const { name, schema } of get.parameters ?? []) {
      const filter = {
        name: 'name=x',
        status: `status=${schema?.enum?.[0] ?? 'available'}`,
        server_group: `server_group=${group}`,
        tags: 'tag.Role=front',
        type: 'type=server',
        resource: `resource=${largeId('srv', 1)}`,
      }[name]
      if (filter !== undefined) await call(`GET ${path}?${filter}`, '', undefined, who)
    }
  }
}

t.test('no statement reads a table that grows from end to end', { skip: without('postgres') }, async (t) => {
  const postgres = await startPostgres(t, undefined, {}, [
    'shared_preload_libraries=auto_explain',
    'auto_explain.log_nested_statements=on',
    ...LOG_PLANS,
    'logging_collector=on',
    'log_filename=plans',
    'log_rotation_size=0',
    'random_page_cost=1.1',
  ])
  const log = join(postgres.directory, 'data/log/plans')
  const redis = await startRedis(t)
  const recordKeys = join(testDirectory(t), 'keys')
  writeFileSync(recordKeys, keyLines('one'), { mode: 0o600 })
  const compute = `127.0.0.1:${await freePort()}`
  const api = await startImdsApi(
    t,
    {
      IMDS_API_DATABASE: postgres.url,
      IMDS_API_COMPUTE: 'reported',
      IMDS_API_COMPUTE_LISTEN: compute,
      IMDS_STORE: redis.url,
      IMDS_REGION: 'gb1',
      IMDS_RECORD_KEYS_FILE: recordKeys,
      IMDS_API_BASE_URL: 'https://api.example.com',
    },
    {
      ...aLargeRegion(),
      applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
    },
  )
  const database = await openDatabase({ url: postgres.url }, true, () => undefined)
  t.teardown(() => database.close())
  await fillRegion(database.pool, ONE, SIZE)
  const filled = statSync(log).size

  const callers = await aCaller(t, api, compute)
  const server = await useServers(callers)
  const group = await useGroups(callers, server)
  await useOthers(callers)
  await readAll(callers, group, await usePeople(callers))
  await callers.call('DELETE /1.0/servers/{id}', server)
  await callers.carryOut(server)
  await callers.becomes('servers', server, 'deleted')

  const auth = buildAuth(
    database.db,
    { baseUrl: 'https://api.example.com', accessTokenSeconds: 60, refreshTokenSeconds: 60 },
    undefined,
    Date.now,
  )
  await Promise.all([
    auth.purge(),
    purgeActions(database.db),
    purgeKeys(database.db),
    purgeEvents(database.db),
    purgeServers(database.db),
  ])
  for (const path of ['/metrics', '/', '/readyz']) await send(t, 'GET', api.operatorUrl + path, {})

  const operations = Object.entries(callers.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  )
  t.strictSame(
    operations.filter((operation) => !callers.called.has(operation)),
    [],
    'every operation was called',
  )
  const isWhole = ({ table, index, isBound }: TableRead) =>
    !isBound && !(table in SMALL) && !table.startsWith('pg_') && (index === undefined || !(index in PARTIAL))
  const plans = readPlans(log, filled)
  t.ok(plans.length > 1_000)
  const found = plans
    .filter(({ query }) => !COUNTS.some(({ statement }) => statement.test(query)))
    .flatMap(({ query, plan }) =>
      readsOf(plan)
        .filter(isWhole)
        .map(({ table, index = 'no index' }) => `${table} by ${index}: ${query}`),
    )
  t.strictSame([...new Set(found)].sort(), [])
})
