/** Database servers: what the region file makes, what clients may change, and cloud IPs that are mapped to one. */
import t from 'tap'
import type { RegionFile } from '../../src/imds-api/region/schema.ts'
import { aRegion, ONE, TWO } from '../support/fixtures/region.ts'
import { BASE_URL, nestedAccount, nestedCloudIp, TIME, zone } from '../support/fixtures/representations.ts'
import { aClient, conflict, invalid, missing, refused } from '../support/programs/api-client.ts'
import { anApi, apply } from '../support/programs/api.ts'

interface Body extends Record<string, unknown> {
  id: string
  status: string
  created_at: string
  updated_at: string
  public_ipv4: string
  public_ipv6: string
}

const types: NonNullable<RegionFile['database_server_types']> = [
  { id: 'dbt-large', name: 'Large', ram: 4096, disk_size: 163_840 },
  { id: 'dbt-small', name: 'Small', description: 'Database Type Small', ram: 2048, disk_size: 81_920 },
]
const full = {
  id: 'dbs-full1',
  account: ONE,
  name: 'orders',
  description: 'of the shop',
  status: 'active',
  locked: true,
  allow_access: ['10.0.0.0/8', 'grp-abcde'],
  database_engine: 'mysql',
  database_version: '8.0',
  database_server_type: 'dbt-small',
  maintenance_weekday: 5,
  maintenance_hour: 23,
  zone: 'gb1-b',
} as const satisfies NonNullable<RegionFile['database_servers']>[number]
const small = {
  id: 'dbs-min02',
  account: ONE,
  database_engine: 'postgresql',
  database_version: '14',
  database_server_type: 'dbt-large',
  zone: 'gb1-a',
} as const
const theirs = { ...small, id: 'dbs-two03', account: TWO } as const
const regionWith = (...servers: NonNullable<RegionFile['database_servers']>) =>
  aRegion({ database_server_types: [...types], database_servers: servers.map((one) => ({ ...one })) })
const writable = { ...full, allow_access: [...full.allow_access] }

const api = await anApi(t, { region: regionWith(writable, small, theirs) })
const { db } = api.database
const { call, create, list } = aClient<Body>(api)
const aCloudIp = () => create('cloud_ips')
const type = (id: 'dbt-small' | 'dbt-large') => ({
  id,
  resource_type: 'database_type',
  url: `${BASE_URL}/1.0/database_types/${id}`,
  ...(id === 'dbt-small'
    ? { name: 'Small', description: 'Database Type Small', disk_size: 81_920, ram: 2048 }
    : { name: 'Large', description: '', disk_size: 163_840, ram: 4096 }),
})
const { id, account: _account, database_server_type: _type, zone: _zone, ...shown } = writable
/** The database server dbs-full1 as nested below an account or a cloud IP, with its times. */
const nested = ({ created_at, updated_at }: Body) => ({
  id,
  resource_type: 'database_server',
  url: `${BASE_URL}/1.0/database_servers/${id}`,
  ...shown,
  created_at,
  updated_at,
  deleted_at: null,
})

t.test('types of database servers: the list by RAM, and members', async (t) => {
  t.strictSame(await call('GET', 'database_types'), { status: 200, body: [type('dbt-small'), type('dbt-large')] })
  t.strictSame(await call('GET', 'database_types/dbt-large'), { status: 200, body: type('dbt-large') })
  t.strictSame(await call('GET', 'database_types/dbt-zzzzz'), missing('the database type dbt-zzzzz'))
})

t.test('a database server in its full, collected and nested form', async (t) => {
  const { body } = await call('GET', `database_servers/${id}`)
  t.match(body, { created_at: TIME, updated_at: TIME })
  const representation = {
    ...nested(body),
    account: nestedAccount(ONE),
    database_server_type: type('dbt-small'),
    cloud_ips: [],
    zone: zone('zon-bbbb2'),
  }
  t.strictSame(body, representation)
  const all = await list('database_servers')
  t.strictSame(all[0], representation)
  t.match(all[1], {
    id: 'dbs-min02',
    name: '',
    description: '',
    status: 'active',
    locked: false,
    allow_access: [],
    maintenance_weekday: 0,
    maintenance_hour: 6,
    zone: { handle: 'gb1-a' },
  })
  t.equal(all.length, 2, 'those of the account')
  const { body: account } = await call('GET', 'account')
  t.strictSame((account['database_servers'] as Body[])[0], nested(body))
  t.match(account, {
    dbs_instances_used: 2,
    dbs_ram_limit: 6144,
    dbs_ram_used: 6144,
    database_servers: [{ id }, { id: 'dbs-min02' }],
  })
  t.match(await call('GET', 'account', undefined, TWO), {
    body: { dbs_instances_used: 1, dbs_ram_limit: 4096, dbs_ram_used: 4096, database_servers: [{ id: 'dbs-two03' }] },
  })
})

t.test('a client renames a database server; the other fields may be sent as they are', async (t) => {
  await db
    .updateTable('database_servers')
    .set({ updated_at: new Date(0) })
    .execute()
  const renamed = await call('PUT', 'database_servers/dbs-min02', {
    name: 'sessions',
    description: 'd',
    allow_access: [],
    maintenance_weekday: 0,
    maintenance_hour: 6,
    snapshots_schedule: null,
  })
  t.match(renamed, { status: 200, body: { name: 'sessions', description: 'd', updated_at: /^2/ } })
  t.match(await call('PUT', 'database_servers/dbs-min02', { description: null }), {
    status: 200,
    body: { name: 'sessions', description: '' },
  })
  t.match(await call('PUT', 'database_servers/dbs-min02', {}), { status: 200, body: { name: 'sessions' } })
  t.strictSame(
    await call('PUT', 'database_servers/dbs-min02', {
      name: 'new',
      allow_access: ['0.0.0.0/0'],
      maintenance_weekday: 1,
      maintenance_hour: '6',
      snapshots_schedule: '* 5 * * *',
    }),
    refused(
      501,
      'not_implemented',
      ...['allow_access', 'maintenance_weekday', 'maintenance_hour', 'snapshots_schedule'].map(
        (field) => `changes of ${field} are not implemented: the region file sets it`,
      ),
    ),
  )
  t.strictSame(
    await call('PUT', 'database_servers/dbs-min02', { name: 1, description: 2 }),
    invalid('name must be a string', 'description must be a string or null'),
  )
  t.strictSame(
    await apply(api.database, regionWith(writable, small, theirs)),
    [],
    'a name that the file leaves out stays',
  )
  t.match(await call('GET', 'database_servers/dbs-min02'), { body: { name: 'sessions' } })
})

t.test('every other change is 501', async (t) => {
  for (const [method, path] of [
    ['POST', ''],
    ['DELETE', `/${id}`],
    ['POST', `/${id}/snapshot`],
    ['POST', `/${id}/reset_password`],
    ['PUT', `/${id}/lock_resource`],
    ['PUT', `/${id}/unlock_resource`],
  ] as const) {
    t.strictSame(
      await call(method, `database_servers${path}`, {}),
      refused(501, 'not_implemented', 'changes of database servers are not implemented'),
      `${method} ${path}`,
    )
  }
})

t.test('a cloud IP that is mapped to a database server, in all forms of both', async (t) => {
  const { body: server } = await call('GET', `database_servers/${id}`)
  const free = await aCloudIp()
  const mapped = { ...free, status: 'mapped', database_server: nested(server) }
  t.strictSame(await call('POST', `cloud_ips/${free.id}/map`, { destination: id }), { status: 202, body: mapped })
  t.strictSame(await call('GET', `cloud_ips/${free.id}`), { status: 200, body: mapped })
  t.strictSame(await call('GET', 'cloud_ips'), { status: 200, body: [mapped] })
  const cloudIps = [
    nestedCloudIp(free.id, {
      name: '',
      public_ipv4: free.public_ipv4,
      public_ipv6: free.public_ipv6,
      status: 'mapped',
      reverse_dns: '',
    }),
  ]
  t.strictSame((await call('GET', `database_servers/${id}`)).body, { ...server, cloud_ips: cloudIps })
  t.strictSame(
    await call('POST', `cloud_ips/${free.id}/map`, { destination: id }),
    conflict(`${free.id} is mapped: unmap it first`),
  )
  t.strictSame(await db.selectFrom('outbox').selectAll().execute(), [], 'no guest hears of it')
  t.strictSame(await call('POST', `cloud_ips/${free.id}/unmap`), { status: 202, body: free })
  t.strictSame((await call('GET', `database_servers/${id}`)).body['cloud_ips'], [])
  t.strictSame(await db.selectFrom('outbox').selectAll().execute(), [])
  t.strictSame(
    await call('POST', `cloud_ips/${free.id}/map`, { destination: 'dbs-two03' }),
    missing('the destination dbs-two03'),
  )
  await call('DELETE', `cloud_ips/${free.id}`)
})

t.test('the state of a database server: which can be mapped to, changed and listed', async (t) => {
  const ip = await aCloudIp()
  for (const [state, mapStatus, putStatus, isListed] of [
    ['creating', 202, 200, true],
    ['active', 202, 200, true],
    ['failing', 409, 200, true],
    ['failed', 409, 200, true],
    ['deleting', 404, 409, true],
    ['deleted', 404, 409, false],
  ] as const) {
    await apply(api.database, regionWith(writable, { ...small, status: state }, theirs))
    t.match(
      await call('GET', 'database_servers/dbs-min02'),
      { status: 200, body: { status: state, deleted_at: state === 'deleted' ? TIME : null } },
      state,
    )
    t.equal(
      (await list('database_servers')).some((one) => one.id === 'dbs-min02'),
      isListed,
      state,
    )
    t.match(await call('GET', 'account'), {
      body: { dbs_instances_used: isListed ? 2 : 1, dbs_ram_used: isListed ? 6144 : 2048 },
    })
    t.equal(((await call('GET', 'account')).body['database_servers'] as Body[]).length, isListed ? 2 : 1)
    t.equal((await call('PUT', 'database_servers/dbs-min02', { name: 'x' })).status, putStatus, state)
    t.equal((await call('POST', `cloud_ips/${ip.id}/map`, { destination: 'dbs-min02' })).status, mapStatus, state)
    await call('POST', `cloud_ips/${ip.id}/unmap`)
  }
  t.strictSame(await call('PUT', 'database_servers/dbs-min02', { name: 'y' }), conflict('dbs-min02 is deleted'))
  t.match(await call('GET', 'database_servers/dbs-min02'), { body: { name: 'x' } })
  await call('DELETE', `cloud_ips/${ip.id}`)
})

t.test('a database server that the region file moves to another account has no cloud IP of the old one', async (t) => {
  await apply(api.database, regionWith(writable, small, theirs))
  const ip = await aCloudIp()
  t.equal((await call('POST', `cloud_ips/${ip.id}/map`, { destination: small.id })).status, 202)
  await apply(api.database, regionWith(writable, { ...small, account: TWO }, theirs))
  t.match(await call('GET', `database_servers/${small.id}`, undefined, TWO), { status: 200, body: { cloud_ips: [] } })
  t.match(await call('GET', `cloud_ips/${ip.id}`), { status: 200, body: { status: 'unmapped', database_server: null } })
  await apply(api.database, regionWith(writable, small, theirs))
  await call('DELETE', `cloud_ips/${ip.id}`)
})

t.test('a database server that the region file deletes or removes has no cloud IP', async (t) => {
  const ips = [await aCloudIp(), await aCloudIp()]
  for (const change of [{ status: 'deleting' }, { status: 'deleted' }, undefined] as const) {
    await apply(api.database, regionWith(writable, small, theirs))
    t.match((await call('GET', 'database_servers/dbs-min02')).body, { status: 'active', deleted_at: null })
    for (const ip of ips)
      t.equal((await call('POST', `cloud_ips/${ip.id}/map`, { destination: 'dbs-min02' })).status, 202)
    await apply(api.database, regionWith(writable, small, theirs))
    t.match((await call('GET', `cloud_ips/${ips[0]!.id}`)).body, { status: 'mapped' }, 'an active one keeps it')
    const difference = await apply(
      api.database,
      regionWith(...[writable, theirs, ...(change === undefined ? [] : [{ ...small, ...change }])]),
      change === undefined ? { database_servers: ['dbs-min02'] } : {},
    )
    t.strictSame(difference, [
      change === undefined
        ? '- database server dbs-min02'
        : `~ database server dbs-min02: status active -> ${change.status}`,
    ])
    for (const ip of ips)
      t.match(await call('GET', `cloud_ips/${ip.id}`), { body: { status: 'unmapped', database_server: null } })
  }
  t.equal((await call('GET', 'database_servers/dbs-min02')).status, 404)
  const removed = {
    database_servers: ['dbs-full1', 'dbs-two03'],
    database_server_types: ['dbt-large', 'dbt-small'],
  }
  t.strictSame([...(await apply(api.database, aRegion(), removed))].sort(), [
    '- database server dbs-full1',
    '- database server dbs-two03',
    '- database server type dbt-large',
    '- database server type dbt-small',
  ])
})
