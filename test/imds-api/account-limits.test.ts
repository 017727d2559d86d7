/**
 * The limits of an account: each is exact for requests at the same time, and an account that is beyond one keeps what
 * it has.
 */
import t from 'tap'
import { deleteOldestTokens } from '../../src/imds-api/auth/token-families.ts'
import { purgeFinished } from '../../src/imds-api/changes/collaborations.ts'
import { ACCOUNT_LIMITS } from '../../src/imds-api/model/account-limits.ts'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { ADA, APPLICATION, aRegion, CLIENT_OF, ONE, secretOf, TWO } from '../support/fixtures/region.ts'
import { aClient } from '../support/programs/api-client.ts'
import { anApi, apply } from '../support/programs/api.ts'
import { tokenRequests } from '../support/programs/token-requests.ts'

interface Body extends Record<string, unknown> {
  id: string
  error_name: string
  errors: string[]
}

/** ONE has the default server group and two API clients. */
const LIMITS = {
  server_groups_limit: 3,
  api_clients_limit: 4,
  access_tokens_limit: 5,
  applications_limit: 2,
  collaborations_limit: 3,
  config_maps_limit: 3,
  config_maps_bytes_limit: 100,
  images_limit: 2,
  cloud_ips_limit: 3,
  ram_limit: 4096,
}
const region = aRegion({
  accounts: aRegion().accounts.map((account) => (account.id === ONE ? { ...account, ...LIMITS } : account)),
})
const api = await anApi(t, { region })
const { db, pool } = api.database
const { call, create, list: listOf } = aClient<Body>(api)
const post = tokenRequests(api)
await api.startPublisher()
const { id: server } = await create('servers', { image: 'img-deb12' })
await api.drained()

/** Each kind that a limit counts: how many ONE can make, how to make the nth, how to end one, and the refusal. */
const COUNTED = {
  'cloud IP': {
    room: 3,
    make: () => call('POST', 'cloud_ips'),
    end: (id: string) => call('DELETE', `cloud_ips/${id}`),
    fault: '3 cloud IPs, and its limit is 3: delete one first',
  },
  server: {
    room: 3, // and one that the snapshots are of
    make: () => call('POST', 'servers', { image: 'img-deb12' }),
    end: async (id: string) => {
      const deleted = await call('DELETE', `servers/${id}`)
      await api.drained()
      return deleted
    },
    fault: '4096 MB of RAM in its servers, and its limit is 4096: 1024 more are too much: delete a server first',
  },
  'server group': {
    room: 2,
    make: (n: number) => call('POST', 'server_groups', { name: String(n) }),
    end: (id: string) => call('DELETE', `server_groups/${id}`),
    fault: '3 server groups, and its limit is 3: delete one first',
  },
  'API client': {
    room: 2,
    make: (n: number) => call('POST', 'api_clients', { name: String(n) }),
    end: (id: string) => call('DELETE', `api_clients/${id}`),
    fault: '4 API clients, and its limit is 4: delete one first',
  },
  application: {
    room: 2,
    make: (n: number) => call('POST', 'applications', { name: String(n) }),
    end: (id: string) => call('DELETE', `applications/${id}`),
    fault: '2 applications, and its limit is 2: delete one first',
  },
  collaboration: {
    room: 3,
    make: (n: number) => call('POST', 'collaborations', { email: `user-${n}@example.com`, role: 'admin' }),
    end: (id: string) => call('DELETE', `collaborations/${id}`),
    fault: '3 collaborations, and its limit is 3: end or cancel one first',
  },
  'config map': {
    room: 3,
    make: (n: number) => call('POST', 'config_maps', { data: { n } }),
    end: (id: string) => call('DELETE', `config_maps/${id}`),
    fault: '3 config maps, and its limit is 3: delete one first',
  },
  image: {
    room: 2, // snapshots
    make: async () => {
      const { status, headers, body } = await api.call('POST', `/1.0/servers/${server}/snapshot`)
      return {
        status,
        body: { ...(body as Body), ...(status === 202 && { id: /img-\w+/.exec(String(headers['link']))![0] }) },
      }
    },
    end: (id: string) => call('DELETE', `images/${id}`),
    fault: '2 images, and its limit is 2: delete one first',
  },
}

t.test('all kinds that a limit counts are here', (t) => {
  const limited = ALL_ROWS.filter(({ limit }) => limit !== undefined).map(({ kind }) => kind)
  t.strictSame(Object.keys(COUNTED).toSorted(), [...limited, 'server'].toSorted())
  t.end()
})

for (const [name, { room, make, end, fault }] of Object.entries(COUNTED)) {
  t.test(`of requests for one more ${name} at the same time, as many succeed as the limit has room for`, async (t) => {
    const refused = {
      status: 403,
      body: { error_name: 'account_limit_reached', errors: [`the account has ${fault}`] },
    }
    const answers = await Promise.all(Array.from({ length: room + 4 }, (_, n) => make(n)))
    const made = answers.filter(({ status }) => status < 300)
    t.equal(made.length, room)
    for (const answer of answers) if (answer.status >= 300) t.strictSame(answer, refused)
    t.ok((await end(made[0]!.body.id)).status < 300)
    t.ok((await make(100)).status < 300, 'in place of one that has ended')
    t.strictSame(await make(101), refused)
  })
}

t.test('the config maps of an account have a limit of bytes, for new data and longer data', async (t) => {
  await pool.query('delete from config_maps')
  const data = (length: number) => ({ data: { a: 'é'.repeat((length - 8) / 2) } }) // {"a":"..."}
  const { id } = (await call('POST', 'config_maps', data(60))).body
  const beyond = (used: number, more: number) => ({
    status: 403,
    body: {
      errors: [
        `the account has ${used} bytes of config maps, and its limit is 100: ${more} more are too much: delete or shorten one first`,
      ],
    },
  })
  t.match(await call('POST', 'config_maps', data(42)), beyond(60, 42))
  const other = (await call('POST', 'config_maps', data(40))).body.id
  t.match(await call('PUT', `config_maps/${id}`, data(62)), beyond(100, 2))
  t.match(await call('PUT', `config_maps/${id}`, { name: 'x'.repeat(255) }), { status: 200 }, 'the name does not count')
  t.match(await call('PUT', `config_maps/${id}`, data(20)), { status: 200 })
  t.match(await call('PUT', `config_maps/${other}`, data(80)), { status: 200 })
  await db.updateTable('accounts').set({ config_maps_bytes_limit: 10 }).where('id', '=', ONE).execute()
  t.match(
    await call('PUT', `config_maps/${other}`, data(78)),
    { status: 200 },
    'shorter, in an account beyond its limit',
  )
  t.match(await call('PUT', `config_maps/${other}`, data(80)), { status: 403 })
  t.match(await call('PUT', `config_maps/${id}`, data(22), TWO), { status: 404 })
  await db.updateTable('accounts').set({ config_maps_bytes_limit: 100 }).where('id', '=', ONE).execute()
})

t.test('an account that is beyond its limits keeps what it has, and may change it', async (t) => {
  const none = Object.fromEntries(
    Object.keys(ACCOUNT_LIMITS)
      .filter((name) => name !== 'access_tokens_limit')
      .map((name) => [name, 0]),
  )
  await db.updateTable('accounts').set(none).where('id', '=', ONE).execute()
  for (const { table, limit } of ALL_ROWS) {
    if (limit?.default === undefined || !api.server.hasRoute({ method: 'PUT', url: `/1.0/${table!}/:id` })) continue
    const own = (await listOf(table!)).filter(({ owner }) => owner === undefined || owner === ONE)
    t.ok(own.length > 0, table!)
    t.ok((await call('PUT', `${table!}/${own[0]!.id}`, { name: 'changed' })).status < 300, table!)
  }
  t.match(
    await apply(api.database, region),
    [new RegExp(`^~ account ${ONE}: .*server_groups_limit 0 -> 3.*open_actions_limit 0 -> 1000$`)],
    'the file sets the limits again',
  )
})

t.test('beyond the limit of access tokens, the oldest of the same client end, and those of no other', async (t) => {
  const own = await call('POST', 'api_clients', { name: 'own' }, TWO)
  const others = [await api.token(CLIENT_OF[TWO]), await api.userToken(ADA)]
  const secret = String((await call('POST', `api_clients/${own.body.id}/reset_secret`, undefined, TWO)).body['secret'])
  await db.updateTable('accounts').set({ access_tokens_limit: 5 }).where('id', '=', TWO).execute()
  const token = () => api.token(own.body.id, { secret })
  const count = async () =>
    (await db.selectFrom('access_tokens').select('sha256').where('client_id', '=', own.body.id).execute()).length
  const first = await token()
  const later: string[] = []
  for (let i = 0; i < 5; i++) later.push(await token())
  t.equal((await api.callWith(first, 'GET', '/1.0/account')).status, 401)
  for (const one of [...later, others[0]!]) t.equal((await api.callWith(one, 'GET', '/1.0/account')).status, 200)
  t.equal((await api.callWith(others[1]!, 'GET', '/1.0/user')).status, 200)
  await Promise.all(Array.from({ length: 12 }, token))
  await token()
  t.equal(await count(), 5, 'after requests at the same time too')
  await call('DELETE', `api_clients/${own.body.id}`, undefined, TWO)
  t.equal(await count(), 0, 'a deleted client has none')
})

t.test('a user has at most 100 sign-ins with one application: one more ends the oldest', async (t) => {
  await api.userToken(ADA)
  const families = async () =>
    (
      await db
        .selectFrom('token_families')
        .select('id')
        .where('application_id', '=', APPLICATION)
        .where('user_id', '=', ADA)
        .orderBy('id')
        .execute()
    ).map(({ id }) => id)
  await pool.query(
    `
      insert into token_families (application_id, user_id, scopes)
      select $1, $2, '{infrastructure}'
      from generate_series(1, 99)`,
    [APPLICATION, ADA],
  )
  const before = (await families()).slice(-100)
  const signIn = async () =>
    t.match(await post({ grant_type: 'password', username: ADA, password: secretOf(ADA) }), { status: 200 })
  await Promise.all([signIn(), signIn(), signIn()])
  const after = await families()
  t.equal(after.length, 100)
  t.strictSame(after.slice(0, 97), before.slice(3))
})

t.test('a sign-in has at most 100 access tokens and 400 refresh tokens: the oldest end', async (t) => {
  const { id } = await db
    .insertInto('token_families')
    .values({ application_id: APPLICATION, user_id: ADA, scopes: ['infrastructure'] })
    .returning('id')
    .executeTakeFirstOrThrow()
  const later = await db
    .insertInto('token_families')
    .values({ application_id: APPLICATION, user_id: ADA, scopes: ['infrastructure'] })
    .returning('id')
    .executeTakeFirstOrThrow()
  for (const [table, most] of [
    ['access_tokens', 100],
    ['refresh_tokens', 400],
  ] as const) {
    await pool.query(
      `insert into ${table} (sha256, family_id, expires_at${table === 'access_tokens' ? ', scopes' : ''})
      select sha256(($1 || n)::bytea), $2,
        now() + n * interval '1 s'${table === 'access_tokens' ? ", '{infrastructure}'" : ''}
      from generate_series(1, 450) as n`,
      [table, id],
    )
    await db.transaction().execute(async (tx) => {
      await deleteOldestTokens(tx, table, id, most)
      await deleteOldestTokens(tx, table, later.id, most)
    })
    const { rows } = await pool.query<{ count: number; has_newest: boolean }>(
      `select count(*), bool_or(sha256 = sha256(($1 || 450)::bytea)) as has_newest from ${table} where family_id = $2`,
      [table, id],
    )
    t.strictSame(rows, [{ count: most - 1, has_newest: true }], table)
  }
})

t.test('of deleted API clients and applications the newest 1,000 can be read, and those of the file', async (t) => {
  for (const [path, prefix] of [
    ['api_clients', 'cli'],
    ['applications', 'app'],
  ] as const) {
    await pool.query(
      `insert into ${path} (id, account_id, name, description, revoked_at${path === 'api_clients' ? ', permissions_group' : ''})
      select '${prefix}-z' || n, $1, '', '', now() - n * interval '1 s'${path === 'api_clients' ? ", 'full'" : ''}
      from generate_series(1, 1001) as n`,
      [TWO],
    )
    await pool.query('insert into given_ids values ($1)', [`${prefix}-z1001`])
    const { id } = (await call('POST', path, {}, TWO)).body
    await call('DELETE', `${path}/${id}`, undefined, TWO)
    for (const [old, status] of [
      [id, 200],
      [`${prefix}-z998`, 200],
      [`${prefix}-z1000`, 404],
      [`${prefix}-z1001`, 200],
    ] as const) {
      t.equal((await call('GET', `${path}/${old}`, undefined, TWO)).status, status, old)
    }
  }
})

t.test('of finished collaborations the newest 1,000 are kept, and each that apply must not make again', async (t) => {
  await pool.query(
    `insert into collaborations (id, account_id, email, role, status, created_at, finished_at)
    select 'col-z' || n, $1,
      case when n > 1002 then 'ended@example.com' else 'user-' || n || '@example.com' end, 'admin',
      case when n > 1000 then 'ended' else 'cancelled' end, now(), now() - n * interval '1 s'
    from generate_series(1, 1004) as n`,
    [TWO],
  )
  await db.transaction().execute((tx) => purgeFinished(tx, TWO))
  const kept = async () => {
    const rows = await db.selectFrom('collaborations').select('id').where('account_id', '=', TWO).execute()
    return rows.map(({ id }) => id)
  }
  const left = await kept()
  for (const [id, isKept] of [
    ['col-z1', true],
    ['col-z1000', true],
    ['col-z1001', true],
    ['col-z1002', true],
    ['col-z1003', true],
    ['col-z1004', false],
  ] as const)
    t.equal(left.includes(id), isKept, id)
  await pool.query("update collaborations set status = 'cancelled' where id = 'col-z1001'")
  await db.transaction().execute((tx) => purgeFinished(tx, TWO))
  t.notOk((await kept()).includes('col-z1001'))
})
