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
    t.match({ status, body }, { status: 400, body: { error_name: 'bad_request', errors: [/account_id is missing/] } }, url)
  }
})

t.test('the account of another user is 404', async (t) => {
  for (const account of [ONE, 'acc-none1']) {
    for (const url of ['/1.0/servers', '/1.0/users', '/1.0/accounts']) {
      t.match(await api.callWith(grace, 'GET', `${url}?account_id=${account}`), { status: 404, body: { error_name: 'resource_not_found' } }, `${url} ${account}`)
    }
  }
  t.match(await api.callWith(grace, 'GET', `/1.0/accounts/${ONE}`), { status: 404 })
})

t.test('without account_id a user sees all of the user\'s accounts, and their users', async (t) => {
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/accounts')), [ONE, TWO])
  t.strictSame(idsOf(await api.callWith(grace, 'GET', '/1.0/accounts')), [TWO])
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/users')), [ADA, GRACE])
  t.strictSame(idsOf(await api.callWith(ada, 'GET', `/1.0/accounts?account_id=${TWO}`)), [TWO])
  t.match(await api.callWith(grace, 'GET', '/1.0/user'), { status: 200, body: { id: GRACE, accounts: [{ id: TWO }], default_account: { id: TWO } } })
  t.match(await api.callWith(grace, 'GET', `/1.0/users/${ADA}`), { status: 200, body: { accounts: [{ id: TWO }], default_account: null } })
})

t.test('a user loses access as soon as the collaboration ends', async (t) => {
  t.equal((await api.callWith(ada, 'GET', `/1.0/servers?account_id=${TWO}`)).status, 200)
  await api.database.tables.updateTable('collaborations').set({ status: 'ended' }).where('user_id', '=', ADA).execute()
  t.equal((await api.callWith(ada, 'GET', `/1.0/servers?account_id=${TWO}`)).status, 404)
  t.strictSame(idsOf(await api.callWith(ada, 'GET', '/1.0/accounts')), [ONE])
})

t.test('the default account of a user is not one that is closed', async (t) => {
  const { tables } = api.database
  await tables.updateTable('accounts').set({ owner_id: ADA }).where('id', '=', TWO).execute()
  await tables.updateTable('accounts').set({ status: 'closed' }).where('id', '=', ONE).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: { accounts: [{ id: ONE }, { id: TWO }], default_account: { id: TWO } } })
  await tables.updateTable('accounts').set({ status: 'deleted' }).where('id', '=', TWO).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: { default_account: { id: ONE } } })
  await tables.updateTable('accounts').set({ status: 'active' }).execute()
  await tables.updateTable('accounts').set({ owner_id: GRACE }).where('id', '=', TWO).execute()
})

t.test('a user without an account can read the user\'s own profile', async (t) => {
  const { tables } = api.database
  await tables.insertInto('users').values({ id: 'usr-new03', name: 'New', email_address: 'new@example.com', email_verified: true, ssh_key: null, messaging_pref: true, password_hash: null, totp_secret: null }).execute()
  const token = await api.userToken('usr-new03')
  t.match(await api.callWith(token, 'GET', '/1.0/user'), { status: 200, body: { id: 'usr-new03', accounts: [], default_account: null } })
  t.strictSame((await api.callWith(token, 'GET', '/1.0/accounts')).body, [])
  t.strictSame((await api.callWith(token, 'GET', '/1.0/users')).body, [])
})

t.test('an API client acts for its own account, named or not', async (t) => {
  t.equal((await api.call('GET', `/1.0/servers?account_id=${ONE}`)).status, 200)
  t.equal((await api.call('GET', `/1.0/servers?account_id=${TWO}`)).status, 404)
  t.match(await api.call('GET', '/1.0/user', undefined, TWO), { body: { id: GRACE } }, CLIENT_OF[TWO])
})
