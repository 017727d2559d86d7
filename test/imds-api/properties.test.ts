/**
 * Properties that hold after any sequence of requests, also concurrent ones: addresses are unique, the use of an
 * account is a count, cloud IPs have a destination if and only if they are not free, no answer is a 500, and the store
 * equals the composition of the database.
 */
import t from 'tap'
import { SERVER_ACTIONS } from '../../src/imds-api/model/server-actions.ts'
import { composeMany } from '../../src/imds-api/publish/compose.ts'
import type { Publisher } from '../../src/store/open.ts'
import { random } from '../support/fixtures/generated-records.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { anApi, type ApiAnswer, type Method } from '../support/programs/api.ts'

const SEED = Number(process.env['IMDS_TEST_SEED'] ?? '12')
const STEPS = 60
/** Requests at the same time. */
const CLIENTS = 4

const ACCOUNTS = [ONE, TWO] as const
const api = await anApi(t)
const { db, pool } = api.database

interface Id {
  readonly id: string
}
const idsOf = async (path: string, account: typeof ONE | typeof TWO) =>
  ((await api.call('GET', `/1.0/${path}`, undefined, account)).body as Id[]).map(({ id }) => id)

/** Makes a random request that is right in its form; whether it is possible now, the API decides. */
async function step(next: () => number): Promise<{ method: Method; path: string; answer: ApiAnswer }> {
  const pick = <T>(list: readonly T[]): T | undefined => list[Math.floor(next() * list.length)]
  const account = pick(ACCOUNTS)!
  const [servers, cloudIps, groups] = [
    await idsOf('servers', account),
    await idsOf('cloud_ips', account),
    await idsOf('server_groups', account),
  ]
  const server = pick(servers) ?? 'srv-zzzzz'
  const cloudIp = pick(cloudIps) ?? 'cip-zzzzz'
  const [group, other] = [pick(groups)!, pick(groups)!]
  const members = { servers: [{ server }, { server: pick(servers) ?? server }] }
  const [method, path, body] = pick<readonly [Method, string, object?]>([
    [
      'POST',
      'servers',
      {
        image: 'img-deb12',
        name: 'n',
        cloud_ip: pick([true, false, cloudIp]),
        server_groups: pick([undefined, [group, other]]),
        user_data: pick([null, 'YQ==', '']),
      },
    ],
    [
      'POST',
      'servers',
      {
        image: 'img-deb12',
        zone: pick(['gb1-a', 'gb1-b']),
        server_type: pick(['typ-small', 'typ-large']),
        cloud_ip: true,
      },
    ],
    ['DELETE', `servers/${server}`],
    [
      'PUT',
      `servers/${server}`,
      { user_data: pick([null, 'Yg==', 'Yw==']), server_groups: pick([undefined, [], [group]]) },
    ],
    ['PUT', `servers/${server}`, { name: 'other' }],
    ['POST', 'cloud_ips', {}],
    ['DELETE', `cloud_ips/${cloudIp}`],
    ['POST', `cloud_ips/${cloudIp}/unmap`],
    ['POST', `cloud_ips/${cloudIp}/map`, { destination: pick([server, server, group]) }],
    ['POST', `cloud_ips/${cloudIp}/map`, { destination: pick([server, group, group]) }],
    ['POST', 'server_groups', { name: pick(['', 'web']), ...members }],
    ['PUT', `server_groups/${group}`, { name: pick(['', 'renamed']) }],
    ['DELETE', `server_groups/${group}`],
    ['POST', `server_groups/${group}/add_servers`, members],
    ['POST', `server_groups/${group}/remove_servers`, { servers: [{ server }] }],
    ['POST', `servers/${server}/${pick(SERVER_ACTIONS)!}`],
    ['POST', `servers/${server}/stop`],
    ['POST', `server_groups/${group}/move_servers`, { servers: [{ server }], destination: other }],
  ])!
  return { method, path, answer: await api.call(method, `/1.0/${path}`, body, account) }
}

/**
 * What is wrong with the database, in words. The unique indexes of the database are not asked: the answers of the API
 * are.
 */
async function problems(): Promise<string[]> {
  const found: string[] = []
  const addresses: string[] = []
  for (const account of ACCOUNTS) {
    const list = async <T>(path: string) => (await api.call('GET', `/1.0/${path}`, undefined, account)).body as T[]
    const servers = await list<{
      id: string
      status: string
      server_type: { ram: number }
      interfaces: { mac_address: string; ipv4_address: string }[]
    }>('servers')
    const cloudIps = await list<{
      id: string
      status: string
      public_ipv4: string
      public_ipv6: string
      server: { status: string } | null
      interface: Id | null
      server_group: Id | null
    }>('cloud_ips')
    const [use] = await list<Readonly<Record<string, number>>>('accounts')
    addresses.push(
      ...servers.flatMap(({ interfaces }) => interfaces.flatMap((one) => [one.mac_address, one.ipv4_address])),
      ...cloudIps.flatMap((one) => [one.public_ipv4, one.public_ipv6]),
    )
    const counted = {
      servers_used: servers.length,
      ram_used: servers.reduce((sum, { server_type: { ram } }) => sum + ram, 0),
      cloud_ips_used: cloudIps.length,
    }
    for (const [name, value] of Object.entries(counted))
      if (use![name] !== value) found.push(`${account}: ${name} is ${String(use![name])}, counted ${String(value)}`)
    if (use!['ram_used']! > use!['ram_limit']! || use!['cloud_ips_used']! > use!['cloud_ips_limit']!)
      found.push(`${account} is beyond a limit`)
    for (const { id, status, server, interface: one, server_group } of cloudIps) {
      if ((status === 'unmapped') !== (one === null && server_group === null))
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
  } = await pool.query<{
    held: number
    used: number
  }>(`select (select count(*) from allocations where freed_account is null)::int as held,
    (select 2 * count(*) from interfaces)::int + (select 2 * count(*) from cloud_ips)::int as used`)
  if (row!.held !== row!.used)
    found.push(`${String(row!.held)} addresses are allocated, and ${String(row!.used)} are used`)
  return found
}

/** Where the store differs from the composition of the database. */
async function differences(store: Publisher): Promise<string[]> {
  const rows = await db.selectFrom('servers').select(['id', 'status']).execute()
  const alive = rows.filter(({ status }) => status !== 'deleted').map(({ id }) => id)
  const found = rows
    .filter(({ status }) => !['active', 'inactive', 'deleted'].includes(status))
    .map(({ id, status }) => `${id} is ${status}`)
  const listed = (await store.list()).map(({ id }) => id)
  found.push(...listed.filter((id) => !alive.includes(id)).map((id) => `${id} is in the store only`))
  for (const id of alive) {
    const [published, composed] = [await store.get(id), (await composeMany(db, [id]))[0]]
    const document = Object.fromEntries(
      Object.entries(published?.document ?? {}).filter(([field]) => field !== 'userData'),
    ) // the store adds its size
    if (JSON.stringify(document) !== JSON.stringify(composed!.record))
      found.push(`${id}: ${JSON.stringify(document)} is not ${JSON.stringify(composed!.record)}`)
    if (Buffer.compare(Buffer.from(published?.userData ?? []), Buffer.from(composed!.userData ?? [])) !== 0)
      found.push(`${id} has other user-data`)
  }
  return found
}

t.test(
  `after any requests, one after another and at the same time, the properties hold (seed ${String(SEED)})`,
  async (t) => {
    const store = await api.startPublisher()
    const statuses = new Map<string, number>()
    const run = async (seed: number, steps: number) => {
      const next = random(seed)
      for (let i = 0; i < steps; i++) {
        const {
          method,
          path,
          answer: { status, body },
        } = await step(next)
        const key = `${method} ${path.replaceAll(/\/...-[0-9a-z]+/g, '/ID')} ${String(status)}`
        statuses.set(key, (statuses.get(key) ?? 0) + 1)
        if (status >= 500) t.fail(`${method} ${path}: ${JSON.stringify(body)}`)
      }
    }
    for (let round = 0; round < 3; round++) {
      await run(SEED + round, STEPS / 3)
      await api.drained() // a publish between two of the requests would change what they compare
      t.strictSame(await problems(), [], 'one after another')
      await Promise.all(Array.from({ length: CLIENTS }, (_, i) => run(SEED * 1000 + round * CLIENTS + i, STEPS / 3)))
      await api.drained()
      t.strictSame(await problems(), [], 'at the same time')
      t.strictSame(await differences(store), [], 'the store has what the database says')
    }
    for (const key of [
      'POST servers 202',
      'DELETE servers/ID 202',
      'POST cloud_ips/ID/map 202',
      'POST cloud_ips/ID/unmap 202',
      'POST server_groups/ID/add_servers 202',
    ])
      t.ok(statuses.has(key), `${key}: ${JSON.stringify([...statuses])}`)
  },
)

t.test('concurrent creates cannot pass a limit together', async (t) => {
  await db
    .updateTable('accounts')
    .set({ cloud_ips_limit: 50, ram_limit: 60 * 1024 })
    .execute()
  for (const [path, body, used, limit] of [
    ['cloud_ips', {}, 'cloud_ips_used', 50],
    ['servers', { image: 'img-deb12' }, 'servers_used', undefined],
  ] as const) {
    // on a slow machine some wait too long for their turn: 503
    const create = async (): Promise<number> => {
      const { status } = await api.call('POST', `/1.0/${path}`, body)
      return status === 503 ? create() : status
    }
    const statuses = await Promise.all(Array.from({ length: 61 }, create))
    t.ok(statuses.includes(403), path)
    t.strictSame(
      statuses.filter((status) => ![201, 202, 403].includes(status)),
      [],
    )
    const { body: account } = (await api.call('GET', '/1.0/account')) as { body: Record<string, number> }
    if (limit !== undefined) t.equal(account[used], limit)
    else t.ok(account['ram_used']! <= 60 * 1024 && account['ram_used']! > 59 * 1024, String(account['ram_used']))
  }
  t.strictSame(await problems(), [])
})
