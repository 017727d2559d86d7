/**
 * Properties that hold after any sequence of requests, also concurrent ones: addresses are unique, the use of an
 * account is a count, cloud IPs have a destination if and only if they are not free, no answer is a 500, the store
 * equals the composition of the database, users have access as their collaborations say, and a program that follows the
 * events of an account has what a GET of each of its resources returns.
 */
import t from 'tap'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { SERVER_ACTIONS } from '../../src/imds-api/model/server-actions.ts'
import { compareStore } from '../../src/imds-api/publish/compare.ts'
import type { Publisher } from '../../src/store/open.ts'
import { random } from '../support/fixtures/generated-records.ts'
import { ADA, aRegion, MARY, ONE, TWO, WITH_DATABASE_SERVER, withMary } from '../support/fixtures/region.ts'
import type { TestAccount } from '../support/programs/api-client.ts'
import { anApi, type ApiAnswer, type Method } from '../support/programs/api.ts'
import type { ReadEvent } from '../support/programs/event-reader.ts'

const SEED = Number(process.env['IMDS_TEST_SEED'] ?? '12')
const STEPS = 40
/** Requests at the same time. */
const CLIENTS = 4

const ACCOUNTS = [ONE, TWO] as const
const address_pools = { ...aRegion().address_pools, ipv6: { '10.240.0.0/16': '2001:db8:100::/64' } }
const api = await anApi(t, { region: withMary({ ...WITH_DATABASE_SERVER, address_pools }) })
const { db, pool } = api.database
const users = { ada: await api.userToken(ADA), mary: await api.userToken(MARY) }

/** The collections of resources that have events, by type. Interfaces are in their servers. */
const PATHS = new Map(
  ALL_ROWS.filter(({ name, table, isOfRegion }) => table && isOfRegion !== true && name !== 'interface').map(
    ({ type, path, table }) => [type, path ?? table!],
  ),
)

async function list<T = { readonly id: string; readonly owner?: string }>(
  type: string,
  account: TestAccount,
): Promise<readonly T[]> {
  const all = (await api.call('GET', `/1.0/${PATHS.get(type)!}`, undefined, account)).body as (T & { owner?: string })[]
  return type === 'image' ? all.filter(({ owner }) => owner === account) : all
}

/** What a random request is made of. `any`: the id of a resource of the account. */
interface Choice {
  pick<T>(list: readonly T[]): T
  any(type: string): Promise<string>
  name(): string
}
/** A request of the account's API client, or of a user. */
type Request = readonly [method: Method, path: string, body?: object | undefined, by?: keyof typeof users]

/** Requests that are right in their form; whether one is possible, the API decides. */
const REQUESTS: readonly ((choice: Choice) => Promise<Request> | Request)[] = [
  async ({ pick, any, name }) => [
    'POST',
    'servers',
    {
      image: 'img-deb12',
      name: name(),
      zone: pick([undefined, 'gb1-a', 'gb1-b']),
      server_type: pick(['typ-small', 'typ-large']),
      cloud_ip: pick([true, false, await any('cloud_ip')]),
      server_groups: pick([undefined, [await any('server_group'), await any('server_group')]]),
      user_data: pick([null, 'YQ==', '']),
    },
  ],
  ({ name }) => ['POST', 'servers', { image: 'img-deb12', name: name(), cloud_ip: true }],
  async ({ any }) => ['DELETE', `servers/${await any('server')}`],
  async ({ pick, any }) => [
    'PUT',
    `servers/${await any('server')}`,
    { user_data: pick([null, 'Yg==', 'Yw==']), server_groups: pick([undefined, [], [await any('server_group')]]) },
  ],
  async ({ any, name }) => ['PUT', `servers/${await any('server')}`, { name: name() }],
  async ({ pick, any }) => ['POST', `servers/${await any('server')}/${pick(SERVER_ACTIONS)}`],
  async ({ pick, any }) => ['POST', `servers/${await any('server')}/${pick(['stop', 'start', 'snapshot'])}`],
  async ({ pick, any }) => ['PUT', `servers/${await any('server')}/${pick(['', 'un'])}lock_resource`],
  () => ['POST', 'cloud_ips', {}],
  async ({ any, name }) => ['PUT', `cloud_ips/${await any('cloud_ip')}`, { reverse_dns: `${name()}.example.com` }],
  async ({ pick, any }) => [
    'POST',
    `cloud_ips/${await any('cloud_ip')}/map`,
    { destination: await any(pick(['server', 'server', 'server_group', 'database_server'])) },
  ],
  async ({ pick, any }) => [
    'POST',
    `cloud_ips/${await any('cloud_ip')}/map`,
    { destination: await any(pick(['server', 'server_group'])) },
  ],
  async ({ any }) => ['POST', `cloud_ips/${await any('cloud_ip')}/unmap`],
  async ({ any }) => ['DELETE', `cloud_ips/${await any('cloud_ip')}`],
  async ({ any, name }) => ['POST', 'server_groups', { name: name(), servers: [{ server: await any('server') }] }],
  async ({ pick, any, name }) => [
    'PUT',
    `server_groups/${await any('server_group')}`,
    pick([{ name: name() }, { description: name() }]),
  ],
  async ({ pick, any }) => [
    'POST',
    `server_groups/${await any('server_group')}/${pick(['add', 'add', 'remove'])}_servers`,
    { servers: [{ server: await any('server') }] },
  ],
  async ({ any }) => [
    'POST',
    `server_groups/${await any('server_group')}/move_servers`,
    { servers: [{ server: await any('server') }], destination: await any('server_group') },
  ],
  async ({ any }) => ['DELETE', `server_groups/${await any('server_group')}`],
  async ({ any, name }) => ['PUT', `images/${await any('image')}`, { description: name() }],
  async ({ any }) => ['DELETE', `images/${await any('image')}`],
  async ({ any, name }) => ['PUT', `database_servers/${await any('database_server')}`, { name: name() }],
  ({ name }) => ['POST', 'config_maps', { name: name(), data: { a: name() } }],
  async ({ any, name }) => ['PUT', `config_maps/${await any('config_map')}`, { data: { a: name() } }],
  ({ name }) => ['POST', 'api_clients', { name: name() }],
  ({ name }) => ['POST', 'applications', { name: name() }],
  ({ name }) => ['PUT', 'account', { name: name() }],
  ({ pick, name }) => ['PUT', 'user', { name: name() }, pick(['ada', 'mary'])],
  ({ pick, name }) => ['POST', 'collaborations', { email: pick(['mary', name()]) + '@example.com', role: 'admin' }],
  async ({ pick, any }) => [
    'POST',
    `user/collaborations/${await any('collaboration')}/${pick(['accept', 'reject'])}`,
    undefined,
    'mary',
  ],
  async ({ any }) => ['DELETE', `user/collaborations/${await any('collaboration')}`, undefined, 'mary'],
  async ({ any }) => ['DELETE', `collaborations/${await any('collaboration')}`],
]

/** Sends a random request. */
async function step(next: () => number): Promise<{ method: Method; path: string; answer: ApiAnswer }> {
  const pick = <T>(from: readonly T[]): T => from[Math.floor(next() * from.length)]!
  const account = pick(ACCOUNTS)
  const any = async (type: string) => {
    const all = await list(type, account)
    return all.length === 0 ? 'none' : pick(all).id
  }
  const name = () => `n-${Math.floor(next() * 1e6)}`
  const [method, path, body, by] = await pick(REQUESTS)({ pick, any, name })
  const answer =
    by === undefined
      ? await api.call(method, `/1.0/${path}`, body, account)
      : await api.callWith(users[by], method, `/1.0/${path}`, body)
  return { method, path, answer }
}

/** A program that follows the events of ONE. */
class Mirror {
  readonly #resources = new Map<string, unknown>()
  #cursor = ''

  async start(): Promise<void> {
    this.#cursor = (await api.call('GET', '/1.0/events?after=now')).headers['link'] as string
    for (const [key, body] of await this.#readAll()) this.#resources.set(key, body)
  }

  async follow(): Promise<void> {
    for (let events: readonly ReadEvent[] | undefined; events?.length !== 0;) {
      const after = /after=([^&>]+)/.exec(this.#cursor)![1]!
      const { headers, body } = await api.call('GET', `/1.0/events?after=${after}&limit=1000`)
      this.#cursor = String(headers['link'])
      events = body as readonly ReadEvent[]
      const last = new Map(events.map(({ resource: { resource_type: type, id }, action }) => [`${type} ${id}`, action]))
      const affected = events.flatMap(({ affects }) => affects.map(({ resource_type: type, id }) => `${type} ${id}`))
      for (const key of new Set(affected)) {
        const [type, id] = key.split(' ') as [string, string]
        if (last.get(key) === 'delete') this.#resources.delete(key)
        else if (PATHS.has(type))
          this.#resources.set(key, (await api.call('GET', `/1.0/${PATHS.get(type)!}/${id}`)).body)
      }
    }
  }

  /** What it has of the resources that it has otherwise than a GET, and what the GET returns. */
  async staleResources(): Promise<readonly object[]> {
    const all = await this.#readAll()
    return [...new Set([...all.keys(), ...this.#resources.keys()])]
      .map((key) => ({ key, mirrored: this.#resources.get(key), read: all.get(key) }))
      .filter(({ mirrored, read }) => JSON.stringify(mirrored) !== JSON.stringify(read))
  }

  async #readAll(): Promise<ReadonlyMap<string, unknown>> {
    const all = new Map<string, unknown>()
    for (const type of PATHS.keys())
      for (const { id } of await list(type, ONE))
        all.set(`${type} ${id}`, (await api.call('GET', `/1.0/${PATHS.get(type)!}/${id}`)).body)
    return all
  }
}

/**
 * What is wrong with the database, in words. The unique indexes of the database are not asked: the answers of the API
 * are.
 */
async function problems(): Promise<string[]> {
  const found: string[] = []
  const addresses: string[] = []
  for (const account of ACCOUNTS) {
    const servers = await list<{
      id: string
      status: string
      server_type: { ram: number }
      interfaces: { mac_address: string; ipv4_address: string; ipv6_address: string }[]
    }>('server', account)
    const cloudIps = await list<{
      id: string
      status: string
      public_ipv4: string
      public_ipv6: string
      server: { status: string } | null
      interface: object | null
      server_group: object | null
      database_server: object | null
    }>('cloud_ip', account)
    const use = (await list<Readonly<Record<string, number | string>>>('account', account)).find(
      ({ id }) => id === account,
    ) as Readonly<Record<string, number>>
    addresses.push(
      ...servers.flatMap(({ interfaces }) =>
        interfaces.flatMap((one) => [one.mac_address, one.ipv4_address, one.ipv6_address]),
      ),
      ...cloudIps.flatMap((one) => [one.public_ipv4, one.public_ipv6]),
    )
    const counted = {
      servers_used: servers.length,
      ram_used: servers.reduce((sum, { server_type: { ram } }) => sum + ram, 0),
      cloud_ips_used: cloudIps.length,
    }
    for (const [name, value] of Object.entries(counted))
      if (use[name] !== value) found.push(`${account}: ${name} is ${String(use[name])}, counted ${value}`)
    if (use['ram_used']! > use['ram_limit']! || use['cloud_ips_used']! > use['cloud_ips_limit']!)
      found.push(`${account} is beyond a limit`)
    for (const { id, status, server, interface: one, server_group, database_server } of cloudIps) {
      if ((status === 'unmapped') !== [one, server_group, database_server].every((destination) => destination === null))
        found.push(`${id} is ${status} with a wrong destination`)
      if ((server === null) !== (one === null)) found.push(`${id} has an interface without a server`)
      if (status === 'reserved' && server?.status !== 'creating')
        found.push(`${id} is reserved for a server that is ${String(server?.status)}`)
      if (server !== null && ['deleting', 'deleted'].includes(server.status)) found.push(`${id} is at a deleted server`)
    }
  }
  found.push(
    ...addresses.filter((address, i) => addresses.indexOf(address) < i).map((address) => `${address} is given twice`),
  )
  const {
    rows: [row],
  } = await pool.query<{ held: number; used: number; deadlocks: number }>(
    `select (select count(*) from allocations where freed_account is null)::int as held,
      (select 2 * count(*) from interfaces)::int + (select 2 * count(*) from cloud_ips)::int as used,
      (select deadlocks from pg_stat_database where datname = current_database())::int as deadlocks`,
  )
  if (row!.held !== row!.used) found.push(`${row!.held} addresses are allocated, and ${row!.used} are used`)
  if (row!.deadlocks > 0) found.push(`${row!.deadlocks} deadlocks`)
  return [...found, ...(await problemsOfCollaborations())]
}

/** Of one address an account has one current collaboration, and users have access as their collaborations say. */
async function problemsOfCollaborations(): Promise<string[]> {
  const rows = await db.selectFrom('collaborations').selectAll().execute()
  const current = rows
    .filter(({ status }) => ['pending', 'accepted'].includes(status))
    .map(({ account_id, email }) => `${account_id} ${email.toLowerCase()}`)
  const found = current.filter((one, i) => current.indexOf(one) < i).map((one) => `${one} is current twice`)
  for (const { id, status, user_id, started_at, finished_at } of rows)
    if (
      (user_id !== null) !== ['accepted', 'ended'].includes(status) ||
      (user_id !== null) !== (started_at !== null) ||
      (finished_at !== null) !== ['rejected', 'cancelled', 'ended'].includes(status)
    )
      found.push(`${id} is ${status} with wrong columns`)
  const owners = await db.selectFrom('accounts').select(['id', 'owner_id']).execute()
  for (const [user, token] of [
    [ADA, users.ada],
    [MARY, users.mary],
  ] as const) {
    const expected = [
      ...owners.filter(({ owner_id }) => owner_id === user).map(({ id }) => id),
      ...rows.filter(({ user_id, status }) => user_id === user && status === 'accepted').map((row) => row.account_id),
    ]
    const accounts = (await api.callWith(token, 'GET', '/1.0/accounts')).body as { readonly id: string }[]
    if (expected.sort().join() !== accounts.map(({ id }) => id).join())
      found.push(`${user} has access to ${JSON.stringify(accounts)}, not to ${expected.join()}`)
  }
  return found
}

/** Where the store differs from the composition of the database. */
async function differences(store: Publisher): Promise<string[]> {
  const rows = await db.selectFrom('servers').select(['id', 'status']).execute()
  const found = rows
    .filter(({ status }) => !['active', 'inactive', 'deleted'].includes(status))
    .map(({ id, status }) => `${id} is ${status}`)
  const { differences: fields, others } = await compareStore(db, store)
  found.push(...[...fields, ...others].map((one) => JSON.stringify(one)))
  return found
}

/** What must have happened at least once, or the test shows little. */
const EXPECTED = [
  ...['POST servers 202', 'DELETE servers/ID 202', 'POST cloud_ips/ID/map 202', 'POST cloud_ips/ID/unmap 202'],
  ...['POST server_groups/ID/add_servers 202', 'POST user/collaborations/ID/accept 200', 'PUT config_maps/ID 200'],
]
/** How many requests are sent for it after the rounds, at most. */
const MAX_MORE = 2_000

t.test(`after any requests, also at the same time, the properties hold (seed ${SEED})`, async (t) => {
  const store = await api.startPublisher()
  const mirror = new Mirror()
  await mirror.start()
  const statuses = new Map<string, number>()
  const sendOne = async (next: () => number) => {
    const { method, path, answer } = await step(next)
    const key = `${method} ${path.replaceAll(/\/...-[0-9a-z]+/g, '/ID')} ${answer.status}`
    statuses.set(key, (statuses.get(key) ?? 0) + 1)
    if (answer.status >= 500) t.fail(`${method} ${path}: ${JSON.stringify(answer.body)}`)
  }
  const run = async (seed: number) => {
    const next = random(seed)
    for (let i = 0; i < STEPS; i++) await sendOne(next)
  }
  for (let round = 0; round < 3; round++) {
    await run(SEED + round)
    await mirror.follow()
    await api.drained() // a publish between two of the requests would change what they compare
    t.strictSame(await problems(), [], 'one after another')
    await Promise.all(Array.from({ length: CLIENTS }, (_, i) => run(SEED * 1000 + round * CLIENTS + i)))
    await api.drained()
    t.strictSame(await problems(), [], 'at the same time')
    t.strictSame(await differences(store), [], 'the store has what the database says')
    await mirror.follow()
    t.strictSame(await mirror.staleResources(), [], 'the mirror has what a GET returns')
  }
  // Which requests succeed depends on their order, so the rounds may lack one.
  const next = random(SEED - 1)
  for (let i = 0; i < MAX_MORE && !EXPECTED.every((key) => statuses.has(key)); i++) await sendOne(next)
  for (const key of EXPECTED) t.ok(statuses.has(key), `${key}: ${JSON.stringify([...statuses])}`)
})
