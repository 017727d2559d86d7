/** API clients: their forms, their secrets, and when their access tokens end. */
import t from 'tap'
import { AccessTokens } from '../../src/imds-api/auth/tokens.ts'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import { ADA, CLIENT_OF, GRACE, ONE, secretOf, STORAGE_CLIENT, TWO } from '../support/fixtures/region.ts'
import { nestedAccount, nestedApiClient, TIME } from '../support/fixtures/representations.ts'
import { anApi, basic } from '../support/programs/api.ts'

interface Body {
  readonly id: string
  readonly name: string
  readonly secret: string | null
  readonly revoked_at: string | null
  readonly errors: readonly string[]
}

const api = await anApi(t)
const { db } = api.database
const [ada, grace] = [await api.userToken(ADA), await api.userToken(GRACE)]
const call = async (
  method: 'GET' | 'POST' | 'PUT' | 'DELETE',
  path: string,
  body?: unknown,
  account: typeof ONE | typeof TWO = ONE,
) => {
  const { status, body: answer } = await api.call(method, `/1.0/${path}`, body, account)
  return { status, body: answer as Body }
}
const list = async () => (await call('GET', 'api_clients')).body as unknown as Body[]
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
const aClient = async (body: object = {}) => {
  const {
    status,
    body: { id },
  } = await call('POST', 'api_clients', body)
  if (status !== 201) throw new Error(`status ${String(status)}`)
  return { id, secret: (await call('POST', `api_clients/${id}/reset_secret`)).body.secret! }
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

t.test('wrong fields are refused, all at once', async (t) => {
  const { id } = await aClient()
  for (const [body, errors] of [
    [
      { name: 1, description: 2, permissions_group: 'admin' },
      ['name must be a string', 'description must be a string', 'permissions_group must be "full" or "storage"'],
    ],
    [{ name: 'x'.repeat(256) }, ['name must have at most 255 characters']],
    [{ name: 'a\nb' }, ['name must be one line without control characters']],
    [{ name: null }, ['name must be a string']],
    [{ description: 'x'.repeat(4097) }, ['description must have at most 4096 characters']],
    [{ permissions_group: null }, ['permissions_group must be "full" or "storage"']],
  ] as const) {
    for (const [method, path] of [
      ['POST', 'api_clients'],
      ['PUT', `api_clients/${id}`],
    ] as const) {
      t.match(
        await call(method, path, body),
        { status: 422, body: { error_name: 'unprocessable_entity', errors } },
        JSON.stringify(body),
      )
    }
  }
})

t.test('a new client has no secret: reset_secret gives it one, in that response only', async (t) => {
  const {
    body: { id },
  } = await call('POST', 'api_clients', { name: 'x' })
  for (const guess of ['', 'null', 'undefined', id]) t.equal((await tokenFor(id, guess)).status, 401)
  const { status, body } = await call('POST', `api_clients/${id}/reset_secret`)
  t.equal(status, 200)
  t.match(body.secret, /^[A-Za-z0-9_-]{27}$/)
  t.ok(`${id}:${body.secret!}`.length <= 45, 'fog sends it in one line of base64')
  t.strictSame((await call('GET', `api_clients/${id}`)).body, { ...body, secret: null })
  t.notMatch(JSON.stringify(await list()), new RegExp(body.secret!))
  t.strictSame(
    (await db.selectFrom('api_clients').select('secret_sha256').where('id', '=', id).executeTakeFirstOrThrow())
      .secret_sha256,
    digest(body.secret!),
  )
  const token = await tokenFor(id, body.secret!)
  t.match(token, { status: 200, scope: 'infrastructure, orbit' })
  t.equal(await statusWith(token.access_token), 200)
})

t.test('after reset_secret the old secret is wrong, and tokens that were issued stay valid', async (t) => {
  const { id, secret } = await aClient()
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
  const { id, secret } = await aClient({ name: 'gone' })
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

t.test('another process sees a DELETE when its cache of one second ends', async (t) => {
  const { id, secret } = await aClient()
  const { access_token } = await tokenFor(id, secret)
  let steadyMs = 5_000
  const another = new AccessTokens(
    db,
    () => Date.now(),
    () => steadyMs,
  )
  t.match(await another.check(access_token), { kind: 'valid' })
  await call('DELETE', `api_clients/${id}`)
  steadyMs += 1_001
  t.strictSame(await another.check(access_token), { kind: 'unknown' })
})

t.test('a check that began before a change is not remembered after it', async (t) => {
  const { id, secret } = await aClient()
  const { access_token } = await tokenFor(id, secret)
  const tokens = new AccessTokens(
    db,
    () => Date.now(),
    () => performance.now(),
  )
  const check = tokens.check(access_token)
  tokens.clearCache()
  t.match(await check, { kind: 'valid' })
  await db.updateTable('api_clients').set({ revoked_at: new Date() }).where('id', '=', id).execute()
  t.strictSame(await tokens.check(access_token), { kind: 'unknown' })
})

t.test('an API client may delete itself', async (t) => {
  const { id, secret } = await aClient()
  const { access_token } = await tokenFor(id, secret)
  t.match(await api.callWith(access_token, 'DELETE', `/1.0/api_clients/${id}`), {
    status: 200,
    body: { id, revoked_at: TIME },
  })
  t.equal(await statusWith(access_token), 401)
})

t.test('a client of the group storage gets no scope infrastructure, and its tokens lose it at once', async (t) => {
  const { id, secret } = await aClient()
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

t.test('every endpoint: another account, a client of the object storage, the owner and a collaborator', async (t) => {
  const {
    body: { id },
  } = await call('POST', 'api_clients', { name: 'of two' }, TWO)
  const endpoints = [
    ['GET', ''],
    ['POST', ''],
    ['GET', `/${id}`],
    ['PUT', `/${id}`],
    ['POST', `/${id}/reset_secret`],
    ['DELETE', `/${id}`],
  ] as const
  const storage = await api.token(STORAGE_CLIENT)
  for (const [method, path] of endpoints) {
    const name = `${method} ${path}`
    t.match(
      await api.callWith(storage, method, `/1.0/api_clients${path}`, method === 'GET' ? undefined : {}),
      { status: 403, body: { error_name: 'insufficient_scope' } },
      name,
    )
    t.match(
      await api.callWith(grace, method, `/1.0/api_clients${path}?account_id=${ONE}`),
      { status: 404, body: { errors: ['this account does not exist'] } },
      name,
    )
    if (path !== '') {
      const missing = {
        status: 404,
        body: { error_name: 'resource_not_found', errors: [`the API client ${id} does not exist`] },
      }
      t.strictSame(await call(method, `api_clients${path}`), missing, name)
      t.match(await api.callWith(ada, method, `/1.0/api_clients${path}?account_id=${ONE}`), missing, name)
      t.match(
        await call(method, `api_clients${path.replace(id, 'cli-00000')}`),
        { status: 404, body: { errors: ['the API client cli-00000 does not exist'] } },
        name,
      )
    }
  }
  t.match((await call('GET', `api_clients/${id}`, undefined, TWO)).body, { name: 'of two', revoked_at: null })
  for (const token of [ada, grace]) {
    // a collaborator, and the owner
    const made = (await api.callWith(token, 'POST', `/1.0/api_clients?account_id=${TWO}`, { name: 'mine' }))
      .body as Body
    for (const [method, path, status] of [
      ['GET', '', 200],
      ['PUT', '', 200],
      ['POST', '/reset_secret', 200],
      ['DELETE', '', 200],
    ] as const) {
      t.equal(
        (await api.callWith(token, method, `/1.0/api_clients/${made.id}${path}?account_id=${TWO}`)).status,
        status,
        method,
      )
    }
    t.equal((await api.callWith(token, 'GET', `/1.0/api_clients?account_id=${TWO}`)).status, 200)
  }
})

t.test('the secret of the region file works until it is reset', async (t) => {
  const id = CLIENT_OF[TWO]
  t.equal((await tokenFor(id, secretOf(id))).status, 200)
  const {
    body: { secret },
  } = await call('POST', `api_clients/${id}/reset_secret`, undefined, TWO)
  t.equal((await tokenFor(id, secretOf(id))).status, 401)
  t.equal((await tokenFor(id, secret!)).status, 200)
})

t.test('a client has limits in its representation only once they are set, and loses them again', async (t) => {
  const { id } = await aClient()
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
    ...[0, 1, 2].map((i) => new RegExp(`^allow_access\\.${String(i)} must be an address or a network such as`)),
  ])
  const many = { allow_access: Array.from({ length: 33 }, () => '192.0.2.1') }
  t.match(await call('POST', 'api_clients', many), { status: 422, body: { errors: [/^allow_access/] } })
})

t.test('a read_only client may send only GET and HEAD, from the next request on', async (t) => {
  const { id, secret } = await aClient()
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
  const { id, secret } = await aClient()
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
  const { id, secret } = await aClient()
  const { access_token: token } = await tokenFor(id, secret) // from 127.0.0.1, the address of injected requests
  await call('PUT', `api_clients/${id}`, { allow_access: ['192.0.2.0/24'] })
  t.match(await api.callWith(token, 'GET', '/1.0/account'), { status: 403, body: { error_name: 'forbidden' } })
  t.match(await tokenFor(id, secret), { status: 401, error_description: /may not be used from this address/ })
  await call('PUT', `api_clients/${id}`, { allow_access: ['192.0.2.0/24', '127.0.0.0/8'] })
  t.equal(await statusWith(token), 200)
  t.equal((await tokenFor(id, secret)).status, 200)
})

t.test('reset_secret with keep_old_seconds keeps the former secret for that time, and no older one', async (t) => {
  const { id, secret: first } = await aClient()
  const reset = async (body?: object) => (await call('POST', `api_clients/${id}/reset_secret`, body)).body.secret!
  const second = await reset({ keep_old_seconds: 3600 })
  t.same([(await tokenFor(id, first)).status, (await tokenFor(id, second)).status], [200, 200])
  const third = await reset({ keep_old_seconds: 3600 })
  const statuses = async () => Promise.all([first, second, third].map(async (one) => (await tokenFor(id, one)).status))
  t.same(await statuses(), [401, 200, 200])
  await db.updateTable('api_clients').set({ former_secret_until: new Date() }).where('id', '=', id).execute()
  t.same(await statuses(), [401, 401, 200])
  await reset({ keep_old_seconds: 3600 })
  const last = await reset()
  t.same([(await tokenFor(id, third)).status, (await tokenFor(id, last)).status], [401, 200], 'as before without it')
  t.match(await call('POST', `api_clients/${id}/reset_secret`, { keep_old_seconds: 604_801 }), { status: 422 })
})
