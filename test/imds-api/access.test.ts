/**
 * Who is let in, and for which account: every route of the API, with tokens that must open nothing. The routes come from
 * the router, so a new one is tested too.
 */
import { once } from 'node:events'
import type { IncomingMessage } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import {
  ADA,
  APPLICATION,
  aRegion,
  CLIENT_OF,
  DATABASE_SERVER,
  GRACE,
  ONE,
  STORAGE_CLIENT,
  TWO,
  WITH_DATABASE_SERVER,
} from '../support/fixtures/region.ts'
import { ALL_ROWS } from '../../src/imds-api/model/resources.ts'
import { routesOf, type Route } from '../support/fixtures/routes.ts'
import { anApi, type ApiAnswer } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

/** An image of ONE alone. */
const IMAGE = 'img-one01'
const api = await anApi(t, {
  region: aRegion({
    ...WITH_DATABASE_SERVER,
    images: [...aRegion().images, { id: IMAGE, account: ONE, name: 'Own', disk_size: 1024, virtual_size: 2048 }],
  }),
})
const { db } = api.database
const ROUTES = routesOf(api.server)

async function create(path: string, body: object): Promise<string> {
  const { status, body: made } = await api.call('POST', `/1.0/${path}`, body)
  if (status >= 300) throw new Error(`POST ${path}: ${status} ${JSON.stringify(made)}`)
  return (made as { id: string }).id
}

/** A resource of the account ONE for each collection. */
const server = await create('servers', { image: 'img-deb12' })
const [{ id: serverInterface }] = (await db.selectFrom('interfaces').select('id').execute()) as [{ id: string }]
const RESOURCES: Readonly<Record<string, string>> = {
  accounts: ONE,
  servers: server,
  interfaces: serverInterface,
  images: IMAGE,
  cloud_ips: await create('cloud_ips', {}),
  server_groups: await create('server_groups', {}),
  config_maps: await create('config_maps', { data: {} }),
  database_servers: DATABASE_SERVER,
  applications: await create('applications', {}),
  api_clients: await create('api_clients', {}),
  collaborations: await create('collaborations', { email: 'new@example.com', role: 'admin' }),
}

/** Bodies that are right, where one is required: the account has to be checked first. */
const BODIES: Readonly<Record<string, object>> = {
  'POST /servers': { image: 'img-deb12' },
  'POST /cloud_ips/ID/map': { destination: serverInterface },
  'POST /config_maps': { data: {} },
  'POST /collaborations': { email: 'other@example.com', role: 'admin' },
  'POST /server_groups/ID/add_servers': { servers: [] },
  'POST /server_groups/ID/remove_servers': { servers: [] },
  'POST /server_groups/ID/move_servers': { servers: [], destination: 'grp-none1' },
}
/** The resources of accounts, by the paths of their collections. The others are the same for all, or not implemented. */
const OWNED = new Map(
  ALL_ROWS.filter(({ isOfRegion, unimplemented }) => isOfRegion !== true && unimplemented !== 'all').map((row) => [
    row.path ?? row.table!,
    row,
  ]),
)
/** The ids of events count in each account: events.test.ts tests that one sees only its own. */
const OTHERS = ['events', ...ALL_ROWS.map(({ path, table }) => path ?? table!).filter((path) => !OWNED.has(path))]
const isOther = ({ path }: Route) => OTHERS.includes(path.split('/')[1]!)
/** The query that a request needs. */
function queryOf({ path }: Route): string {
  const [, collection = '', , action] = path.split('/')
  return action === 'wait' ? `?status=${OWNED.get(collection)!.states![0]!}` : ''
}

/** The user's own side: no account is chosen, and API clients are refused. */
const OWN_SIDE = ROUTES.filter(({ path }) => path.startsWith('/user/'))
const OF_ACCOUNTS = ROUTES.filter((route) => !OWN_SIDE.includes(route))

/** Sends a request for a resource, which is that of ONE unless another `id` is given. `query`: of the URL. */
async function send(token: string, { method, path }: Route, query = '', id?: string): Promise<ApiAnswer> {
  const [, collection = ''] = path.split('/')
  const url = path.replace('ID', id ?? RESOURCES[collection] ?? 'xxx-none1').replace('*', 'xxx-none1')
  return api.callWith(token, method, `/1.0${url}${query}`, BODIES[`${method} ${path}`])
}

/** Tests that every route answers as `expected`. */
async function eachRoute(
  t: Test,
  routes: readonly Route[],
  token: string,
  query: string,
  expected: object,
): Promise<void> {
  for (const route of routes) t.match(await send(token, route, query), expected, `${route.method} ${route.path}`)
}

const [ada, grace] = [await api.userToken(ADA), await api.userToken(GRACE)]
const idsOf = ({ body }: { readonly body: unknown }) => (body as { id: string }[]).map(({ id }) => id)

t.test('every resource of accounts has a route and one of ONE here', (t) => {
  for (const path of OWNED.keys()) {
    t.ok(path in RESOURCES || path === 'users', path)
    t.ok(
      ROUTES.some((route) => route.path.startsWith(`/${path}/ID`)),
      path,
    )
  }
  for (const { path } of ROUTES.filter((route) => route.path.includes('/ID') && !isOther(route))) {
    const [, collection = ''] = path.split('/')
    t.ok(collection in RESOURCES || collection === 'users' || collection === 'user', path)
  }
  t.end()
})

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

t.test('the default account of a user is not one that is closed', async (t) => {
  await db.updateTable('accounts').set({ status: 'closed' }).where('id', '=', ONE).execute()
  await db.updateTable('accounts').set({ owner_id: ADA }).where('id', '=', TWO).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), {
    body: { accounts: [{ id: ONE }, { id: TWO }], default_account: { id: TWO } },
  })
  await db.updateTable('accounts').set({ status: 'deleted' }).where('id', '=', TWO).execute()
  t.match(await api.callWith(ada, 'GET', '/1.0/user'), { body: { default_account: { id: ONE } } })
  await db.updateTable('accounts').set({ owner_id: GRACE }).where('id', '=', TWO).execute()
  await db.updateTable('accounts').set({ status: 'active' }).execute()
})

t.test('an API client acts for its own account, named once or not', async (t) => {
  t.equal((await api.call('GET', `/1.0/servers?account_id=${ONE}`)).status, 200)
  for (const query of ['account_id=', `account_id=${ONE}&account_id=${ONE}`])
    t.match(await api.call('GET', `/1.0/accounts?${query}`), {
      status: 400,
      body: { error_name: 'bad_request', errors: ['account_id must be the id of one account, given once'] },
    })
  t.match(await api.call('GET', '/1.0/user', undefined, TWO), { body: { id: GRACE } }, CLIENT_OF[TWO])
})

t.test('a storage-only client and a token for orbit get 403 insufficient_scope from every route', async (t) => {
  const orbit = await api.token(CLIENT_OF[ONE], { scope: 'orbit' })
  for (const token of [await api.token(STORAGE_CLIENT), orbit, await api.userToken(ADA, ['orbit'])]) {
    await eachRoute(t, ROUTES, token, '', {
      status: 403,
      headers: {
        'www-authenticate': 'Bearer error="insufficient_scope", scope="infrastructure"',
        'x-oauth-scopes': 'orbit',
      },
      body: { error_name: 'insufficient_scope', errors: ['the access token has no scope infrastructure'] },
    })
  }
})

t.test('for an API client of another account, no member exists, and no list has a resource of this one', async (t) => {
  const token = await api.token(CLIENT_OF[TWO])
  const ids = Object.values(RESOURCES)
  for (const route of OF_ACCOUNTS.filter((one) => !isOther(one) && !one.path.startsWith('/user'))) {
    const name = `${route.method} ${route.path}`
    const { status, body } = await send(token, route, queryOf(route))
    const [, collection = ''] = route.path.split('/')
    const id = RESOURCES[collection]
    if (route.path.includes('/ID') && id !== undefined) {
      const none = `${id.slice(0, 4)}none1`
      const { body: ofNone } = await send(token, route, queryOf(route), none)
      t.match({ status, body }, { status: /404|501/, body: { error_name: /resource_not_found|not_implemented/ } }, name)
      t.equal(JSON.stringify(ofNone), JSON.stringify(body).replaceAll(id, none), name)
    } else for (const one of ids) t.notMatch(JSON.stringify(body), one, name)
  }
  await eachRoute(t, OF_ACCOUNTS, token, `?account_id=${ONE}`, {
    status: 404,
    body: { errors: ['this account does not exist'] },
  })
  await eachRoute(t, OWN_SIDE, token, '', { status: 403, body: { error_name: 'forbidden' } })
})

t.test('a user of another account gets 404 from every route for this account', async (t) => {
  await eachRoute(t, OF_ACCOUNTS, await api.userToken(GRACE), `?account_id=${ONE}`, {
    status: 404,
    body: { errors: ['this account does not exist'] },
  })
})

/** Sends a POST without its body. Returns, once the server waits for the body, what sends it and returns the status. */
async function postWithoutBody(token: string, url: string): Promise<() => Promise<number>> {
  const { port } = api.server.server.address() as AddressInfo
  const socket = connect(port, '127.0.0.1')
  const requested = once(api.server.server, 'request') as Promise<[IncomingMessage]>
  socket.write(
    `POST ${url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n`,
  )
  const [request] = await requested
  await until(() => request.listenerCount('data') > 0, 'the server to read the body')
  return async () => {
    let text = ''
    socket.setEncoding('utf8').on('data', (part: string) => {
      text += part
    })
    socket.write('{}')
    await once(socket, 'close')
    return Number(/^HTTP\/1\.1 (\d+) /.exec(text)?.[1])
  }
}

t.test('a request whose body arrives after its access has ended changes nothing', async (t) => {
  await api.server.listen({ host: '127.0.0.1', port: 0 })
  const count = async () => (await db.selectFrom('cloud_ips').select('id').execute()).length
  const before = await count()
  const setStatus = (status: 'accepted' | 'ended') =>
    db.updateTable('collaborations').set({ status }).where('account_id', '=', TWO).execute()
  const ofCollaborator = await postWithoutBody(await api.userToken(ADA), `/1.0/cloud_ips?account_id=${TWO}`)
  await setStatus('ended')
  t.equal(await ofCollaborator(), 404)
  await setStatus('accepted')
  const id = await create('api_clients', {})
  const { secret } = (await api.call('POST', `/1.0/api_clients/${id}/reset_secret`)).body as { secret: string }
  const ofClient = await postWithoutBody(await api.token(id, { secret }), '/1.0/cloud_ips')
  t.equal((await api.call('DELETE', `/1.0/api_clients/${id}`)).status, 200)
  t.equal(await ofClient(), 401)
  t.equal(await count(), before)
})

t.test('a collaborator whose collaboration has ended gets 404 from every route', async (t) => {
  const token = await api.userToken(ADA)
  t.equal((await api.callWith(token, 'GET', `/1.0/servers?account_id=${TWO}`)).status, 200)
  await db.updateTable('collaborations').set({ status: 'ended' }).where('account_id', '=', TWO).execute()
  await eachRoute(t, OF_ACCOUNTS, token, `?account_id=${TWO}`, {
    status: 404,
    body: { errors: ['this account does not exist'] },
  })
})

t.test('an expired token, one of a revoked client, and none get 401 from every route', async (t) => {
  const [expired, revoked] = [await api.token(CLIENT_OF[ONE]), await api.token(CLIENT_OF[TWO])]
  await db
    .updateTable('access_tokens')
    .set({ expires_at: new Date(0) })
    .where('client_id', '=', CLIENT_OF[ONE])
    .execute()
  await db.updateTable('api_clients').set({ revoked_at: new Date() }).where('id', '=', CLIENT_OF[TWO]).execute()
  await eachRoute(t, ROUTES, expired, '', {
    status: 401,
    headers: { 'www-authenticate': /^Bearer .*error="token_expired"/ },
    body: { error: 'expired_token' },
  })
  await eachRoute(t, ROUTES, revoked, '', {
    status: 401,
    headers: { 'www-authenticate': /^Bearer .*error="invalid_token"/ },
    body: { error: 'invalid_token' },
  })
  await eachRoute(t, ROUTES, 'nonsense', '', { status: 401, body: { error: 'invalid_token' } })
})

t.test('tokens of an application that was deleted get 401 from every route', async (t) => {
  const token = await api.userToken(GRACE)
  await db.deleteFrom('applications').where('id', '=', APPLICATION).execute()
  await eachRoute(t, ROUTES, token, '', { status: 401, body: { error: 'invalid_token' } })
})
