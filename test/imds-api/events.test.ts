/** Events: what is one, who reads them, the order of concurrent changes, what is kept, and who waits for them. */
import { sql } from 'kysely'
import t from 'tap'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import { advance } from '../../src/imds-api/changes/advance.ts'
import { purgeEvents } from '../../src/imds-api/changes/events.ts'
import { EVENT_FUNCTIONS, MAX_KEPT_EVENTS } from '../../src/imds-api/database/event-triggers.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import { CLIENT_OF, ONE, secretOf, TWO } from '../support/fixtures/region.ts'
import { anApi, countOfLockWaits, openState, setRow } from '../support/programs/api.ts'
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
/** The lists of an account. test/imds-api/properties.test.ts tests the events of what shows a changed resource. */
const LISTS = ['owner', 'users', 'clients', 'servers', 'database_servers', 'cloud_ips', 'server_groups', 'images']
/** What the events of a change say, without their ids and times, and without those of the account's lists. */
async function eventsOf(change: () => Promise<unknown>): Promise<readonly string[]> {
  const { next } = await read('?after=now')
  await change()
  const { events } = await read(`?after=${next}`)
  const own = events.filter(({ type, fields }) => type !== 'account' || !fields.every((field) => LISTS.includes(field)))
  return own.map(({ type, action, actor, fields }) => [type, action, actor, ...fields].join(' '))
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
      `server_group update ${CLIENT} servers`,
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
      `server_group update ${CLIENT} servers`,
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
    [`server update ${CLIENT} status`, 'server delete system'],
  )
  const user = await api.userToken('usr-ada01')
  t.strictSame(await eventsOf(() => api.callWith(user, 'PUT', '/1.0/user', { name: 'Ada' })), [
    'user update usr-ada01 name',
  ])
  const operator = await openState(`${api.directory}/state`)
  t.teardown(() => operator.close())
  t.strictSame(
    await eventsOf(() =>
      inTransaction(operator.db, (tx) =>
        sql`update accounts set ram_limit = ram_limit + 1 where id = ${ONE}`.execute(tx),
      ),
    ),
    ['account update operator ram_limit'],
  )
})

t.test('a new server is an event of the groups that its request names, but not of the default group', async (t) => {
  const groupEvents = async (change: () => Promise<unknown>) =>
    (await eventsOf(change)).filter((line) => line.startsWith('server_group'))
  const group = await idOf(api.call('POST', '/1.0/server_groups', { name: 'named' }))
  let [server, member] = ['', '']
  t.strictSame(
    await groupEvents(async () => {
      server = await idOf(api.call('POST', '/1.0/servers', { image: 'img-deb12' }))
      await api.drained()
      t.match(await api.call('GET', `/1.0/servers/${server}`), { body: { status: 'active' } })
    }),
    [],
  )
  t.strictSame(
    await groupEvents(async () => {
      member = await idOf(api.call('POST', '/1.0/servers', { image: 'img-deb12', server_groups: [group] }))
      await api.drained()
    }),
    [`server_group update ${CLIENT} servers`, 'server_group update system servers'],
  )
  const { body: groups } = await api.call('GET', '/1.0/server_groups')
  const { id: defaultGroup } = (groups as { id: string; default: boolean }[]).find((one) => one.default)!
  const others: readonly (readonly [string, () => Promise<unknown>])[] = [
    ['a new name', () => api.call('PUT', `/1.0/servers/${server}`, { name: 'other' })],
    [
      'an added member',
      () => api.call('POST', `/1.0/server_groups/${defaultGroup}/add_servers`, { servers: [{ server: member }] }),
    ],
    [
      'a removed member',
      () => api.call('POST', `/1.0/server_groups/${defaultGroup}/remove_servers`, { servers: [{ server: member }] }),
    ],
    ['a deletion', () => api.call('DELETE', `/1.0/servers/${server}`)],
  ]
  for (const [what, change] of others) {
    const { next } = await read('?after=now')
    await change()
    t.match(await read(`?after=${next}&resource=${defaultGroup}`), { events: [{ fields: ['servers'] }] }, what)
  }
  await idOf(api.call('DELETE', `/1.0/servers/${member}`))
  await api.drained()
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
  t.match(
    events.filter(({ fields }) => !LISTS.some((field) => fields.includes(field))),
    [
      { type: 'server_group', request_id: 'of-a-client', idempotency_key: null },
      { type: 'server_group', request_id: requestId, idempotency_key: 'a key' },
      { type: 'user', request_id: /^[0-9a-f-]{36}$/, idempotency_key: null },
      { type: 'account', request_id: null, idempotency_key: null },
    ],
  )
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
  const known = ['access_tokens', 'event_feeds', 'events', 'outbox', ...withTriggers.map(({ table }) => table)]
  t.strictSame(
    found.map(({ table }) => table).filter((table) => !known.includes(table)),
    [],
  )
  const { rows: functions } = await sql<{ text: string }>`
    select prosrc as text from pg_proc where proname like 'event_of_%'`.execute(db)
  t.equal(functions.length, Object.keys(EVENT_FUNCTIONS).filter((name) => name.startsWith('event_of_')).length)
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
    ['create', 'delete', 'create', 'delete'].map((action) => `image ${action} system`),
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
    const tx = await db.startTransaction().execute()
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
    seen.push(...page.events.map(({ resource }) => resource))
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
  const first = await db.startTransaction().execute()
  await sql`update config_maps set name = 'x' where id = 'cfg-t0000'`.execute(first)
  await sql`set constraints all immediate`.execute(first) // as at its commit, which has not ended
  const second = sql`update config_maps set name = 'y' where id = 'cfg-t0001'`.execute(db)
  await until(async () => (await countOfLockWaits(api.database.pool)) > 0, 'the lock')
  await first.commit().execute()
  await second
  const last = (await read(`?after=${cursor}`)).events.map(({ resource }) => resource)
  t.strictSame(last, ['cfg-t0000', 'cfg-t0001'], 'a commit waits for one that has taken its number')
})

/** A new API client, and a token of it. */
async function aClient(values: object): Promise<{ readonly id: string; readonly bearer: string }> {
  const id = await idOf(api.call('POST', '/1.0/api_clients', { name: 'other', ...values }))
  await setRow(db, 'api_clients', id, { secret_sha256: digest(secretOf(id)) })
  return { id, bearer: await api.token(id) }
}

t.test('an event is on disk before it can be read, also of a commit that does not wait for that', async (t) => {
  const tx = await db.startTransaction().execute()
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

t.test('a list has at most `limit` events, and its Link continues, also once new ones follow', async (t) => {
  const first = await read('?limit=2')
  t.equal(first.events.length, 2)
  t.equal(first.next, first.events[1]!.id)
  const second = await read(`?limit=2&after=${first.next}`)
  t.equal(Number(second.events[0]!.id.split('-')[1]), Number(first.next.split('-')[1]) + 1)
  const { next, events } = await read('?after=now')
  t.strictSame(events, [])
  await idOf(api.call('POST', '/1.0/server_groups', { name: 'later' }))
  t.match(await read(`?after=${next}`), { events: [{ type: 'server_group', action: 'create' }] })
  t.match(await api.call('GET', '/1.0/events', undefined), { headers: { link: /^<\?after=\S+>; rel="next"$/ } })
})

t.test('a list with type or resource has only their events, and its Link goes on with them', async (t) => {
  const { next: begin } = await read('?after=now')
  const groups: string[] = []
  for (let i = 0; i < 3; i++) {
    groups.push(await idOf(api.call('POST', '/1.0/server_groups', { name: 'filtered' })))
    await idOf(api.call('POST', '/1.0/config_maps', { name: 'between', data: {} }))
  }
  await idOf(api.call('PUT', `/1.0/server_groups/${groups[0]!}`, { name: 'again' }))
  const all = (await read(`?after=${begin}`)).events
  const filtered = async (filter: string, limit = 100) =>
    (await read(`?after=${begin}&limit=${limit}&${filter}`)).events
  const ofType = all.filter(({ type }) => type === 'server_group')
  t.equal(ofType.length, 4)
  t.strictSame(await filtered('type=server_group'), ofType)
  const ofResource = ofType.filter(({ resource }) => resource === groups[0])
  t.strictSame(await filtered(`resource=${groups[0]!}`), ofResource)
  t.strictSame(await filtered(`resource=${groups[0]!}&type=server_group`), ofResource)
  t.strictSame(await filtered(`resource=${groups[0]!}&type=server`), [])
  t.strictSame(await filtered('resource=grp-none1'), [])
  const ofAccount = all.filter(({ type }) => type === 'account')
  t.ok(ofAccount.length > 0)
  t.strictSame(await filtered(`resource=${ONE}`), ofAccount)
  t.strictSame(await filtered('type=account_identity'), [])

  const paged: ReadEvent[] = []
  const page = (after: string) => read(`?after=${after}&type=server_group&limit=3`)
  for (let one = await page(begin); one.events.length > 0; one = await page(one.next)) paged.push(...one.events)
  t.strictSame(paged, ofType)
  const link = String((await api.call('GET', '/1.0/events?type=server_group&limit=2')).headers['link'])
  t.match(link, /^<\?type=server_group&limit=2&after=\S+>; rel="next"$/)

  await idOf(api.call('POST', '/1.0/config_maps', { name: 'not wanted', data: {} }))
  const { next } = await read('?after=now')
  t.match(
    await read(`?after=${begin}&resource=${groups[1]!}`),
    { next, events: { length: 1 } },
    'one that has all is up to date',
  )
  t.match(await read(`?after=${next}&type=image`), { next, events: [] })
})

t.test('filters that nothing can pass are refused, and say what they must be', async (t) => {
  for (const [query, error] of [
    ['type=nothing', /^type must be one of account, account_identity, /],
    ['type=', /^type must be one of /],
    ['type=zone', /^type must be one of /],
    ['type=server&type=server', /^type must be given once/],
    ['resource=', /^resource must be the id of a resource/],
    ['resource=a%20b', /^resource must be the id of a resource/],
    [`resource=${'a'.repeat(65)}`, /^resource must be the id of a resource/],
  ] as const)
    t.match(await api.call('GET', `/1.0/events?${query}`), { status: 400, body: { errors: [error] } }, query)
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
  t.equal(Number((await read()).events[0]!.id.split('-')[1]), 4, 'without a cursor: from the oldest one')
  await inTransaction(db, (tx) => advance(tx, { servers: [], ids: new Set() }))
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
  t.equal((await read('', TWO)).events[0]!.id, next.replace(/-.*/, '-7'), 'the newest MAX_KEPT_EVENTS numbers')
  await purgeEvents(db)
  t.match(await read('', TWO), { events: [{ resource: 'srv-x' }, { type: 'config_map' }] })
  await age()
  await purgeEvents(db)
  t.match(await read('', TWO), { events: [{ type: 'config_map' }] }, 'the last one stays: it has the last number')
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
    { status: 200, body: [{ type: 'server_group', action: 'create' }] },
  )
  const group = await idOf(api.call('POST', '/1.0/server_groups', { name: 'filtered' }))
  const { body } = await waited(token, `wait=60&resource=${group}`, async () => {
    await idOf(api.call('POST', '/1.0/server_groups', { name: 'not wanted' }))
    await idOf(api.call('DELETE', `/1.0/server_groups/${group}`))
  })
  t.match(body, [{ resource: group, action: 'delete' }])
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
