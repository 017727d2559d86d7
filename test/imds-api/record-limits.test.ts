/**
 * What a record cannot hold is refused where a client asks for it. The publisher could only keep such a record back,
 * and its guest would see no change.
 */
import t from 'tap'
import { composeMany } from '../../src/imds-api/publish/compose.ts'
import { MAX_RECORD_BYTES } from '../../src/metadata/instance.ts'
import { ADA, aRegion, DATABASE_SERVER, MARY, ONE, WITH_DATABASE_SERVER, withMary } from '../support/fixtures/region.ts'
import { routesOf } from '../support/fixtures/routes.ts'
import { aClient } from '../support/programs/api-client.ts'
import { anApi, type Method, setRow } from '../support/programs/api.ts'

interface Body extends Record<string, unknown> {
  id: string
  errors: string[]
  interfaces: { id: string }[]
}

const api = await anApi(t, {
  region: withMary({
    accounts: aRegion().accounts.map((account) => ({ ...account, ram_limit: 65_536, cloud_ips_limit: 100 })),
    ...WITH_DATABASE_SERVER,
  }),
})
const store = await api.startPublisher()
const { db, pool } = api.database
const { call, create: make } = aClient<Body>(api)
const create = async (path: string, body?: object) => {
  const made = await make(path, body)
  await api.drained()
  return made
}
const members = (...ids: string[]) => ({ servers: ids.map((id) => ({ server: id })) })
const jsonOf = async (id: string) => JSON.stringify({ ...(await composeMany(db, [id]))[0]!.record, revision: 1 })

/** The longest name of a group: 1,020 bytes. */
const LONG = '😀'.repeat(255)
const TAGS = Object.fromEntries(
  Array.from({ length: 50 }, (_, i) => [`${i}${'\u0001'.repeat(126)}`, '\u0001'.repeat(256)]),
)

/** Makes groups with the longest names. */
async function longGroups(count: number): Promise<string[]> {
  const { rows } = await pool.query<{ id: string }>(
    `
    insert into server_groups (id, account_id, name, description, is_default)
    select 'grp-' || to_char(nextval('ids_grp'), 'FM00000'), $1, $2, '', false
    from generate_series(1, $3)
      returning id`,
    [ONE, LONG, count],
  )
  return rows.map(({ id }) => id)
}

const short = await create('server_groups', { name: 'short' })
const [extra, ...full] = await longGroups(203)
/** As many groups as a record can hold: no further one with the longest name. */
const server = await create('servers', { image: 'img-deb12', server_groups: [short.id, ...full] })
const other = await create('servers', { image: 'img-deb12', server_groups: [extra!] })

const tooLong = (id: RegExp | string = server.id) =>
  new RegExp(
    `^${typeof id === 'string' ? id : id.source} would have \\d{6} bytes of server groups, SSH keys and tags as JSON: the most are 212992$`,
  )
/** Every request that can make a record longer, and why it is refused: route -> path and body. */
const GROWS: Readonly<Record<string, () => Promise<readonly [path: string, body: object, error: RegExp | string]>>> = {
  'POST /servers': () =>
    Promise.resolve([
      'servers',
      { image: 'img-deb12', server_groups: [...full, short.id, extra!] },
      tooLong(/srv-\w+/),
    ]),
  'PUT /servers/ID': () => Promise.resolve([`servers/${server.id}`, { tags: TAGS }, tooLong()]),
  'POST /server_groups': () =>
    Promise.resolve(['server_groups', { name: LONG, ...members(other.id, server.id) }, tooLong()]),
  'PUT /server_groups/ID': () => Promise.resolve([`server_groups/${short.id}`, { name: LONG }, tooLong()]),
  'POST /server_groups/ID/add_servers': () =>
    Promise.resolve([`server_groups/${extra!}/add_servers`, members(other.id, server.id), tooLong()]),
  'POST /server_groups/ID/move_servers': () =>
    Promise.resolve([
      `server_groups/${short.id}/move_servers`,
      { ...members(server.id), destination: extra! },
      tooLong(),
    ]),
  'POST /cloud_ips/ID/map': async () => {
    await pool.query(
      `
      insert into cloud_ips (id, account_id, name, public_ipv4, public_ipv6, port_translators, status, interface_id)
      select 'cip-m' || n, $1, '', '203.113.113.' || 100 + n, 'fd12:3456:789a:bcde:f012:3456:789a:' || 1000 + n,
        '[]', 'mapped', $2
      from generate_series(1, 64) n`,
      [ONE, server.interfaces[0]!.id],
    )
    return [
      `cloud_ips/${(await create('cloud_ips')).id}/map`,
      { destination: server.id },
      `${server.id} would have 65 cloud IPs: the most are 64`,
    ]
  },
}

t.test('each request that would make a record too long is 422, names the limit and changes nothing', async (t) => {
  for (const [route, build] of Object.entries(GROWS)) {
    const [path, body, error] = await build()
    const before = await jsonOf(server.id)
    const {
      status,
      body: { errors },
    } = await call(route.split(' ', 1)[0] as Method, path, body)
    t.match({ status, errors }, { status: 422, errors: [error] }, route)
    t.equal(await jsonOf(server.id), before, route)
  }
  t.match(
    await call('PUT', `servers/${server.id}`, { server_groups: [...full, short.id, extra!] }),
    { status: 422, body: { errors: [tooLong()] } },
    'groups too',
  )
  t.equal(
    (await call('PUT', `server_groups/${short.id}`, { name: 'x'.repeat(100) })).status,
    202,
    'what fits is possible',
  )
  t.equal((await call('PUT', `server_groups/${short.id}`, { name: 'short' })).status, 202)
})

t.test('a server for which the account has too many or too long SSH keys is refused', async (t) => {
  const collaborate = (count: number, key: string) =>
    pool.query(
      `
    with added as (
      insert into users (id, name, email_address, email_verified, messaging_pref, ssh_key)
        select 'usr-k' || n, '', 'k' || n || '@example.com', true, false, $3
        from generate_series(1, $2::int) n
        returning id, email_address)
    insert into collaborations (id, account_id, user_id, email, role, status)
      select 'col-' || id, $1, id, email_address, 'admin', 'accepted'
      from added`,
      [ONE, count, key],
    )
  const end = async () => {
    await db.deleteFrom('collaborations').where('id', 'like', 'col-usr-k%').execute()
    await db.deleteFrom('users').where('id', 'like', 'usr-k%').execute()
  }
  await collaborate(256, 'ssh-ed25519 AAAA') // with Ada's, 257
  t.match(await call('POST', 'servers', { image: 'img-deb12' }), {
    status: 422,
    body: { errors: [/^srv-\w+ would have 257 SSH keys: the most are 256$/] },
  })
  await end()
  const keys = (count: number) => Array.from({ length: count }, () => 'ssh-ed25519 AAAA').join('\n')
  await collaborate(8, keys(32)) // with Ada's, 257
  t.match(await call('POST', 'servers', { image: 'img-deb12' }), {
    status: 422,
    body: { errors: [/^srv-\w+ would have 257 SSH keys: the most are 256$/] },
  })
  await end()
  await collaborate(8, keys(31))
  const { id: fits } = await create('servers', { image: 'img-deb12' })
  t.match(await store.get(fits), { document: { publicKeys: { length: 9 } } }, 'a record has all that fit')
  await end()
  await collaborate(14, `ssh-ed25519 AAAA ${'x'.repeat(16_384 - 'ssh-ed25519 AAAA '.length)}`)
  t.match(await call('POST', 'servers', { image: 'img-deb12' }), {
    status: 422,
    body: { errors: [tooLong(/srv-\w+/)] },
  })
  await end()
})

t.test('no other request makes a record longer', async (t) => {
  const { id } = await create('servers', { image: 'img-deb12', server_groups: [short.id, extra!], cloud_ip: true })
  const [cloudIp] = (await call('GET', `servers/${id}`)).body['cloud_ips'] as Body[]
  const {
    snapshots: [image],
  } = (await call('POST', `servers/${id}/snapshot`)).body as unknown as { snapshots: Body[] }
  const invitation = await create('collaborations', { email: 'mary@example.com', role: 'admin' })
  const ids: Readonly<Record<string, string>> = {
    servers: id,
    server_groups: extra!,
    cloud_ips: cloudIp!.id,
    images: image!.id,
    users: ADA,
    user: invitation.id,
    database_servers: DATABASE_SERVER,
    accounts: ONE,
    collaborations: invitation.id,
    api_clients: (await create('api_clients')).id,
    applications: (await create('applications')).id,
    config_maps: (await create('config_maps', { data: {} })).id,
  }
  const profile = {
    name: 'n'.repeat(255),
    ssh_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5 ' + 'x'.repeat(16_000),
  }
  const bodies: Readonly<Record<string, object>> = {
    'PUT /user': profile,
    'PUT /users/ID': { name: 'Ada' },
    'PUT /account': { name: LONG, city: LONG },
    'PUT /accounts/ID': { name: LONG, city: LONG },
    'PUT /images/ID': { name: LONG, username: LONG, description: LONG },
    'PUT /cloud_ips/ID': { name: LONG, reverse_dns: `${'a.'.repeat(120)}example.com` },
    'POST /server_groups/ID/remove_servers': members(id),
    'POST /collaborations': { email: 'new@example.com', role: 'admin' },
    'POST /config_maps': { data: {} },
    'PUT /config_maps/ID': { data: TAGS },
  }
  const [ada, mary] = [await api.userToken(ADA), await api.userToken(MARY)]
  const isDelete = ({ method }: { method: Method }) => method === 'DELETE'
  const others = routesOf(api.server).filter(
    ({ method, path }) => method !== 'GET' && path !== '/database_servers/*' && !(`${method} ${path}` in GROWS),
  )
  let length = (await jsonOf(id)).length
  for (const { method, path } of [...others.filter((route) => !isDelete(route)), ...others.filter(isDelete)]) {
    const [, collection = ''] = path.split('/')
    const token = path.startsWith('/user/') ? mary : ada
    const { status } = await api.callWith(
      token,
      method,
      `/1.0${path.replace('ID', ids[collection]!).replace('*', 'xxx-none1')}?account_id=${ONE}`,
      bodies[`${method} ${path}`],
    )
    const isPossible = status < 300 || [409, 501].includes(status)
    t.ok(isPossible, `${method} ${path} is possible: ${status}`)
    const now = (await composeMany(db, [id]))[0] === undefined ? 0 : (await jsonOf(id)).length
    t.ok(now <= length, `${method} ${path} leaves ${length} bytes: ${now}`)
    length = now
    await api.drained()
  }
})

t.test('a record with all that clients can add and everything else at its longest is published', async (t) => {
  const domain = `${'d'.repeat(63)}.${'d'.repeat(63)}.${'d'.repeat(63)}.${'d'.repeat(10)}`
  const name = (first: string) => first.padEnd(63, 'x')
  await db.updateTable('region').set({ domain }).execute()
  await setRow(db, 'zones', 'zon-aaaa1', { handle: name('z') })
  await setRow(db, 'server_types', 'typ-small', { handle: name('t') })
  for (const hypervisor of [name('h1'), name('h2')])
    await db.insertInto('hypervisors').values({ name: hypervisor, zone_id: 'zon-aaaa1', ram: 1024 }).execute()
  await setRow(db, 'servers', server.id, {
    hypervisor: name('h1'),
    migrating_to: name('h2'),
    sealed_at: new Date(),
    revision: 2 ** 52,
    user_data: Buffer.alloc(16_384).toString('base64'),
    metadata_options: JSON.stringify({
      http_endpoint: 'disabled',
      http_tokens: 'required',
      http_put_response_hop_limit: 64,
      http_protocol_ipv6: 'disabled',
      instance_metadata_tags: 'disabled',
    }),
  })
  const { record, userData } = (await composeMany(db, [server.id]))[0]!
  const bytes = Buffer.byteLength(JSON.stringify(record))
  t.ok(bytes > MAX_RECORD_BYTES - 48 * 1024 && bytes <= MAX_RECORD_BYTES, String(bytes))
  t.match(await store.put(record, userData, { dryRun: true }), { kind: 'published' })
})
