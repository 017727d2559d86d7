/** Which account a request acts for: an API client's own, or the one that a user names. */
import t from 'tap'
import { ADA, CLIENT_OF, GRACE, ONE, TWO } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'

const api = await anApi(t)
const [ada, grace] = [await api.userToken(ADA), await api.userToken(GRACE)]
const idsOf = ({ body }: { readonly body: unknown }) => (body as { id: string }[]).map(({ id }) => id)

t.test('a user acts for an account that the user owns, or collaborates in, by account_id', async (t) => {
  for (const account of [ONE, TWO]) {
    const { status, body } = await api.callWith(ada, 'POST', `/1.0/cloud_ips?account_id=${account}`)
    t.equal(status, 201)
    t.equal((body as { account: { id: string } }).account.id, account)
  }
  t.equal((await api.callWith(ada, 'GET', `/1.0/account?account_id=${TWO}`)).status, 200)
})

t.test('a request of a user without account_id is refused if it needs an account', async (t) => {
  for (const url of ['/1.0/servers', '/1.0/cloud_ips', '/1.0/account', '/1.0/server_groups']) {
    const { status, body } = await api.callWith(ada, 'GET', url)
    t.match(
      { status, body },
      { status: 400, body: { error_name: 'bad_request', errors: [/account_id is missing/] } },
      url,
    )
  }
})

t.test('the account of another user is 404', async (t) => {
  for (const account of [ONE, 'acc-none1']) {
    for (const url of ['/1.0/servers', '/1.0/users', '/1.0/accounts']) {
      t.match(
        await api.callWith(grace, 'GET', `${url}?account_id=${account}`),
        { status: 404, body: { error_name: 'resource_not_found' } },
        `${url} ${account}`,
      )
    }
  }
  t.match(await api.callWith(grace, 'GET', `/1.0/accounts/${ONE}`), { status: 404 })
})

t.test("without account_id a user sees all of the user's accounts, and their users", async (t) => {
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/accounts')), [ONE, TWO])
  t.strictSame(idsOf(await api.callWith(grace, 'GET', '/1.0/accounts')), [TWO])
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/users')), [ADA, GRACE])
  t.strictSame(idsOf(await api.callWith(ada, 'GET', `/1.0/accounts?account_id=${TWO}`)), [TWO])
  t.match(await api.callWith(grace, 'GET', '/1.0/user'), {
    status: 200,
    body: { id: GRACE, accounts: [{ id: TWO }], default_account: { id: TWO } },
  })
  t.match(await api.callWith(grace, 'GET', `/1.0/users/${ADA}`), {
    status: 200,
    body: { accounts: [{ id: TWO }], default_account: null },
  })
})

t.test('a user loses access as soon as the collaboration ends', async (t) => {
  t.equal((await api.callWith(ada, 'GET', `/1.0/servers?account_id=${TWO}`)).status, 200)
  await api.database.db.updateTable('collaborations').set({ status: 'ended' }).where('user_id', '=', ADA).execute()
  t.equal((await api.callWith(ada, 'GET', `/1.0/servers?account_id=${TWO}`)).status, 404)
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/accounts')), [ONE])
})

t.test('the default account of a user is not one that is closed', async (t) => {
  const { db } = api.database
  await db.updateTable('accounts').set({ owner_id: ADA }).where('id', '=', TWO).execute()
  await db.updateTable('accounts').set({ status: 'closed' }).where('id', '=', ONE).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), {
    body: { accounts: [{ id: ONE }, { id: TWO }], default_account: { id: TWO } },
  })
  await db.updateTable('accounts').set({ status: 'deleted' }).where('id', '=', TWO).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: { default_account: { id: ONE } } })
  await db.updateTable('accounts').set({ status: 'active' }).execute()
  await db.updateTable('accounts').set({ owner_id: GRACE }).where('id', '=', TWO).execute()
})

t.test("a user without an account can read the user's own profile", async (t) => {
  const { db } = api.database
  await db
    .insertInto('users')
    .values({
      id: 'usr-new03',
      name: 'New',
      email_address: 'new@example.com',
      email_verified: true,
      ssh_key: null,
      messaging_pref: true,
      password_hash: null,
      totp_secret: null,
    })
    .execute()
  const token = await api.userToken('usr-new03')
  t.match(await api.callWith(token, 'GET', '/1.0/user'), {
    status: 200,
    body: { id: 'usr-new03', accounts: [], default_account: null },
  })
  t.strictSame((await api.callWith(token, 'GET', '/1.0/accounts')).body, [])
  t.strictSame((await api.callWith(token, 'GET', '/1.0/users')).body, [])
})

t.test('an API client acts for its own account, named or not', async (t) => {
  t.equal((await api.call('GET', `/1.0/servers?account_id=${ONE}`)).status, 200)
  t.equal((await api.call('GET', `/1.0/servers?account_id=${TWO}`)).status, 404)
  t.match(await api.call('GET', '/1.0/user', undefined, TWO), { body: { id: GRACE } }, CLIENT_OF[TWO])
})

/** Rows of each large table, of others. */
const MANY = 5_000
/** The most rows of one of the large tables that a request may read. */
const FEW = 100

t.test('no request reads a whole table of users, accounts, collaborations, images or servers', async (t) => {
  const { pool, background } = api.database
  await pool.query(`
    set local session_replication_role = replica; -- no events: they take time
    update collaborations set status = 'accepted' where account_id = '${TWO}' and user_id = '${ADA}';
    insert into users (id, name, email_address, email_verified, messaging_pref, ssh_key)
      select 'usr-m' || n, '', 'user-' || n || '@example.org', true, true, 'ssh-ed25519 x'
      from generate_series(1, ${String(MANY)}) n;
    insert into accounts
      select (jsonb_populate_record(accounts, jsonb_build_object('id', 'acc-m' || n, 'owner_id', 'usr-m' || n))).*
      from accounts, generate_series(1, ${String(MANY)}) n
      where id = '${ONE}';
    insert into collaborations (id, account_id, user_id, email, role, status)
      select 'col-m' || n, 'acc-m' || n, 'usr-m' || (n % ${String(MANY)} + 1), 'user-' || n || '@example.net',
        'admin', 'accepted'
      from generate_series(1, ${String(MANY)}) n;
    insert into collaborations (id, account_id, email, role, status)
      select 'col-p' || n, 'acc-m' || n, 'invited-' || n || '@example.net', 'admin', 'pending'
      from generate_series(1, ${String(MANY)}) n;
    insert into images
      select (jsonb_populate_record(images, jsonb_build_object(
        'id', 'img-m' || n, 'handle', 'image-' || n, 'account_id', 'acc-m' || n, 'public', false
      ))).*
      from images, generate_series(1, ${String(MANY)}) n
      where id = 'img-deb12';
    insert into servers (id, account_id, name, status, image_id, server_type_id, zone_id, hypervisor,
      compatibility_mode, disk_encrypted, architecture)
      select 'srv-m' || n, 'acc-m' || n, '', 'active', 'img-m' || n, 'typ-small', 'zon-aaaa1', 'hv-1', false, false,
        'x86_64'
      from generate_series(1, ${String(MANY)}) n;
    analyze`)
  /**
   * How many rows PostgreSQL has read, of each table. A connection adds its own reads to these counters only when asked
   * to.
   */
  const rowsRead = async () => {
    for (const {
      options: { max = 0 },
      connect,
    } of [pool, background.pool].map((one) => ({ options: one.options, connect: () => one.connect() }))) {
      const clients = await Promise.all(Array.from({ length: max }, connect))
      for (const client of clients) {
        await client.query('select pg_stat_force_next_flush()')
        client.release()
      }
    }
    const { rows } = await pool.query<{ relname: string; read: number }>(
      `
        select relname, seq_tup_read + coalesce(idx_tup_fetch, 0) as read
        from pg_stat_user_tables
        where relname in ('users', 'accounts', 'collaborations', 'images', 'servers')`,
    )
    return new Map(rows.map(({ relname, read }) => [relname, read]))
  }
  const image = ((await api.call('GET', '/1.0/images')).body as { id: string }[])[0]!.id
  const requests: readonly (readonly [name: string, request: () => Promise<{ readonly status: number }>])[] = [
    ...[
      '/user',
      '/users',
      `/users/${GRACE}`,
      '/accounts',
      `/account?account_id=${TWO}`,
      '/user/collaborations',
      `/servers?account_id=${TWO}`,
      `/images?account_id=${TWO}`,
      `/images/debian-12?account_id=${TWO}`,
      `/collaborations?account_id=${ONE}`,
    ].map((path) => [`GET ${path}`, () => api.callWith(ada, 'GET', `/1.0${path}`)] as const),
    ['an invitation', () => api.call('POST', '/1.0/collaborations', { email: 'user-7@example.org', role: 'admin' })],
    ['a new server', () => api.call('POST', '/1.0/servers', { image })],
    ['the delete of an image', () => api.call('DELETE', '/1.0/images/img-two02', undefined, TWO)],
  ]
  for (const [name, request] of requests) {
    const before = await rowsRead()
    t.ok((await request()).status < 300, name)
    const after = await rowsRead()
    if (name === 'a new server') after.delete('servers') // it is placed by the RAM of all servers
    for (const [table, rows] of after)
      t.ok(rows - before.get(table)! <= FEW, `${name}: ${String(rows - before.get(table)!)} rows of ${table}`)
  }
})
