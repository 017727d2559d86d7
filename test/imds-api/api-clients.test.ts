/** API clients and OAuth applications: their forms, their secrets, and when their access tokens end. */
import t from 'tap'
import { Lookups } from '../../src/imds-api/auth/lookups.ts'
import { AccessTokens } from '../../src/imds-api/auth/tokens.ts'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import { APPLICATION, aRegion, CLIENT_OF, GRACE, ONE, secretOf, STORAGE_CLIENT } from '../support/fixtures/region.ts'
import { BASE_URL, nestedAccount, nestedApiClient, TIME } from '../support/fixtures/representations.ts'
import { aClient } from '../support/programs/api-client.ts'
import { anApi, basic, countOfLockWaits, openTransaction, rowOf, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

interface Body {
  readonly id: string
  readonly name: string
  readonly secret: string | null
  readonly revoked_at: string | null
  readonly created_at?: string
  readonly errors: readonly string[]
}

const api = await anApi(t, {
  region: aRegion({
    applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
  }),
})
const { db } = api.database
const { call, create, list: listOf } = aClient<Body>(api)
const list = () => listOf('api_clients')
const tokenFor = async (id: string, secret: string, scope = '') => {
  const { statusCode: status, body } = await api.server.inject({
    method: 'POST',
    url: '/token',
    headers: { authorization: basic(id, secret) },
    payload: { grant_type: 'client_credentials', ...(scope !== '' && { scope }) },
  })
  return {
    status,
    ...(JSON.parse(body) as { access_token: string; scope: string; error: string; error_description: string }),
  }
}
/** Creates a client and gives it a secret. */
const withSecret = async (body: object = {}) => {
  const { id } = await create('api_clients', body)
  return { id, secret: (await create(`api_clients/${id}/reset_secret`)).secret! }
}
const statusWith = async (token: string) => (await api.callWith(token, 'GET', '/1.0/account')).status

t.test('the list has collected forms, a member the full form, and neither has a secret', async (t) => {
  const collected = [CLIENT_OF[ONE], STORAGE_CLIENT].map((id) => ({
    ...nestedApiClient(id),
    account: nestedAccount(ONE),
  }))
  t.strictSame(await call('GET', 'api_clients'), { status: 200, body: collected })
  for (const client of collected)
    t.strictSame(await call('GET', `api_clients/${(client as unknown as Body).id}`), {
      status: 200,
      body: { ...client, secret: null },
    })
})

t.test('a client is created with what the request says, else with empty texts and the group full', async (t) => {
  for (const [body, expected] of [
    [undefined, { name: '', description: '', permissions_group: 'full' }],
    [
      { name: 'dev client', description: 'From\nmy laptop' },
      { name: 'dev client', description: 'From\nmy laptop', permissions_group: 'full' },
    ],
    [
      { name: 'backup', permissions_group: 'storage', colour: 'red' },
      { name: 'backup', description: '', permissions_group: 'storage' },
    ],
    [
      { description: null, id: 'cli-mine1', secret: 'x', revoked_at: '2026-01-05T09:30:00Z' },
      { name: '', description: '', permissions_group: 'full' },
    ],
  ]) {
    const {
      status,
      body: { id, ...client },
    } = await call('POST', 'api_clients', body)
    t.equal(status, 201)
    t.match(id, /^cli-[0-9a-z]{5}$/)
    t.strictSame(
      { id, ...client },
      {
        id,
        resource_type: 'api_client',
        url: `https://api.gb1.example.com/1.0/api_clients/${id}`,
        ...expected,
        secret: null,
        revoked_at: null,
        account: nestedAccount(ONE),
      },
    )
    t.strictSame((await call('GET', `api_clients/${id}`)).body, { id, ...client })
    t.ok((await list()).some((one) => one.id === id))
    t.match((await call('GET', 'account')).body, {
      clients: (await list()).map((one) => ({ id: one.id })).sort((a, b) => (a.id < b.id ? -1 : 1)),
    })
  }
})

t.test('PUT changes the fields that it has', async (t) => {
  const { body: before } = await call('POST', 'api_clients', { name: 'a', description: 'b' })
  for (const change of [
    {},
    { name: 'c' },
    { description: 'd' },
    { permissions_group: 'storage' },
    { name: '', description: '' },
    { description: 'e', permissions_group: 'full' },
  ]) {
    const { body: expected } = await call('GET', `api_clients/${before.id}`)
    t.strictSame(await call('PUT', `api_clients/${before.id}`, change), {
      status: 200,
      body: { ...expected, ...change },
    })
  }
  t.match((await call('PUT', `api_clients/${before.id}`, { description: null })).body, { description: '' })
})

t.test('a new client has no secret: reset_secret gives it one, in that response only', async (t) => {
  const { id } = await create('api_clients', { name: 'x' })
  for (const guess of ['', 'null', 'undefined', id]) t.equal((await tokenFor(id, guess)).status, 401)
  const { status, body } = await call('POST', `api_clients/${id}/reset_secret`)
  t.equal(status, 200)
  t.match(body.secret, /^[A-Za-z0-9_-]{27}$/)
  t.ok(`${id}:${body.secret!}`.length <= 45, 'fog sends it in one line of base64')
  t.strictSame((await call('GET', `api_clients/${id}`)).body, { ...body, secret: null })
  t.notMatch(JSON.stringify(await list()), new RegExp(body.secret!))
  t.strictSame((await rowOf(db, 'api_clients', id)).secret_sha256, digest(body.secret!))
  const token = await tokenFor(id, body.secret!)
  t.match(token, { status: 200, scope: 'infrastructure, orbit' })
  t.equal(await statusWith(token.access_token), 200)
})

t.test('after reset_secret the old secret is wrong, and tokens that were issued stay valid', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token } = await tokenFor(id, secret)
  const {
    body: { secret: second },
  } = (await api.callWith(access_token, 'POST', `/1.0/api_clients/${id}/reset_secret`)) as { body: Body }
  t.not(second, secret)
  t.match(await tokenFor(id, secret), { status: 401, error: 'invalid_client' })
  t.equal((await tokenFor(id, second!)).status, 200)
  t.equal(await statusWith(access_token), 200)
})

t.test('DELETE answers the member with revoked_at, and ends the tokens of the client at once', async (t) => {
  const { id, secret } = await withSecret({ name: 'gone' })
  const { body: before } = await call('GET', `api_clients/${id}`)
  const { access_token } = await tokenFor(id, secret)
  t.equal(await statusWith(access_token), 200, 'and the check is remembered')
  const { status, body } = await call('DELETE', `api_clients/${id}`)
  t.equal(status, 200)
  t.match(body.revoked_at, TIME)
  t.strictSame(body, { ...before, revoked_at: body.revoked_at })
  const { status: ended, headers, body: answer } = await api.callWith(access_token, 'GET', '/1.0/account')
  t.match(
    { ended, headers, answer },
    { ended: 401, headers: { 'www-authenticate': /error="invalid_token"/ }, answer: { error: 'invalid_token' } },
  )
  t.match(await tokenFor(id, secret), { status: 401, error: 'invalid_client' })
  t.strictSame(await call('GET', `api_clients/${id}`), { status: 200, body }, 'it can still be read')
  t.notOk(
    (await list()).some((client) => client.id === id),
    'but not listed',
  )
  t.notMatch(JSON.stringify((await call('GET', 'account')).body), new RegExp(id))
  for (const [method, path] of [
    ['PUT', ''],
    ['DELETE', ''],
    ['POST', '/reset_secret'],
  ] as const) {
    t.strictSame(
      await call(method, `api_clients/${id}${path}`, {}),
      { status: 409, body: { error_name: 'resource_conflict', errors: [`${id} is deleted`] } },
      method,
    )
  }
})

t.test('a check that began before a change is not remembered after it', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token } = await tokenFor(id, secret)
  const tokens = new AccessTokens(
    db,
    () => Date.now(),
    () => performance.now(),
    new Lookups(),
  )
  const check = tokens.check(access_token, '')
  tokens.clearCache()
  t.match(await check, { kind: 'valid' })
  await setRow(db, 'api_clients', id, { revoked_at: new Date() })
  t.strictSame(await tokens.check(access_token, ''), { kind: 'unknown' })
})

t.test('an API client may delete itself', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token } = await tokenFor(id, secret)
  t.match(await api.callWith(access_token, 'DELETE', `/1.0/api_clients/${id}`), {
    status: 200,
    body: { id, revoked_at: TIME },
  })
  t.equal(await statusWith(access_token), 401)
})

t.test('a client of the group storage gets no scope infrastructure, and its tokens lose it at once', async (t) => {
  const { id, secret } = await withSecret()
  const [both, infrastructure] = [await tokenFor(id, secret), await tokenFor(id, secret, 'infrastructure')]
  for (const { access_token } of [both, infrastructure]) t.equal(await statusWith(access_token), 200)
  t.equal(
    (await api.callWith(both.access_token, 'PUT', `/1.0/api_clients/${id}`, { permissions_group: 'storage' })).status,
    200,
  )
  for (const [{ access_token }, scopes] of [
    [both, 'orbit'],
    [infrastructure, ''],
  ] as const) {
    const { status, headers, body } = await api.callWith(access_token, 'GET', '/1.0/account')
    t.match({ status, body }, { status: 403, body: { error_name: 'insufficient_scope' } })
    t.equal(headers['x-oauth-scopes'], scopes)
  }
  t.match(await tokenFor(id, secret), { status: 200, scope: 'orbit' })
  t.match(await tokenFor(id, secret, 'infrastructure'), { status: 400, error: 'invalid_scope' })
  await call('PUT', `api_clients/${id}`, { permissions_group: 'full' })
  t.equal(await statusWith(both.access_token), 200, 'it has the scope again')
})

t.test('a client has limits in its representation only once they are set, and loses them again', async (t) => {
  const { id } = await withSecret()
  t.notMatch(Object.keys((await call('GET', `api_clients/${id}`)).body), ['read_only', 'expires_at', 'allow_access'])
  const limits = { read_only: true, expires_at: '2126-11-20T15:04:05Z', allow_access: ['192.0.2.0/24', '2001:db8::1'] }
  t.match(await call('PUT', `api_clients/${id}`, limits), { status: 200, body: limits })
  t.match(await call('PUT', `api_clients/${id}`, { name: 'b' }), { status: 200, body: limits })
  const none = await call('PUT', `api_clients/${id}`, { read_only: false, expires_at: null, allow_access: [] })
  t.notMatch(Object.keys(none.body), ['read_only', 'expires_at', 'allow_access'])
  t.match(await call('POST', 'api_clients', limits), { status: 201, body: limits })
})

t.test('wrong limits are refused with the rule', async (t) => {
  const body = {
    read_only: 1,
    expires_at: '2026-02-30T00:00:00Z',
    allow_access: ['192.0.2.0/33', 'example.com', '::1%eth0'],
  }
  const refused = await call('POST', 'api_clients', body)
  t.equal(refused.status, 422)
  t.match(refused.body.errors, [
    /^read_only must be a boolean/,
    /^expires_at must be a time such as/,
    ...[0, 1, 2].map((i) => new RegExp(`^allow_access\\.${i} must be an address or a network such as`)),
  ])
  const many = { allow_access: Array.from({ length: 33 }, () => '192.0.2.1') }
  t.match(await call('POST', 'api_clients', many), { status: 422, body: { errors: [/^allow_access/] } })
})

t.test('a read_only client may send only GET and HEAD, from the next request on', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token: token } = await tokenFor(id, secret)
  t.equal((await api.callWith(token, 'POST', '/1.0/server_groups', { name: 'a' })).status, 202)
  await call('PUT', `api_clients/${id}`, { read_only: true })
  t.equal(await statusWith(token), 200)
  for (const [method, path] of [
    ['POST', 'server_groups'],
    ['PUT', `api_clients/${id}`],
    ['DELETE', `api_clients/${id}`],
    ['POST', `api_clients/${id}/reset_secret`],
  ] as const)
    t.match(await api.callWith(token, method, `/1.0/${path}`, {}), {
      status: 403,
      body: { error_name: 'forbidden', errors: ['this API client is read_only: it may send only GET and HEAD'] },
    })
  t.match((await call('GET', `api_clients/${id}`)).body, { read_only: true, revoked_at: null })
})

t.test('an expired client gets no tokens, and those that it has end', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token: token } = await tokenFor(id, secret)
  t.equal(await statusWith(token), 200)
  await call('PUT', `api_clients/${id}`, { expires_at: '2026-11-20T15:04:05Z' })
  t.equal(await statusWith(token), 401)
  t.match(await tokenFor(id, secret), { status: 401, error: 'invalid_client', error_description: /has expired/ })
  t.match(await tokenFor(id, 'wrong'), { status: 401, error_description: "the client's id or secret is wrong" })
  await call('PUT', `api_clients/${id}`, { expires_at: '2126-11-20T15:04:05Z' })
  t.equal(await statusWith(token), 200)
})

t.test('a client with allow_access is refused from other networks, for tokens and for requests', async (t) => {
  const { id, secret } = await withSecret()
  const { access_token: token } = await tokenFor(id, secret) // from 127.0.0.1, the address of injected requests
  await call('PUT', `api_clients/${id}`, { allow_access: ['192.0.2.0/24'] })
  t.match(await api.callWith(token, 'GET', '/1.0/account'), { status: 403, body: { error_name: 'forbidden' } })
  t.match(await tokenFor(id, secret), { status: 401, error_description: /may not be used from this address/ })
  await call('PUT', `api_clients/${id}`, { allow_access: ['192.0.2.0/24', '127.0.0.0/8'] })
  t.equal(await statusWith(token), 200)
  t.equal((await tokenFor(id, secret)).status, 200)
})

t.test('reset_secret with keep_old_seconds keeps the former secret for that time, and no older one', async (t) => {
  const { id, secret: first } = await withSecret()
  const reset = async (body?: object) => (await call('POST', `api_clients/${id}/reset_secret`, body)).body.secret!
  const second = await reset({ keep_old_seconds: 3600 })
  t.same([(await tokenFor(id, first)).status, (await tokenFor(id, second)).status], [200, 200])
  const third = await reset({ keep_old_seconds: 3600 })
  const statuses = async () => Promise.all([first, second, third].map(async (one) => (await tokenFor(id, one)).status))
  t.same(await statuses(), [401, 200, 200])
  await setRow(db, 'api_clients', id, { former_secret_until: new Date() })
  t.same(await statuses(), [401, 401, 200])
  await reset({ keep_old_seconds: 3600 })
  const last = await reset()
  t.same([(await tokenFor(id, third)).status, (await tokenFor(id, last)).status], [401, 200], 'as before without it')
  t.match(await call('POST', `api_clients/${id}/reset_secret`, { keep_old_seconds: 604_801 }), { status: 422 })
})

/** Signs Grace in with an application. */
const signIn = async (application: string, secret: string) => {
  const { statusCode, body } = await api.server.inject({
    method: 'POST',
    url: '/token',
    headers: { authorization: basic(application, secret) },
    payload: { grant_type: 'password', username: GRACE, password: secretOf(GRACE) },
  })
  return { status: statusCode, token: (JSON.parse(body) as { access_token: string }).access_token }
}
/** Creates an application with a secret. */
const anApplication = async () => {
  const { id } = await create('applications')
  return { id, secret: (await create(`applications/${id}/reset_secret`)).secret! }
}

t.test('an application has the fields that clients read; its secret is null', async (t) => {
  const { status, body } = await call('POST', 'applications', {
    name: 'Mobile',
    description: 'An app',
    secret: 'mine',
    unknown: 1,
  })
  t.equal(status, 201)
  const { id, created_at, ...rest } = body
  t.match(id, /^app-[0-9a-z]{5}$/)
  t.match(created_at, TIME)
  t.strictSame(rest, {
    resource_type: 'application',
    url: `${BASE_URL}/1.0/applications/${id}`,
    name: 'Mobile',
    description: 'An app',
    revoked_at: null,
    secret: null,
    account: nestedAccount(ONE),
  })
  t.strictSame((await call('GET', `applications/${id}`)).body, body)
  const all = await listOf('applications')
  t.strictSame(
    all.map((one) => one.id),
    [APPLICATION, id],
  )
  t.strictSame({ ...all[1], secret: null }, body)
  t.notOk('secret' in all[1]!)
  t.match(await call('PUT', `applications/${id}`, { name: 'Tablet' }), {
    status: 200,
    body: { name: 'Tablet', description: 'An app', secret: null },
  })
  t.match(await call('PUT', `applications/${id}`, { description: null }), {
    status: 200,
    body: { name: 'Tablet', description: '' },
  })
  t.match(await call('POST', 'applications'), { status: 201, body: { name: '', description: '' } })
  for (const wrong of [{ name: 1 }, { name: 'a\nb' }, { name: 'x'.repeat(256) }, { description: 'x'.repeat(4097) }])
    t.equal((await call('POST', 'applications', wrong)).status, 422)
})

t.test('reset_secret shows a secret once; users sign in with the newest, and their tokens stay valid', async (t) => {
  const { id } = await create('applications')
  t.equal((await signIn(id, '')).status, 401, 'a new application has no secret')
  const reset = async () => {
    const { status, body } = await call('POST', `applications/${id}/reset_secret`)
    t.equal(status, 200)
    return body.secret!
  }
  const first = await reset()
  t.ok(`${id}:${first}`.length <= 45, 'fog takes no longer ones')
  const { status, token } = await signIn(id, first)
  t.equal(status, 200)
  const second = await reset()
  t.equal((await signIn(id, first)).status, 401)
  t.equal((await signIn(id, second)).status, 200)
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 200)
  t.match(await call('GET', `applications/${id}`), { body: { secret: null } })
})

t.test('deleting an application ends the tokens of its users at once, and those of no other', async (t) => {
  const { id, secret } = await anApplication()
  const { token } = await signIn(id, secret)
  const { token: other } = await signIn(APPLICATION, secretOf(APPLICATION))
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 200)
  t.match(await call('DELETE', `applications/${id}`), {
    status: 200,
    body: { id, secret: null, revoked_at: /^\d{4}-/ },
  })
  t.equal((await api.callWith(token, 'GET', '/1.0/user')).status, 401)
  t.equal((await signIn(id, secret)).status, 401)
  t.equal((await api.callWith(other, 'GET', '/1.0/user')).status, 200)
  t.match(await call('GET', `applications/${id}`), { status: 200, body: { revoked_at: /^\d{4}-/ } })
  t.notOk((await listOf('applications')).some((one) => one.id === id))
  for (const [method, path] of [
    ['DELETE', ''],
    ['PUT', ''],
    ['POST', '/reset_secret'],
  ] as const)
    t.equal((await call(method, `applications/${id}${path}`, {})).status, 409, method)
})

t.test('a sign-in that began before its application was deleted gets no token', async (t) => {
  const { id, secret } = await anApplication()
  const open = await openTransaction(db)
  await open.selectFrom('users').select('id').where('id', '=', GRACE).forUpdate().execute()
  const signingIn = signIn(id, secret)
  await until(async () => (await countOfLockWaits(api.database.pool)) === 1, 'the sign-in to wait for its user')
  t.equal((await call('DELETE', `applications/${id}`)).status, 200)
  await open.commit().execute()
  t.equal((await signingIn).status, 401)
  t.strictSame(await db.selectFrom('token_families').select('id').where('application_id', '=', id).execute(), [])
})
