/** What users change in their own profile, and what nobody else can. */
import t from 'tap'
import { ADA, ADAS_KEY, CLIENT_OF, GRACE, GRACES_KEY, MARY, ONE, TWO, withMary } from '../support/fixtures/region.ts'
import { anApi } from '../support/programs/api.ts'

const api = await anApi(t, { region: withMary() })
const { db } = api.database
const [ada, grace, mary] = [await api.userToken(ADA), await api.userToken(GRACE), await api.userToken(MARY)]
const NEW_KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIM5WgrQ5SynmwXKzx1G+R0wr5Bnrw/KGzs58u3PZ4mu5 ada@laptop'
const unchanged = { name: 'Ada Lovelace', email_address: 'ada@example.com', ssh_key: ADAS_KEY, messaging_pref: true }

t.beforeEach(async () => {
  await db.updateTable('users').set(unchanged).where('id', '=', ADA).execute()
})

t.test('a user changes name, key and messaging_pref, by id and as /user, and clears the key', async (t) => {
  for (const path of [`users/${ADA}`, 'user', `users/${ADA}?account_id=${TWO}`]) {
    const change = { name: 'Augusta', ssh_key: NEW_KEY, messaging_pref: false }
    t.match(
      await api.callWith(ada, 'PUT', `/1.0/${path}`, change),
      { status: 200, body: { id: ADA, ...change, email_address: 'ada@example.com' } },
      path,
    )
    t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: change })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { ssh_key: '' }), {
      status: 200,
      body: { name: 'Augusta', ssh_key: '' },
    })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { name: 'Ada Lovelace', ssh_key: ADAS_KEY }), {
      status: 200,
      body: { name: 'Ada Lovelace', ssh_key: ADAS_KEY },
    })
    t.match(await api.callWith(ada, 'PUT', `/1.0/${path}`, { ssh_key: null }), { status: 200, body: { ssh_key: '' } })
  }
})

t.test("the clients' way works: all fields as they were, and a key file with its line break", async (t) => {
  const { email_address, name } = unchanged
  t.match(await api.callWith(ada, 'PUT', `/1.0/users/${ADA}`, { email_address, name, ssh_key: `${NEW_KEY}\n` }), {
    status: 200,
    body: { name, email_address, ssh_key: NEW_KEY },
  })
})

t.test('a user without an account reads and changes their own profile', async (t) => {
  t.match(await api.callWith(mary, 'PUT', `/1.0/users/${MARY}`, { name: 'Mary' }), {
    status: 200,
    body: { id: MARY, name: 'Mary', accounts: [] },
  })
  t.match(await api.callWith(mary, 'GET', `/1.0/users/${MARY}`), { status: 200, body: { name: 'Mary' } })
})

t.test('wrong fields are refused, all at once, and change nothing', async (t) => {
  for (const [body, ...errors] of [
    [{ ssh_key: 'ssh-rsa AAAA' }, /^ssh_key must have/],
    [{ ssh_key: `${NEW_KEY}\n${NEW_KEY}` }, /^ssh_key must be one line/],
    [{ name: '' }, /^name must not be empty/],
    [{ name: 'a\nb' }, /^name must be one line/],
    [{ name: null }, /^name must be a string/],
    [{ messaging_pref: 'yes' }, /^messaging_pref must be a boolean/],
    [{ email_address: 'eve@example.com' }, /^email_address cannot be changed here/],
    [
      { name: 'x', ssh_key: 'x', email_address: 'x', password: 'x', password_confirmation: 'x' },
      /^ssh_key must be one line/,
      /^email_address cannot/,
      /^password cannot be changed here/,
    ],
  ] as const)
    t.match(await api.callWith(ada, 'PUT', '/1.0/user', body), { status: 422, body: { errors } }, JSON.stringify(body))
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: unchanged })
})

t.test('nobody else changes a profile: a request that would is refused', async (t) => {
  const client = await api.token(CLIENT_OF[ONE])
  const lines = api.audit.length
  t.match(await api.callWith(client, 'PUT', `/1.0/users/${ADA}`, { ssh_key: NEW_KEY }), {
    status: 403,
    body: { error_name: 'forbidden', errors: [`only ${ADA} can change this profile, after signing in`] },
  })
  t.match(
    await api.callWith(client, 'PUT', '/1.0/user', { name: 'Eve' }),
    { status: 403 },
    "the owner of the client's account",
  )
  for (const name of ['Eve', unchanged.name])
    t.match(
      await api.callWith(grace, 'PUT', `/1.0/users/${ADA}`, { name }),
      { status: 403 },
      `${name} by another user of the account`,
    )
  t.match(
    await api.callWith(client, 'PUT', `/1.0/users/${GRACE}`, { name: 'Eve' }),
    { status: 404 },
    'a user of another account',
  )
  t.match(await api.callWith(grace, 'PUT', `/1.0/users/${MARY}`, {}), { status: 404 })
  t.match(
    await api.callWith(client, 'PUT', `/1.0/users/${ADA}`, { name: unchanged.name }),
    { status: 200, body: { id: ADA } },
    "fog's tests send the name as it is",
  )
  t.match(await api.callWith(client, 'PUT', '/1.0/user', unchanged), { status: 200, body: { id: ADA } })
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: unchanged })
  const said = api.audit.slice(lines).map(({ id, changed }) => ({ id, changed }))
  t.strictSame(said, Array(2).fill({ id: ADA, changed: false }), 'no audit line says that it was changed')
})

t.test('the audit line of a profile with its present values says that nothing changed', async (t) => {
  const lines = api.audit.length
  t.match(await api.callWith(ada, 'PUT', '/1.0/user', unchanged), { status: 200 })
  t.match(await api.callWith(ada, 'PUT', `/1.0/users/${ADA}`, {}), { status: 200 })
  t.match(await api.callWith(ada, 'PUT', '/1.0/user', { ssh_key: NEW_KEY }), { status: 200 })
  t.match(api.audit.slice(lines), [
    { id: ADA, changed: false },
    { id: ADA, changed: false },
    { user: ADA, route: '/1.0/user', id: ADA, set: ['ssh_key'], changed: undefined },
  ])
})

t.test('a changed key goes into new servers only', async (t) => {
  const create = async () =>
    ((await api.call('POST', '/1.0/servers', { image: 'img-deb12' }, TWO)).body as { id: string }).id
  const keys = async (id: string) =>
    (await db.selectFrom('server_keys').select('key').where('server_id', '=', id).orderBy('user_id').execute()).map(
      ({ key }) => key,
    )
  const before = await create()
  t.equal((await api.callWith(ada, 'PUT', '/1.0/user', { ssh_key: NEW_KEY })).status, 200)
  const after = await create()
  t.strictSame(
    [await keys(before), await keys(after)],
    [
      [ADAS_KEY, GRACES_KEY],
      [NEW_KEY, GRACES_KEY],
    ],
  )
})
