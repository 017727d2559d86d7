/** Pages, filters and fields of lists, the streaming of long ones, and lists in members, with 2,000 of each kind. */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import type pg from 'pg'
import t from 'tap'
import { ACCOUNT_LIMITS } from '../../src/imds-api/model/account-limits.ts'
import { fillAccount, GROWING } from '../support/fixtures/many-rows.ts'
import { ADA, aRegion, CLIENT_OF, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const COUNT = 2_000
const MIB = 2 ** 20
/** Clients that do not read. */
const READERS = 4
const TYPE = { id: 'dbt-many1', name: 'Many', disk_size: 1, ram: 1 }
const api = await anApi(t, { region: aRegion({ database_server_types: [TYPE] }) })
const { pool } = api.database
await fillAccount(pool, ONE, COUNT)
const [client, other, ada] = [
  await api.token(CLIENT_OF[ONE]),
  await api.token(CLIENT_OF[TWO]),
  await api.userToken(ADA),
]
const origin = await api.server.listen({ host: '127.0.0.1', port: 0 })

/** Its bytes were sent by PostgreSQL. */
interface PoolClient {
  readonly connection: { readonly stream: Socket }
}
interface Listed {
  readonly status: number
  readonly text: string
  readonly link: string | undefined
  readonly headers: Readonly<Record<string, unknown>>
}
async function list(path: string, token = client, headers: object = {}): Promise<Listed> {
  const response = await api.server.inject({
    url: `/1.0/${path}`,
    headers: { authorization: `Bearer ${token}`, ...headers },
  })
  const link = response.headers.link as string | undefined
  return {
    status: response.statusCode,
    text: response.body,
    link: link && /^<(\?.*)>; rel="next"$/.exec(link)?.[1],
    headers: response.headers,
  }
}
const idsOf = ({ text }: Pick<Listed, 'text'>) => (JSON.parse(text) as { id: string }[]).map(({ id }) => id)

/** The pages of a list. `between` is called after each of them. */
async function pagesOf(
  path: string,
  query: string,
  between: () => Promise<unknown> = () => Promise.resolve(),
  most = Infinity,
) {
  const pages: Listed[] = []
  for (
    let next: string | undefined = `?${query}`;
    next !== undefined && pages.length < most;
    next = pages.at(-1)!.link
  ) {
    pages.push(await list(path + next))
    await between()
  }
  return pages
}

/** The queries of lists from now on, in `queries`, and all statements that load what they show, in `statements`. */
const queries: pg.QueryConfig[] = []
const statements: string[] = []
const watched = new WeakSet<pg.PoolClient>()
let loads = 0
pool.on('acquire', (connection) => {
  loads++
  if (watched.has(connection)) return
  watched.add(connection)
  const query = connection.query.bind(connection) as (...all: unknown[]) => unknown
  connection.query = ((text: string, values: unknown[], ...more: unknown[]) => {
    if (typeof text === 'string' && text.includes(' as position from ')) queries.push({ text, values })
    // the token and the domain are remembered for a second
    if (typeof text === 'string' && !/access_tokens|from "region"/.test(text)) statements.push(text)
    return query(text, values, ...more)
  }) as typeof connection.query
})

/** Requests a list on a connection of its own. */
function ask(path: string, version: '1.0' | '1.1'): Socket {
  const { hostname, port } = new URL(origin)
  const socket = connect(Number(port), hostname)
  socket.write(`GET /1.0/${path} HTTP/${version}\r\nHost: a\r\nAuthorization: Bearer ${client}\r\n\r\n`)
  return socket
}

t.test('a long list is chunked, or ends with the connection (HTTP/1.0), and its pages are the same', async (t) => {
  const response = await fetch(`${origin}/1.0/servers`, { headers: { authorization: `Bearer ${client}` } })
  t.equal(response.headers.get('transfer-encoding'), 'chunked')
  t.equal(response.headers.get('content-type'), 'application/json; charset=utf-8')
  t.equal(response.headers.get('link'), null)
  const whole = await response.text()
  t.equal(idsOf({ text: whole }).length, COUNT)
  const old = Buffer.concat(await ask('servers', '1.0').toArray()).toString()
  const end = old.indexOf('\r\n\r\n')
  t.ok(old.slice(end + 4) === whole)
  t.notMatch(old.slice(0, end), /transfer-encoding|content-length/i)
  const pages = await pagesOf('servers', 'limit=999')
  t.ok(`[${pages.map(({ text }) => text.slice(1, -1)).join(',')}]` === whole)
  t.ok(pages.every(({ headers, text }) => Number(headers['content-length']) === Buffer.byteLength(text)))
  const head = await api.server.inject({
    method: 'HEAD',
    url: '/1.0/servers',
    headers: { authorization: `Bearer ${client}` },
  })
  t.match(head, { statusCode: 200, body: '' })
})

t.test('each page is full but the last, in an order of equal names or times too', async (t) => {
  for (const [path, limit] of [
    ['cloud_ips', 1000],
    ['images', 997],
  ] as const) {
    const pages = (await pagesOf(path, `limit=${limit}`)).map(idsOf)
    t.same([...new Set(pages.slice(0, -1).map(({ length }) => length))], [limit], path)
    t.same(pages.flat(), idsOf(await list(path)), path)
    t.equal(new Set(pages.flat()).size, pages.flat().length, path)
    t.ok(pages.flat().length >= COUNT, path)
  }
})

t.test('a walk shows each cloud IP that exists all the time once, while others come and go', async (t) => {
  const before = idsOf(await list('cloud_ips'))
  let n = 0
  const deleted: string[] = []
  const pages = await pagesOf('cloud_ips', 'limit=700', async () => {
    const last = before[700 * ++n - 1]
    if (last === undefined) return
    deleted.push(last, before[700 * n + 5]!, before[3 * n]!) // the row of the cursor, one ahead and one behind
    await pool.query('delete from cloud_ips where id = any($1)', [deleted])
    await pool.query(
      `insert into cloud_ips (id, account_id, name, public_ipv4, public_ipv6, status, created_at)
       select 'cip-new' || $1::text || i, $2, '', '10.7.' || $1::text || '.' || i, '2001:db8:7::' || $1::text || ':' || i, 'unmapped',
         timestamptz '2025-01-01' + i * interval '2 years' from generate_series(0, 1) as i`,
      [n, ONE],
    )
  })
  const seen = pages.flatMap(idsOf)
  t.equal(new Set(seen).size, seen.length)
  t.same(
    seen.filter((id) => before.includes(id) && !deleted.includes(id)),
    before.filter((id) => !deleted.includes(id)),
  )
})

t.test('filters narrow a list, and its pages keep them', async (t) => {
  const counts: readonly (readonly [string, number])[] = [
    ['servers?name=Server%2000042', 1],
    ['servers?name=Server%2000042&status=inactive', 0],
    ['servers?status=inactive', COUNT / 10],
    ['servers?tag.Role=front', COUNT / 10],
    ['servers?tag.Role=front&tag.None=x', 0],
    ['servers?tag.Role=front&server_group=grp-00010', 1],
    ['servers?server_group=grp-00000&tag.Role=back', 0],
    ['cloud_ips?status=unmapped&name=none', 0],
    ['images?name=Image%207', 3],
    ['collaborations?status=accepted', COUNT / 1000],
    ['servers?tags[Role]=front', COUNT / 10],
    ['servers?tags%5BRole%5D=front&tag.None=x', 0],
    [`zones?nested=true&account_id=${ONE}`, 2],
  ]
  for (const [path, count] of counts) t.equal(idsOf(await list(path)).length, count, path)
  const pages = await pagesOf('servers', 'tag.Role=front&limit=60')
  t.same(
    pages.map((page) => idsOf(page).length),
    [60, 60, 60, 20],
  )
  await pool.query(`update servers set tags = '{"Role": "front", "Odd": "\\u0000"}' where id = 'srv-00001'`)
  t.equal(idsOf(await list('servers?tag.Role=front')).length, COUNT / 10, 'a tag that PostgreSQL cannot read')
})

t.test(
  'a parameter that a list does not have is ignored, and a filter with a bad value is refused (400)',
  async (t) => {
    for (const query of ['tags=x', 'tag=x', 'image=img-6ilgo', 'offset=0', 'nested=false', 'fields=id', 'after[]=x'])
      t.match(await list(`servers?limit=1&${query}`), { status: 200, text: /^\[{"id":"srv-/ }, query)
    for (const path of [
      'zones?status=x',
      'zones?tag.Role=x',
      'events?limit=20&offset=0&nested=false',
      'zones?x[y]=1&=',
    ])
      t.match(await list(path), { status: 200 }, path)
    for (const path of ['servers?status=mapped', 'cloud_ips?status=active', 'servers?server_group=srv-6ilgo'])
      t.match(await list(path), { status: 400, text: /"error_name":"bad_request"/ }, path)
  },
)

t.test('an index finds the servers of an account that have ten tags, however many servers others have', async (t) => {
  const tags = Object.fromEntries(Array.from({ length: 10 }, (_, i) => [`Key ${i}`, 'x'.repeat(255)]))
  await pool.query(`update servers set tags = $1 where id in ('srv-00002', 'srv-00003')`, [JSON.stringify(tags)])
  await pool.query('analyze servers')
  queries.length = 0
  const query = new URLSearchParams(Object.entries(tags).map(([key, value]) => [`tag.${key}`, value]))
  t.same(idsOf(await list(`servers?${query.toString()}`)), ['srv-00002', 'srv-00003'])
  t.same(idsOf(await list(`servers?${query.toString()}`, other)), [])
  const { text, values } = queries[0]!
  const { rows } = await pool.query<Record<'QUERY PLAN', string>>(`explain ${text}`, values)
  t.match(rows.map((row) => row['QUERY PLAN']).join('\n'), /Bitmap Index Scan on servers_found_by/)
})

t.test('a list in a member has at most 1,000 resources, and if there are more the URL of all of them', async (t) => {
  const read = async (path: string) => JSON.parse((await list(path)).text) as Readonly<Record<string, unknown[]>>
  const pathOf = (url: unknown) => String(url).slice(String(url).indexOf('/1.0/') + '/1.0/'.length)
  const add = (from: number, count: number) =>
    pool.query(`insert into server_group_members
      select 'grp-00000', 'srv-0' || i from generate_series(${from}, ${COUNT - 1}) as i where i % 10 > 0 limit ${count}`)
  await add(1000, 1000 - COUNT / 10)
  const whole = await read('server_groups/grp-00000')
  t.equal(whole['servers']!.length, 1000)
  t.notOk('servers_url' in whole)
  await add(COUNT - 1, 1)
  const { servers, servers_url } = await read('server_groups/grp-00000')
  t.same(servers, whole['servers'], 'the first by id')
  t.equal(pathOf(servers_url), `servers?server_group=grp-00000&account_id=${ONE}`)
  t.equal(idsOf(await list(pathOf(servers_url))).length, 1001)
  const { text } = await list('server_groups?limit=1')
  t.match(JSON.parse(text), [{ id: 'grp-00000', servers_url }])
  const account = await read('account')
  t.equal(account['servers_used'], COUNT)
  for (const name of ['clients', 'servers', 'database_servers', 'cloud_ips', 'server_groups', 'images']) {
    t.equal(account[name]!.length, 1000, name)
    t.equal(pathOf(account[`${name}_url`]), `${name === 'clients' ? 'api_clients' : name}?account_id=${ONE}`)
  }
  t.notOk('users_url' in account)
  await pool.query(`delete from server_group_members where server_group_id = 'grp-00000' and server_id !~ '0$'`)
})

t.test('a page ends with its bytes, of which PostgreSQL sends no more, and a member is short', async (t) => {
  const [groups, members, sources] = [30, 1000, 100]
  const snapshots = ACCOUNT_LIMITS.images_limit.maximum!
  const clients = (pool as unknown as { readonly _clients: readonly PoolClient[] })._clients
  const bytesRead = () => clients.reduce((sum, { connection }) => sum + connection.stream.bytesRead, 0)
  const residentMib = () => process.resourceUsage().maxRSS / 1024
  await pool.query(`begin; set local session_replication_role = replica; -- without events
    update servers set name = repeat('€', 255)
      where id in (select id from servers where account_id = '${ONE}' order by created_at, id limit ${members});
    insert into server_groups (id, account_id, name, description, is_default, created_at)
      select 'grp-long' || i, '${ONE}', repeat('€', 255), repeat('x', 4096), false, timestamptz '2020-01-01'
      from generate_series(1, ${groups}) as i;
    insert into server_group_members (server_group_id, server_id)
      select 'grp-long' || i, id from generate_series(1, ${groups}) as i, servers where name like '€%';
    insert into images (id, account_id, name, username, status, locked, description, source, source_trigger,
        source_type, arch, official, public, compatibility_mode, disk_size, virtual_size, source_server_id)
      select 'img-snap' || i, '${ONE}', repeat('€', 255), '', 'available', false, repeat('€', 255), '', 'manual',
        'snapshot', 'x86_64', false, false, false, 1, 1, source.id
      from generate_series(0, ${snapshots - 1}) as i join (
        select id, row_number() over (order by created_at, id) - 1 as number from servers
        where account_id = '${ONE}') as source on source.number = i % ${sources};
    commit; analyze server_group_members, images`)
  for (const [path, least] of [
    ['servers?limit=100', 2],
    ['server_groups?limit=100', 2],
    ['server_groups/grp-long1', 0],
    ['account', 0],
  ] as const) {
    await list('zones') // its connection is there
    const [readBefore, residentBefore] = [bytesRead(), residentMib()]
    const page = await list(path)
    const [read, resident] = [bytesRead() - readBefore, residentMib() - residentBefore]
    const numbers = `${path}: ${read} bytes read, ${page.text.length} sent, ${resident.toFixed(1)} MiB more resident`
    t.equal(page.status, 200, numbers)
    t.ok(read < (least === 0 ? 3 : 4) * MIB, numbers)
    t.ok(resident < 64, numbers)
    if (least === 0) continue
    const count = idsOf(page).length
    t.ok(count >= least && count < 100, `${path}: ${count} resources`)
    t.match(page.link, 'limit=100')
  }
  const ids = (await pagesOf('server_groups', 'limit=100', () => Promise.resolve(), 4)).flatMap(idsOf)
  const first = Array.from({ length: groups }, (_, i) => `grp-long${i + 1}`).sort()
  t.ok(ids.length > 6)
  t.same(ids, first.slice(0, ids.length), 'none is missing')
  await pool.query(`begin; set local session_replication_role = replica;
    delete from server_group_members where server_group_id like 'grp-long%';
    delete from server_groups where id like 'grp-long%';
    delete from images where id like 'img-snap%'; commit`)
})

t.test('the name of an account with 2,000 servers changes by one event, and other changes are made', async (t) => {
  const send = (path: string, body: object) => api.call('PUT', `/1.0/${path}`, body)
  await pool.query('truncate events')
  const [renamed, ...others] = await Promise.all([
    send('account', { name: 'Many' }),
    ...[1, 2, 3, 4].map((i) => send(`server_groups/grp-0000${i}`, { name: `renamed ${i}` })),
  ])
  t.match(renamed, { status: 200, body: { name: 'Many', servers_used: COUNT } })
  t.strictSame(
    others.map(({ status }) => status),
    [202, 202, 202, 202],
  )
  const events = async () => {
    const { rows } = await pool.query<{ type: string; count: number }>(
      'select type, count(*)::int from events group by type order by type',
    )
    return rows.map(({ type, count }) => `${type}: ${count}`)
  }
  t.strictSame(await events(), ['account: 1', 'server_group: 4'])
})

t.test('1,000 events of a transaction are written by an index, also into a table that was empty', async (t) => {
  await pool.query('truncate events; analyze events')
  const connection = await api.database.connect()
  t.teardown(() => connection.end())
  await connection.query('begin')
  await connection.query(`insert into server_group_members
    select 'grp-00000', 'srv-' || lpad(i::text, 5, '0') from generate_series(700, 1999) as i where i % 10 > 0 limit 1000`)
  await connection.query('set constraints all immediate')
  const { rows } = await connection.query<{ read: number; inserted: number }>(
    `select seq_tup_read::int as read, n_tup_ins::int as inserted from pg_stat_xact_user_tables where relname = 'events'`,
  )
  await connection.query('rollback')
  t.equal(rows[0]!.inserted, 1000)
  t.ok(rows[0]!.read < 10_000, `${rows[0]!.read} rows of events read one after another`)
})

t.test("a cursor gives no access to another account's resources", async (t) => {
  const { link } = await list('servers?limit=100')
  const cursor = new URLSearchParams(link).get('after')!
  t.match(await list(`servers?after=${cursor}`, other), { status: 200, text: '[]' })
  t.match(await list(`cloud_ips?after=${cursor}`), { status: 400 })
  t.match(await list(`servers?after=${cursor}&account_id=${ONE}`, other), { status: 404 })
})

t.test('a Link is relative, keeps the account, and does not show the Host of the request', async (t) => {
  const { link, status } = await list(`servers?account_id=${ONE}&limit=2`, ada, { host: 'evil.example.com' })
  t.equal(status, 200)
  t.match(link, new RegExp(`^\\?account_id=${ONE}&limit=2&after=[\\w-]+$`))
  t.match(await list(`servers${link!}`, ada), { status: 200, link: /^\?account_id=/ })
})

t.test('a page of any list: few queries, no long columns, no table that grows is read from end to end', async (t) => {
  const { paths } = (await api.server.inject('/1.0/openapi.json')).json<{
    paths: Record<string, { get?: { parameters: { name: string }[] } }>
  }>()
  const lists = Object.keys(paths).filter(
    (path) => path !== '/1.0/events' && paths[path]!.get?.parameters.some(({ name }) => name === 'limit') === true,
  )
  t.equal(lists.length, 15)
  const connection = await api.database.connect()
  t.teardown(() => connection.end())
  await connection.query('set random_page_cost = 1.1') // as docs/performance.md has it
  for (const path of lists) {
    const token = path.includes('/user/') ? ada : path.includes('/accounts') ? other : client
    const countOf = async (limit: number) => {
      statements.length = 0
      t.equal((await list(`${path.slice('/1.0/'.length)}?limit=${limit}`, token)).status, 200, path)
      return statements.length
    }
    t.equal(await countOf(10), await countOf(2), `${path}: no query for each resource`)
    t.notMatch(statements.join(), /"(user_data|metadata_options|password_hash)"/, path)
    queries.length = 0
    const first = await list(`${path.slice('/1.0/'.length)}?limit=100`, token)
    if (first.link !== undefined) await list(path.slice('/1.0/'.length) + first.link, token)
    t.ok(queries.length > 0, path)
    for (const { text, values } of queries.splice(0)) {
      t.notMatch(text, /"(servers|images|config_maps)"\.\*|"data"/, path)
      if (path === '/1.0/accounts') continue // one account has all rows here: plans.test.ts has many accounts
      const { rows } = await connection.query<Record<'QUERY PLAN', string>>(`explain ${text}`, values)
      const plan = rows.map((row) => row['QUERY PLAN']).join('\n')
      const scanned = [...plan.matchAll(/Seq Scan on (\w+)/g)].map(([, table]) => table!)
      t.same(
        scanned.filter((table) => GROWING.includes(table)),
        [],
        path,
      )
    }
  }
})

/** Makes the list of servers longer than what sockets buffer. */
const lengthen = () =>
  pool.query(
    `update servers set tags = (select jsonb_object_agg('Key ' || i, repeat('x', 255)) from generate_series(1, 40) as i)`,
  )

t.test('clients that do not read a list hold no connection to the database, and no turn', async (t) => {
  await lengthen()
  const sockets = Array.from({ length: READERS }, () => ask('servers', '1.1').pause())
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
  })
  loads = 0
  let [last, same] = [0, 0]
  await until(() => {
    same = loads === last && pool.idleCount === pool.totalCount ? same + 1 : 0
    last = loads
    return loads > 10 * READERS && same > 20
  }, 'all of them to wait for their clients')
  t.ok(loads < 100 * READERS, 'not the whole lists') // the buffers of the system have room for some of each
  t.equal(pool.waitingCount, 0)
  t.equal((await list('servers/srv-00001')).status, 200)
  const [first] = sockets
  const received = (await first!.resume().take(1).toArray()) as Buffer[]
  t.match(received[0]!.toString('latin1'), /^HTTP\/1.1 200/)
})

t.test('a list that cannot be completed ends its connection with a reset, in HTTP/1.0 too', async (t) => {
  for (const version of ['1.1', '1.0'] as const) {
    const socket = ask('servers', version)
    await once(socket, 'readable')
    await pool.query('alter table zones rename to away')
    try {
      await t.rejects(socket.toArray(), { code: 'ECONNRESET' }, version)
    } finally {
      await pool.query('alter table away rename to zones')
    }
  }
})

t.test('a list that is being read ends with a reset once its access token is revoked', async (t) => {
  const socket = ask('servers', '1.1')
  await once(socket, 'readable')
  await pool.query('delete from access_tokens')
  await until(async () => (await list('servers/srv-00001')).status === 401, 'the token to be refused')
  await t.rejects(socket.toArray(), { code: 'ECONNRESET' })
})
