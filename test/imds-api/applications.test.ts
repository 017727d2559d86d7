/** OAuth applications: their representation, their secrets, and what their deletion ends. */
import t from 'tap'
import { ADA, APPLICATION, aRegion, GRACE, ONE, secretOf, TWO } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { anApi, basic, countOfLockWaits } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const api = await anApi(t, {
  region: aRegion({
    applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
  }),
})

interface Application {
  readonly id: string
  readonly secret: string | null
}
const create = async (body: object = {}) => (await api.call('POST', '/1.0/applications', body)).body as Application
const signIn = async (application: string, secret: string) => {
  const { statusCode, body } = await api.server.inject({
    method: 'POST',
    url: '/token',
    headers: { authorization: basic(application, secret) },
    payload: { grant_type: 'password', username: GRACE, password: secretOf(GRACE) },
  })
  return { status: statusCode, token: (JSON.parse(body) as { access_token: string }).access_token }
}

t.test('an application has the fields that clients read; its secret is null', async (t) => {
  const { status, body } = await api.call('POST', '/1.0/applications', {
    name: 'Mobile',
    description: 'An app',
    secret: 'mine',
    unknown: 1,
  })
  t.equal(status, 201)
  const { id, created_at, ...rest } = body as { id: string; created_at: string }
  t.match(id, /^app-[0-9a-z]{5}$/)
  t.match(created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/)
  t.strictSame(rest, {
    resource_type: 'application',
    url: `${BASE_URL}/1.0/applications/${id}`,
    name: 'Mobile',
    description: 'An app',
    revoked_at: null,
    secret: null,
    account: {
      id: ONE,
      resource_type: 'account',
      url: `${BASE_URL}/1.0/accounts/${ONE}`,
      name: 'Analytical Engines',
      status: 'active',
    },
  })
  t.strictSame((await api.call('GET', `/1.0/applications/${id}`)).body, body)
  const list = (await api.call('GET', '/1.0/applications')).body as Application[]
  t.strictSame(
    list.map((one) => one.id),
    [APPLICATION, id],
  )
  t.strictSame({ ...list[1], secret: null }, body)
  t.notOk('secret' in list[1]!)
  t.match(await api.call('PUT', `/1.0/applications/${id}`, { name: 'Tablet' }), {
    status: 200,
    body: { name: 'Tablet', description: 'An app', secret: null },
  })
  t.match(await api.call('PUT', `/1.0/applications/${id}`, { description: null }), {
    status: 200,
    body: { name: 'Tablet', description: '' },
  })
  t.match(await api.call('POST', '/1.0/applications'), { status: 201, body: { name: '', description: '' } })
  for (const wrong of [{ name: 1 }, { name: 'a\nb' }, { name: 'x'.repeat(256) }, { description: 'x'.repeat(4097) }])
    t.equal((await api.call('POST', '/1.0/applications', wrong)).status, 422)
})

t.test('reset_secret shows a secret once; users sign in with the newest, and their tokens stay valid', async (t) => {
  const { id } = await create()
  t.equal((await signIn(id, '')).status, 401, 'a new application has no secret')
  const reset = async () => {
    const { status, body } = await api.call('POST', `/1.0/applications/${id}/reset_secret`)
    t.equal(status, 200)
    return (body as Application).secret!
  }
  const first = await reset()
  t.ok(`${id}:${first}`.length <= 45, 'fog takes no longer ones')
  const { status, token } = await signIn(id, first)
  t.equal(status, 200)
  const second = await reset()
  t.equal((await signIn(id, first)).status, 401)
  t.equal((await signIn(id, second)).status, 200)
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 200)
  t.match(await api.call('GET', `/1.0/applications/${id}`), { body: { secret: null } })
})

t.test('deleting an application ends the tokens of its users at once, and those of no other', async (t) => {
  const { id } = await create()
  const secret = ((await api.call('POST', `/1.0/applications/${id}/reset_secret`)).body as Application).secret!
  const { token } = await signIn(id, secret)
  const { token: other } = await signIn(APPLICATION, secretOf(APPLICATION))
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 200)
  t.match(await api.call('DELETE', `/1.0/applications/${id}`), {
    status: 200,
    body: { id, secret: null, revoked_at: /^\d{4}-/ },
  })
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 401)
  t.equal((await signIn(id, secret)).status, 401)
  t.equal((await api.callWith(other, 'GET', '/1.0/user')).status, 200)
  t.match(await api.call('GET', `/1.0/applications/${id}`), { status: 200, body: { revoked_at: /^\d{4}-/ } })
  t.notOk(((await api.call('GET', '/1.0/applications')).body as Application[]).some((one) => one.id === id))
  for (const [method, path] of [
    ['DELETE', ''],
    ['PUT', ''],
    ['POST', '/reset_secret'],
  ] as const)
    t.equal((await api.call(method, `/1.0/applications/${id}${path}`, {})).status, 409, method)
})

t.test('a sign-in that began before its application was deleted gets no token', async (t) => {
  const { id } = await create()
  const secret = ((await api.call('POST', `/1.0/applications/${id}/reset_secret`)).body as Application).secret!
  const { db, pool } = api.database
  const open = await db.startTransaction().execute()
  await open.selectFrom('users').select('id').where('id', '=', GRACE).forUpdate().execute()
  const signingIn = signIn(id, secret)
  await until(async () => (await countOfLockWaits(pool)) === 1, 'the sign-in to wait for its user')
  t.equal((await api.call('DELETE', `/1.0/applications/${id}`)).status, 200)
  await open.commit().execute()
  t.equal((await signingIn).status, 401)
  t.strictSame(await db.selectFrom('token_families').select('id').where('application_id', '=', id).execute(), [])
})

t.test('an application of another account does not exist', async (t) => {
  const { id } = await create()
  for (const [method, path] of [
    ['GET', ''],
    ['PUT', ''],
    ['DELETE', ''],
    ['POST', '/reset_secret'],
  ] as const) {
    t.match(
      await api.call(method, `/1.0/applications/${id}${path}`, method === 'GET' ? undefined : {}, TWO),
      { status: 404, body: { error_name: 'resource_not_found' } },
      method,
    )
  }
  t.strictSame((await api.call('GET', '/1.0/applications', undefined, TWO)).body, [])
  t.equal((await api.callWith(await api.userToken(GRACE), 'GET', `/1.0/applications?account_id=${ONE}`)).status, 404)
  t.equal(
    (await api.callWith(await api.userToken(ADA), 'DELETE', `/1.0/applications/${id}?account_id=${ONE}`)).status,
    200,
  )
})

t.test('in a suspended account applications can lose their secret and be deleted, and nothing else', async (t) => {
  const { id } = await create()
  const { db } = api.database
  await db.updateTable('accounts').set({ status: 'suspended' }).where('id', '=', ONE).execute()
  for (const [method, path] of [
    ['POST', ''],
    ['PUT', `/${id}`],
  ] as const)
    t.match(await api.call(method, `/1.0/applications${path}`, {}), {
      status: 403,
      body: { error_name: 'account_not_active' },
    })
  t.equal((await api.call('POST', `/1.0/applications/${id}/reset_secret`)).status, 200)
  t.equal((await api.call('DELETE', `/1.0/applications/${id}`)).status, 200)
})
