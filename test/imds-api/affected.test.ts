/**
 * What events affect: each resource whose ETag a change has changed, and no other; and that nothing keeps a server that is
 * deleted. The lists, the changes and the columns come from the resources, so a new one is tried too.
 */
import { sql } from 'kysely'
import t from 'tap'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { ADA, aRegion, DATABASE_SERVER, MARY, ONE, WITH_DATABASE_SERVER, withMary } from '../support/fixtures/region.ts'
import { routesOf } from '../support/fixtures/routes.ts'
import { anApi, apply, type Method } from '../support/programs/api.ts'
import type { ReadEvent } from '../support/programs/event-reader.ts'

const region = withMary(WITH_DATABASE_SERVER)
const api = await anApi(t, { region, ownServer: true })
const { db } = api.database
const users = { ada: await api.userToken(ADA), mary: await api.userToken(MARY) }
await api.startPublisher()

type Body = Readonly<Record<string, unknown>> & { readonly id: string; readonly owner?: string }
const get = async (path: string) => (await api.call('GET', `/1.0/${path}`)).body as Body & Body[]
/** The routes of the requests that `send` has sent. */
const sent = new Set<string>()
const send = async (method: Method, path: string, body?: object, user?: string) => {
  const url = `/1.0/${path}`
  const { status, body: answer } = await (user === undefined
    ? api.call(method, url, body)
    : api.callWith(user, method, url, body))
  if (status >= 300) throw new Error(`${method} ${path}: ${JSON.stringify(answer)}`)
  sent.add(`${method} /${path.replace(/\b[a-z]{3}-\w+/, 'ID')}`)
  return answer as Body & { readonly interfaces: readonly { readonly id: string }[] }
}

/** The resources of accounts. Interfaces have no list: servers show them. */
const OWNED = ALL_ROWS.filter(
  ({ isOfRegion, unimplemented, name }) => isOfRegion !== true && unimplemented !== 'all' && name !== 'interface',
)
const LISTS = OWNED.map(({ path, table }) => path ?? table!)
/** The changes of resources whose changes are events. A server cannot be resized (501). */
const CHANGES = routesOf(api.server)
  .filter(({ method }) => method !== 'GET')
  .map(({ method, path }) => `${method} ${path}`)
  .filter((route) =>
    OWNED.some(
      ({ path, table, unimplemented }) => unimplemented === undefined && route.split('/')[1] === (path ?? table!),
    ),
  )
  .filter((route) => route !== 'POST /servers/ID/resize')

/** The ETag of each resource of the account that its lists show, and of its interfaces, by the path. */
async function etags(): Promise<ReadonlyMap<string, string>> {
  const found = new Map<string, string>()
  const add = async (path: string) => {
    found.set(path, String((await api.call('GET', `/1.0/${path}`)).headers['etag']))
  }
  for (const list of LISTS)
    for (const one of await get(list)) {
      if (list === 'images' && one.owner !== ONE) continue
      await add(`${list}/${one.id}`)
      for (const { id } of (one['interfaces'] ?? []) as Body[]) await add(`interfaces/${id}`)
    }
  return found
}

const settled = async () => {
  await api.drained()
  await sql`select 1`.execute(db)
}

/**
 * The paths of the resources that a change has changed, by their ETags and by the events. The deletion of a server is that
 * of its interfaces.
 */
async function compare(change: () => Promise<unknown>) {
  const before = await etags()
  const [, after] = /after=([^&>]+)/.exec(String((await api.call('GET', '/1.0/events?after=now')).headers['link']))!
  await change()
  await settled()
  const now = await etags()
  const events = (await api.call('GET', `/1.0/events?after=${after!}&limit=1000`)).body as ReadEvent[]
  const path = (url: string) => url.replace(/.*\/1\.0\//, '')
  return {
    changed: [...new Set([...before.keys(), ...now.keys()])]
      .filter((one) => before.get(one) !== now.get(one) && (now.has(one) || !one.startsWith('interfaces/')))
      .sort(),
    affected: [...new Set(events.flatMap(({ affects }) => affects.map(({ url }) => path(url))))].sort(),
    events: events.length,
  }
}

/** The columns of resources that refer to servers, or to their interfaces, and which of them refer to a server. */
async function references(id: string) {
  const { rows } = await sql<{ table: string; column: string; target: 'servers' | 'interfaces' }>`
    select conrelid::regclass::text as table, attname as column, confrelid::regclass::text as target
    from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
    where contype = 'f' and confrelid in ('servers'::regclass, 'interfaces'::regclass)`.execute(db)
  const all = rows.filter(({ table }) => ALL_ROWS.some((row) => row.table === table))
  const used: string[] = []
  for (const { table, column, target } of all) {
    const ids = target === 'servers' ? sql`${id}` : sql`select id from interfaces where server_id = ${id}`
    const found = await sql`select from ${sql.table(table)} where ${sql.ref(column)} in (${ids}) limit 1`.execute(db)
    if (found.rows.length > 0) used.push(`${table}.${column}`)
  }
  return { all: all.map(({ table, column }) => `${table}.${column}`).sort(), used: used.sort() }
}
/** What changes no GET. Some of these are events all the same. */
const UNSEEN: readonly string[] = [
  ...['reboot', 'reset', 'send the invitation again', 'reset the password of the account'],
  ...['reset the secret of an API client', 'reset the secret of an application'],
]
/** An image keeps the server from which it was made. */
const KEPT = ['images.source_server_id']

t.test('each change affects the resources whose ETag it changes, and no others', async (t) => {
  const group = await send('POST', 'server_groups', { name: 'front' })
  const server = await send('POST', 'servers', { image: 'img-deb12', server_groups: [group.id] })
  const other = await send('POST', 'servers', { image: 'img-deb12' })
  const ip = await send('POST', 'cloud_ips')
  const client = await send('POST', 'api_clients', { name: 'one' })
  const map = await send('POST', 'config_maps', { name: 'one', data: {} })
  const application = await send('POST', 'applications', { name: 'one' })
  const snapshot = async () =>
    ((await send('POST', `servers/${server.id}/snapshot`)) as unknown as { snapshots: Body[] }).snapshots.at(-1)!
  const image = await snapshot()
  const second = await send('POST', 'server_groups', { name: 'second' })
  await settled()
  const invited = async () => {
    const { id } = await send('POST', 'collaborations', { email: 'mary@example.com', role: 'admin' })
    return id
  }
  let collaboration = ''
  let last = image
  const to = (destination: string) => send('POST', `cloud_ips/${ip.id}/map`, { destination })
  const unmap = () => send('POST', `cloud_ips/${ip.id}/unmap`)
  const members = (of: string, id: string) =>
    send('POST', `server_groups/${group.id}/${of}`, { servers: [{ server: id }] })
  const action = (verb: string) => ({ [verb]: () => send('POST', `servers/${other.id}/${verb}`) })
  const changes: Readonly<Record<string, () => Promise<unknown>>> = {
    'map a cloud IP to a server': () => to(server.interfaces[0]!.id),
    'rename its server': () => send('PUT', `servers/${server.id}`, { name: 'web' }),
    'name the cloud IP': () => send('PUT', `cloud_ips/${ip.id}`, { name: 'www' }),
    'give it port translators': () =>
      send('PUT', `cloud_ips/${ip.id}`, { port_translators: [{ protocol: 'tcp', incoming: 1, outgoing: 2 }] }),
    'unmap it': unmap,
    'map it to a group': () => to(group.id),
    'rename the group': () => send('PUT', `server_groups/${group.id}`, { name: 'back' }),
    'unmap it from the group': unmap,
    'map it to a database server': () => to(DATABASE_SERVER),
    'rename the database server': () => send('PUT', `database_servers/${DATABASE_SERVER}`, { name: 'db' }),
    'unmap it from the database server': unmap,
    'add a member': () => members('add_servers', other.id),
    'move a member': () =>
      send('POST', `server_groups/${group.id}/move_servers`, {
        destination: second.id,
        servers: [{ server: other.id }],
      }),
    'remove a member': () => members('remove_servers', server.id),
    'lock a server': () => send('PUT', `servers/${server.id}/lock_resource`),
    'change user-data and tags': () => send('PUT', `servers/${server.id}`, { user_data: 'YQ==', tags: { a: 'b' } }),
    'stop a server': () => send('POST', `servers/${other.id}/stop`),
    ...action('start'),
    ...action('reboot'),
    ...action('reset'),
    ...action('activate_console'),
    ...action('shutdown'),
    'create a server': () => send('POST', 'servers', { image: 'img-deb12', cloud_ip: true }),
    'rename an API client': () => send('PUT', `api_clients/${client.id}`, { name: 'two' }),
    'limit an API client': () => send('PUT', `api_clients/${client.id}`, { read_only: true }),
    'reset the secret of an API client': () => send('POST', `api_clients/${client.id}/reset_secret`),
    'revoke an API client': () => send('DELETE', `api_clients/${client.id}`),
    'change a config map': () => send('PUT', `config_maps/${map.id}`, { data: { a: 1 } }),
    'delete a config map': () => send('DELETE', `config_maps/${map.id}`),
    'reset the secret of an application': () => send('POST', `applications/${application.id}/reset_secret`),
    'rename an application': () => send('PUT', `applications/${application.id}`, { name: 'two' }),
    'delete an application': () => send('DELETE', `applications/${application.id}`),
    'invite a user': async () => (collaboration = await invited()),
    'send the invitation again': () => send('POST', `collaborations/${collaboration}/resend`),
    'accept it': () => api.callWith(users.mary, 'POST', `/1.0/user/collaborations/${collaboration}/accept`),
    'rename the collaborator': () => api.callWith(users.mary, 'PUT', '/1.0/user', { name: 'Mary S.' }),
    'change a preference of the collaborator': () =>
      api.callWith(users.mary, 'PUT', '/1.0/user', { messaging_pref: false }),
    'end it': () => send('DELETE', `collaborations/${collaboration}`),
    'rename the owner': () => send('PUT', `users/${ADA}`, { name: 'Ada L.' }, users.ada),
    'rename the account': () => send('PUT', 'account', { name: 'other' }),
    'move the account': () => send('PUT', `accounts/${ONE}`, { city: 'Leeds' }),
    'reset the password of the account': () => send('POST', `accounts/${ONE}/reset_ftp_password`),
    'give the account to another owner': () =>
      sql`update accounts set owner_id = 'usr-mry03' where id = ${ONE}`.execute(db),
    'describe an image': () => send('PUT', `images/${image.id}`, { description: 'golden' }),
    'lock an image': () => send('PUT', `images/${image.id}/lock_resource`),
    'unlock an image': () => send('PUT', `images/${image.id}/unlock_resource`),
    'delete an image': () => send('DELETE', `images/${image.id}`),
    'make another image': async () => (last = await snapshot()),
    'give servers an IPv6 address by apply': async () => {
      await to(server.interfaces[0]!.id)
      const pools = { ...aRegion().address_pools, ipv6: { '10.240.0.0/16': '2001:db8:100::/64' } }
      await apply(api.database, { ...region, address_pools: pools })
    },
    'delete a server': async () => {
      await send('PUT', `servers/${server.id}/unlock_resource`)
      const before = await references(server.id)
      t.strictSame(before.used, before.all, 'all that may refer to a server does so before')
      await send('DELETE', `servers/${server.id}`)
      await settled()
      t.strictSame((await references(server.id)).used, KEPT)
    },
    'delete the image of the deleted server': () => send('DELETE', `images/${last.id}`),
    'release a cloud IP': () => send('DELETE', `cloud_ips/${ip.id}`),
    'delete a group': () => send('DELETE', `server_groups/${group.id}`),
  }
  for (const [what, change] of Object.entries(changes)) {
    const { changed, affected, events } = await compare(change)
    if (UNSEEN.includes(what)) t.strictSame(changed, [], what)
    else {
      t.strictSame(affected, changed, what)
      t.ok(changed.length > 0 && events > 0, what)
    }
  }
  t.strictSame(
    CHANGES.filter((route) => !sent.has(route)),
    [],
    'every change was made',
  )
})
