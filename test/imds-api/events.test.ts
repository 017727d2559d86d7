/** Events: what is one, who reads them, the order of concurrent changes, what is kept, and who waits for them. */
import { sql } from 'kysely'
import t from 'tap'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import { MAX_KEPT_EVENTS, purgeEvents } from '../../src/imds-api/changes/events.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { CLIENT_OF, ONE, secretOf, TWO } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { anApi, countOfLockWaits, openUrl, openTransaction, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import type { ReadEvent } from '../support/programs/event-reader.ts'

const api = await anApi(t, { ownServer: true })
const { db } = api.database
const token = await api.token(CLIENT_OF[ONE])

async function read(query = '', account: typeof ONE | typeof TWO = ONE) {
  const { status, headers, body } = await api.call('GET', `/1.0/events${query}`, undefined, account)
  const next = /after=([^&>]+)/.exec(String(headers['link']))?.[1]
  return { status, next: next!, events: body as readonly ReadEvent[] }
}
/** What the events of a change say, without their ids and times. */
async function eventsOf(change: () => Promise<unknown>): Promise<readonly string[]> {
  const { next } = await read('?after=now')
  await change()
  const { events } = await read(`?after=${next}`)
  return events.map(({ resource, action, message, fields }) => {
    const by = / by ([^:]+)/.exec(message)![1]!
    return [resource.resource_type, action, by, ...fields].join(' ')
  })
}
async function idOf(answer: Promise<{ readonly status: number; readonly body: unknown }>): Promise<string> {
  const { status, body } = await answer
  if (status >= 300) throw new Error(JSON.stringify(body))
  return (body as { id: string }).id
}
const CLIENT = CLIENT_OF[ONE]

t.test('each change of a resource is one event, which names who made it and the changed fields', async (t) => {
  let [server, group, ip] = ['', '', '']
  t.strictSame(
    await eventsOf(async () => {
      group = await idOf(api.call('POST', '/1.0/server_groups', { name: 'front' }))
      server = await idOf(api.call('POST', '/1.0/servers', { image: 'img-deb12', server_groups: [group] }))
      ip = await idOf(api.call('POST', '/1.0/cloud_ips'))
      await idOf(api.call('POST', `/1.0/cloud_ips/${ip}/map`, { destination: group }))
    }),
    [
      `server_group create ${CLIENT}`,
      `server create ${CLIENT}`,
      `cloud_ip create ${CLIENT}`,
      `cloud_ip update ${CLIENT} server_group status`,
    ],
  )
  t.strictSame(
    await eventsOf(async () => {
      await idOf(api.call('PUT', `/1.0/servers/${server}`, { name: 'web', user_data: 'aGVsbG8=', server_groups: [] }))
      await idOf(api.call('PUT', `/1.0/servers/${server}`, { name: 'web' }))
      await idOf(api.call('POST', `/1.0/cloud_ips/${ip}/unmap`))
      await idOf(api.call('DELETE', `/1.0/cloud_ips/${ip}`))
      await idOf(api.call('DELETE', `/1.0/server_groups/${group}`))
    }),
    [
      `server update ${CLIENT} name server_groups user_data`,
      `cloud_ip update ${CLIENT} server_group status`,
      `cloud_ip delete ${CLIENT}`,
      `server_group delete ${CLIENT}`,
    ],
    'several changes of a server in one request are one event, and a request that changes nothing has none',
  )
  await api.startPublisher()
  await api.drained()
  t.strictSame(
    await eventsOf(async () => {
      await idOf(api.call('DELETE', `/1.0/servers/${server}`))
      await api.drained()
    }),
    [`server update ${CLIENT} status`, 'server delete the region'],
  )
  const user = await api.userToken('usr-ada01')
  t.strictSame(await eventsOf(() => api.callWith(user, 'PUT', '/1.0/user', { name: 'Ada' })), [
    'user update usr-ada01 name',
  ])
  const operator = await openUrl(api.url, true)
  t.teardown(() => operator.close())
  t.strictSame(
    await eventsOf(() =>
      inTransaction(operator.db, (tx) =>
        sql`update accounts set ram_limit = ram_limit + 1 where id = ${ONE}`.execute(tx),
      ),
    ),
    ['account update an operator ram_limit'],
  )
})

t.test('an event names the request and the Idempotency-Key of its change, if there were such', async (t) => {
  const { next } = await read('?after=now')
  const send = (id: string, key: object) =>
    api.server.inject({
      method: 'POST',
      url: '/1.0/server_groups',
      headers: { authorization: `Bearer ${token}`, 'x-request-id': id, ...key },
      payload: { name: 'asked' },
    })
  await send('of-a-client', {})
  const { headers } = await send('made up', { 'idempotency-key': '"a key"' })
  const requestId = String(headers['x-request-id'])
  t.not(requestId, 'made up')
  await send('repeated', { 'idempotency-key': '"a key"' })
  const user = await api.userToken('usr-ada01')
  await api.callWith(user, 'PUT', '/1.0/user', { name: 'Ada L.' })
  await sql`update accounts set ram_limit = ram_limit + 1 where id = ${ONE}`.execute(db)
  const { events } = await read(`?after=${next}`)
  const resource_type = (type: string) => ({ resource_type: type })
  t.match(events, [
    { resource: resource_type('server_group'), request_id: 'of-a-client', idempotency_key: null },
    { resource: resource_type('server_group'), request_id: requestId, idempotency_key: 'a key' },
    { resource: resource_type('user'), request_id: /^[0-9a-f-]{36}$/, idempotency_key: null },
    { resource: resource_type('account'), request_id: null, idempotency_key: null },
  ])
})

t.test('a reset of a secret names the field, and no event has a value', async (t) => {
  const events = await eventsOf(async () => {
    const id = await idOf(api.call('POST', '/1.0/api_clients', { name: 'a-name-of-a-client' }))
    await idOf(api.call('POST', `/1.0/api_clients/${id}/reset_secret`))
    await idOf(api.call('DELETE', `/1.0/api_clients/${id}`))
  })
  t.strictSame(events, [
    `api_client create ${CLIENT}`,
    `api_client update ${CLIENT} secret`,
    `api_client delete ${CLIENT}`,
  ])
  t.notMatch(JSON.stringify((await read('?limit=1000')).events), /a-name-of-a-client/)
})

t.test('the rows of every table with resources have events: new, changed and deleted ones', async (t) => {
  const { rows: found } = await sql<{ table: string }>`
    select table_name as table from information_schema.columns
    where table_schema = current_schema() and column_name = 'account_id'`.execute(db)
  const { rows: withTriggers } = await sql<{ table: string }>`
    select distinct tgrelid::regclass::text as table from pg_trigger join pg_proc on pg_proc.oid = tgfoid
    where proname like 'event_of_%'`.execute(db)
  const tables = withTriggers.map(({ table }) => table)
  const known = ['access_tokens', 'event_changes', 'event_feeds', 'events', 'outbox', ...tables]
  t.strictSame(
    found.map(({ table }) => table).filter((table) => !known.includes(table)),
    [],
  )
  const ofAccounts = ALL_ROWS.flatMap(({ table, isOfRegion }) => (table && isOfRegion !== true ? [table] : []))
  t.strictSame(tables.sort(), [...ofAccounts, 'server_group_members'].sort())
  const image = await db.selectFrom('images').selectAll().executeTakeFirstOrThrow()
  const change = (set: string) => sql`update images set ${sql.raw(set)} where id = 'img-own01'`.execute(db)
  t.strictSame(
    await eventsOf(async () => {
      await db
        .insertInto('images')
        .values({ ...image, id: 'img-own01', account_id: ONE, handle: null })
        .execute()
      await change(`account_id = '${TWO}'`)
      await change(`account_id = '${ONE}', name = 'moved'`)
      await change("status = 'deleted'")
      await change("name = 'gone'")
      await sql`delete from images where id = 'img-own01'`.execute(db)
    }),
    ['create', 'delete', 'create', 'delete'].map((action) => `image ${action} the region`),
    'a resource that another account gets is deleted for the first one',
  )
  t.strictSame(
    await eventsOf(async () => {
      const id = await idOf(api.call('POST', '/1.0/config_maps', { name: 'a', data: { a: 1 } }))
      await idOf(api.call('PUT', `/1.0/config_maps/${id}`, { data: { a: 2 } }))
      await idOf(api.call('DELETE', `/1.0/config_maps/${id}`))
      const invited = await idOf(api.call('POST', '/1.0/collaborations', { email: 'new@example.com', role: 'admin' }))
      await idOf(api.call('DELETE', `/1.0/collaborations/${invited}`))
      const application = await idOf(api.call('POST', '/1.0/applications', { name: 'a' }))
      await idOf(api.call('DELETE', `/1.0/applications/${application}`))
      await idOf(api.call('PUT', '/1.0/account', { city: 'Leeds' }))
    }),
    [
      'config_map create',
      'config_map update data',
      'config_map delete',
      'collaboration create',
      'collaboration update finished_at status',
      'application create',
      'application delete',
      'account update city',
    ].map((line) => line.replace(/^(\w+ \w+)/, `$1 ${CLIENT}`)),
  )
})

t.test('numbers follow the order of the commits, whichever transaction began first, and have no gaps', async (t) => {
  const { next } = await read('?after=now')
  const begun = []
  for (let i = 0; i < 8; i++) {
    const tx = await openTransaction(db)
    await sql`insert into config_maps (id, account_id, name, data, bytes)
      values (${`cfg-t000${i}`}, ${ONE}, '', '{}', 2)`.execute(tx)
    begun.push(tx)
  }
  const order = [5, 0, 7, 2, 1, 6, 4, 3]
  const seen: string[] = []
  let cursor = next
  for (const i of order) {
    if (i === 6) await begun[i]!.rollback().execute()
    else await begun[i]!.commit().execute()
    const page = await read(`?after=${cursor}`)
    seen.push(...page.events.map(({ resource }) => resource.id))
    cursor = page.next
  }
  const committed = order.filter((i) => i !== 6)
  t.strictSame(
    seen,
    committed.map((i) => `cfg-t000${i}`),
  )
  const numbers = (await read(`?after=${next}`)).events.map(({ id }) => Number(id.split('-')[1]))
  t.strictSame(
    numbers,
    numbers.map((_one, i) => numbers[0]! + i),
  )
  const first = await openTransaction(db)
  await sql`update config_maps set name = 'x' where id = 'cfg-t0000'`.execute(first)
  await sql`set constraints all immediate`.execute(first) // as at its commit, which has not ended
  const second = sql`update config_maps set name = 'y' where id = 'cfg-t0001'`.execute(db)
  await until(async () => (await countOfLockWaits(api.database.pool)) > 0, 'the lock')
  await first.commit().execute()
  await second
  const last = (await read(`?after=${cursor}`)).events.map(({ resource }) => resource.id)
  t.strictSame(last, ['cfg-t0000', 'cfg-t0001'], 'a commit waits for one that has taken its number')
})

/** A new API client, and a token of it. */
async function aClient(values: object): Promise<{ readonly id: string; readonly bearer: string }> {
  const id = await idOf(api.call('POST', '/1.0/api_clients', { name: 'other', ...values }))
  await setRow(db, 'api_clients', id, { secret_sha256: digest(secretOf(id)) })
  return { id, bearer: await api.token(id) }
}

t.test('an event is on disk before it can be read, also of a commit that does not wait for that', async (t) => {
  const tx = await openTransaction(db)
  await sql`set local synchronous_commit = off`.execute(tx)
  await sql`update config_maps set name = 'z' where id = 'cfg-t0000'`.execute(tx)
  await sql`set constraints all immediate`.execute(tx) // as at its commit
  t.strictSame((await sql`show synchronous_commit`.execute(tx)).rows, [{ synchronous_commit: 'on' }])
  await tx.rollback().execute()
})

t.test('an account reads its own events only, with a token that may read its resources', async (t) => {
  const [own, other] = [await read('?limit=1000'), await read('?limit=1000', TWO)]
  t.match(JSON.stringify(own.events), /cfg-t0000/)
  t.notMatch(JSON.stringify(other.events), /cfg-t0000/)
  t.match(await api.callWith(token, 'GET', `/1.0/events?account_id=${TWO}`), { status: 404 })
  const { bearer } = await aClient({ read_only: true })
  t.match(await api.callWith(bearer, 'GET', '/1.0/events?limit=1'), { status: 200 })
  const storage = await aClient({ permissions_group: 'storage' })
  t.match(await api.callWith(storage.bearer, 'GET', '/1.0/events'), { status: 403 })
})

t.test('an event has the form of this cloud', async (t) => {
  const user = await api.userToken('usr-ada01')
  const { next } = await read('?after=now')
  const server = await idOf(api.call('POST', '/1.0/servers', { image: 'img-deb12', name: 'shown' }))
  await api.callWith(user, 'PUT', `/1.0/servers/${server}?account_id=${ONE}`, { name: 'other', user_data: 'YQ==' })
  const { events } = await read(`?after=${next}`)
  const url = (path: string) => `${BASE_URL}/1.0/${path}`
  const [created] = events
  // the server may become active before or after its update
  const updated = events.find(({ message }) => message.includes('usr-ada01'))
  t.match(created!.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/)
  const resource = { id: server, resource_type: 'server', url: url(`servers/${server}`) }
  t.strictSame(
    { ...created, created_at: '', affects: created!.affects[0], request_id: '' },
    {
      ...{ id: created!.id, resource_type: 'event', url: url(`events/${created!.id}`), action: 'create' },
      message: `Server ${server} was created by ${CLIENT}`,
      short_message: 'Server created',
      ...{ created_at: '', affects: resource, resource },
      client: { id: CLIENT, resource_type: 'api_client', url: url(`api_clients/${CLIENT}`) },
      ...{ user: null, fields: [], request_id: '', idempotency_key: null },
    },
  )
  t.match(updated, {
    message: `Server ${server} was updated by usr-ada01: name, user_data`,
    ...{ client: null, user: { id: 'usr-ada01', resource_type: 'user', url: url('users/usr-ada01') } },
  })
  t.match(await api.call('GET', `/1.0/events/${created!.id}`), { status: 200, body: { id: created!.id } })
  for (const id of [next.replace(/\d+$/, '999999'), next.replace(/^./, (one) => (one === '0' ? '1' : '0')), 'x'])
    t.match(await api.call('GET', `/1.0/events/${id}`), { status: 404 }, id)
  t.match(await api.call('GET', `/1.0/events/${created!.id}`, undefined, TWO), { status: 404 })

  const nested = (await read(`?after=${next}&nested=true`)).events.find(({ message }) => message.includes('usr-ada01'))
  const shown = { name: 'other', locked: false, hostname: server }
  t.match(nested, {
    resource: shown,
    affects: [shown, { id: ONE, name: 'Analytical Engines' }],
    user: { name: 'Ada L.' },
  })
  const group = await idOf(api.call('POST', '/1.0/server_groups', { name: 'gone' }))
  await idOf(api.call('DELETE', `/1.0/server_groups/${group}`))
  const [gone] = (await read(`?limit=1&nested=true`)).events
  t.strictSame(gone!.resource, { id: group, resource_type: 'server_group', url: url(`server_groups/${group}`) })
})

t.test('a list has the newest events first, by limit and offset, and its Link continues', async (t) => {
  const groups: string[] = []
  for (let i = 0; i < 5; i++) groups.push(await idOf(api.call('POST', '/1.0/server_groups', { name: 'listed' })))
  const listed = async (query: string) => (await read(query)).events.map(({ resource }) => resource.id)
  t.strictSame(await listed('?limit=5'), groups.toReversed())
  t.strictSame(await listed('?limit=5&offset=0&nested=false'), groups.toReversed(), 'as fog asks')
  t.strictSame(await listed('?limit=2&offset=3'), [groups[1], groups[0]])
  t.strictSame(await listed(`?resource_id=${groups[2]!}`), [groups[2]])
  const link = async (query: string) => (await api.call('GET', `/1.0/events${query}`)).headers['link']
  t.equal(await link('?limit=2&offset=3'), '<?limit=2&offset=5>; rel="next"')
  t.equal(await link(`?resource_id=${groups[2]!}`), undefined, 'there are no more')
  const { events } = await read('?limit=1000')
  const some: string[] = []
  for (let query: string | undefined = '?limit=7'; query !== undefined;) {
    some.push(...(await listed(query)))
    query = /<(.*)>/.exec(String(await link(query)))?.[1]
  }
  t.strictSame(
    some,
    events.map(({ resource }) => resource.id),
  )
})

t.test(
  'a list after a cursor has the following events, and its Link continues, also once new ones follow',
  async (t) => {
    const { next: begin } = await read('?after=now')
    const groups: string[] = []
    for (let i = 0; i < 3; i++) {
      groups.push(await idOf(api.call('POST', '/1.0/server_groups', { name: 'filtered' })))
      await idOf(api.call('POST', '/1.0/config_maps', { name: 'between', data: {} }))
    }
    await idOf(api.call('PUT', `/1.0/server_groups/${groups[0]!}`, { name: 'again' }))
    const first = await read(`?limit=2&after=${begin}`)
    t.equal(first.next, first.events[1]!.id)
    const second = await read(`?limit=2&after=${first.next}`)
    const all = (await read(`?after=${begin}`)).events
    t.strictSame([...first.events, ...second.events], all.slice(0, 4))
    const ofResource = all.filter(({ resource }) => resource.id === groups[0])
    t.equal(ofResource.length, 2)
    t.strictSame((await read(`?after=${begin}&resource_id=${groups[0]!}`)).events, ofResource)
    t.strictSame((await read(`?after=${begin}&resource_id=grp-none1`)).events, [])
    const { next } = await read('?after=now')
    t.match(
      await read(`?after=${begin}&resource_id=${groups[1]!}`),
      { next, events: { length: 1 } },
      'one that has all is up to date',
    )
    await idOf(api.call('POST', '/1.0/server_groups', { name: 'later' }))
    t.match(await read(`?after=${next}`), {
      events: [{ resource: { resource_type: 'server_group' }, action: 'create' }],
    })
    const link = (await api.call('GET', `/1.0/events?after=${next}&limit=2`)).headers['link']
    t.match(link, /^<\?after=\S+&limit=2>; rel="next"$/)
  },
)

t.test('a page ends earlier if its events affect many resources', async (t) => {
  const { next } = await read('?after=now')
  await sql`
    insert into api_clients select (jsonb_populate_record(one, jsonb_build_object('id', 'cli-m' || number))).*
    from api_clients as one, generate_series(1, 1500) as number where id = ${CLIENT}`.execute(db)
  for (let i = 0; i < 30; i++) await idOf(api.call('PUT', '/1.0/account', { name: `many ${i}` }))
  const cursor = `?after=${next}&limit=1000&resource_id=${ONE}`
  const pages = [await read(cursor)]
  t.equal(pages[0]!.events[0]!.affects.length, 1_000)
  t.ok(pages[0]!.events.length < 5, `${pages[0]!.events.length} events`)
  while (pages.at(-1)!.events.length > 0) pages.push(await read(cursor.replace(next, pages.at(-1)!.next)))
  t.equal(pages.flatMap(({ events }) => events).length, 30)
  await sql`delete from api_clients where id like 'cli-m%'`.execute(db)
})

t.test('wrong parameters are refused, and unknown ones are ignored', async (t) => {
  for (const [query, error] of [
    ['resource_id=', /^resource_id must be the id of a resource/],
    ['resource_id=a%20b', /^resource_id must be the id of a resource/],
    ['resource_id=xyz-12345', /^resource_id must be the id of a resource/],
    ['nested=maybe', /^nested must be one of true, false/],
    ['offset=-1', /^offset must be an integer from 0 to 100000/],
    ['offset=100001', /^offset must be /],
  ] as const)
    t.match(await api.call('GET', `/1.0/events?${query}`), { status: 400, body: { errors: [error] } }, query)
  t.match(await api.call('GET', '/1.0/events?type=nothing&limit=1'), { status: 200, body: { length: 1 } })
})

t.test('a cursor that was not given is refused (400), and one after which events are gone (410)', async (t) => {
  const { next } = await read('?after=now')
  const [epoch, number] = next.split('-')
  for (const bad of ['x', `${epoch!}-${Number(number) + 1}`, `${epoch!}-01`, `${epoch!}--1`, ''])
    t.match(await api.call('GET', `/1.0/events?after=${bad}`), { status: 400, body: { errors: [/^after /] } }, bad)
  for (const bad of ['limit=0', 'limit=1001', 'limit=x', 'after=a&after=b', 'limit=1&limit=1'])
    t.match(await api.call('GET', `/1.0/events?${bad}`), { status: 400 }, bad)
  await sql`update events set created_at = now() - interval '8 days' where account_id = ${ONE} and id <= 3`.execute(db)
  await purgeEvents(db)
  t.match(await read(`?after=${epoch!}-3`), { status: 200 })
  t.match(await api.call('GET', `/1.0/events?after=${epoch!}-2`), {
    status: 410,
    body: { error_name: 'gone', errors: [/after=now/] },
  })
  await sql`update region set event_epoch = default`.execute(db) // as after a restore
  t.match(await api.call('GET', `/1.0/events?after=${next}`), { status: 410 }, 'of the database before a restore')
  t.match(await read(`?after=${(await read('?after=now')).next}`), { status: 200, events: [] })
})

t.test('an account keeps at most the newest events, and old ones are deleted, some at once', async (t) => {
  const { next } = await read('?after=now', TWO)
  const insert = (from: number, to: number, age: string) =>
    sql`
    insert into events (account_id, id, type, resource, action, actor, fields, created_at)
    select ${TWO}, number, 'server', 'srv-x', 'update', 'system', '{}', now() - ${age}::interval
    from generate_series(${from}::bigint, ${to}::bigint) as number`.execute(db)
  const age = () => sql`update events set created_at = now() - interval '8 days' where account_id = ${TWO}`.execute(db)
  const last = Number(next.split('-')[1])
  await age()
  await insert(last + 1, last + 3_000, '8 days')
  await insert(MAX_KEPT_EVENTS + 5, MAX_KEPT_EVENTS + 5, '0 days')
  await idOf(api.call('POST', '/1.0/config_maps', { name: 'one more', data: {} }, TWO))
  const epoch = next.replace(/-.*/, '')
  const first = await read(`?limit=1&after=${epoch}-6`, TWO)
  t.match(first.events, [{ id: `${epoch}-7` }], 'the newest MAX_KEPT_EVENTS numbers')
  t.match(await read(`?after=${epoch}-5`, TWO), { status: 410 })
  await purgeEvents(db)
  t.match(await read('', TWO), {
    events: [{ resource: { resource_type: 'config_map' } }, { resource: { id: 'srv-x' } }],
  })
  await age()
  await purgeEvents(db)
  t.match(
    await read('', TWO),
    { events: [{ resource: { resource_type: 'config_map' } }] },
    'the last one stays: it has the last number',
  )
  t.equal((await read('', TWO)).events.length, 1)
  t.match(await read(`?after=${(await read('?after=now', TWO)).next}`, TWO), { status: 200 })
})

/** What a request that waits gets. `change`: made once it waits. */
async function waited(bearer: string, query: string, change: () => Promise<unknown>) {
  const { next } = await read('?after=now')
  const response = api.callWith(bearer, 'GET', `/1.0/events?after=${next}&${query}`)
  await until(() => api.waits.count === 1, 'the request to wait')
  await change()
  return { ...(await response), next }
}

t.test('a request with wait gets the next event as soon as it is committed', async (t) => {
  const { next } = await read('?after=now')
  const at = performance.now()
  const late = await api.call('GET', `/1.0/events?after=${next}&wait=1`)
  t.ok(performance.now() - at >= 1_000)
  t.match(late, { status: 200, body: [] })
  t.match(String(late.headers['link']), `after=${next}`, 'the next request goes on from the same place')
  const before = await api.call('GET', '/1.0/events?limit=1&wait=60')
  t.match(before, { status: 200, body: { length: 1 } }, 'a request for which there are events does not wait')
  t.match(
    await waited(token, 'wait=60', async () => {
      await api.call('POST', '/1.0/server_groups', { name: 'of another account' }, TWO)
      await idOf(api.call('POST', '/1.0/server_groups', { name: 'awaited' }))
    }),
    { status: 200, body: [{ resource: { resource_type: 'server_group' }, action: 'create' }] },
  )
  const group = await idOf(api.call('POST', '/1.0/server_groups', { name: 'filtered' }))
  const { body } = await waited(token, `wait=60&resource_id=${group}`, async () => {
    await idOf(api.call('POST', '/1.0/server_groups', { name: 'not wanted' }))
    await idOf(api.call('DELETE', `/1.0/server_groups/${group}`))
  })
  t.match(body, [{ resource: { id: group }, action: 'delete' }])
  for (const bad of ['wait=0', 'wait=61', 'wait=x', 'wait=1&wait=1'])
    t.match(await api.call('GET', `/1.0/events?${bad}`), { status: 400, body: { errors: [/^wait must be /] } }, bad)
  t.equal(api.waits.count, 0)
})

t.test(
  'a request that waits for events ends once its token is revoked, or its user has left the account',
  async (t) => {
    const { id, bearer } = await aClient({})
    const collaboration = await idOf(
      api.call('POST', '/1.0/collaborations', { email: 'grace@example.com', role: 'admin' }),
    )
    const rights = { status: 'accepted', user_id: 'usr-grc02', started_at: new Date() } as const
    await db.updateTable('collaborations').set(rights).where('id', '=', collaboration).execute()
    const user = await api.userToken('usr-grc02')
    const ofClient = await waited(bearer, 'wait=60', async () => {
      api.auth.tokens.clearCache()
      await idOf(api.call('DELETE', `/1.0/api_clients/${id}`))
    })
    t.match(ofClient, { status: 401 })
    const ofUser = await waited(user, `wait=60&account_id=${ONE}`, () =>
      idOf(api.call('DELETE', `/1.0/collaborations/${collaboration}`)),
    )
    t.match(ofUser, { status: 404 })
  },
)

t.test('a request that waits ends when the process stops, and its client goes on from the same place', async (t) => {
  const { status, body, headers, next } = await waited(token, 'wait=60', () => api.server.close())
  t.strictSame([status, body], [200, []])
  t.match(String(headers['link']), `after=${next}`)
})
