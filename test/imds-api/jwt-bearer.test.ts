/** The grant jwt-bearer: a server acts as an API client that trusts it. Each rule has a test here. */
import { generateKeyPairSync, randomUUID } from 'node:crypto'
import { SignJWT } from 'jose'
import t from 'tap'
import { issuerDocuments } from '../../src/identity/issuer-documents.ts'
import { keyIdOf } from '../../src/identity/signer.ts'
import { JWT_BEARER } from '../../src/imds-api/auth/grants/jwt-bearer.ts'
import { ONE, TWO } from '../support/fixtures/region.ts'
import { BASE_URL } from '../support/fixtures/representations.ts'
import { anApi, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'

const ISSUER = `${BASE_URL}/oidc`
const keyPair = () => generateKeyPairSync('ec', { namedCurve: 'P-256' })
const [present, next, strange] = [keyPair(), keyPair(), keyPair()]
const issuer = await issuerDocuments(ISSUER, [present.publicKey, next.publicKey])
const api = await anApi(t, { issuer })
const { db } = api.database
for (const id of [ONE, TWO]) await setRow(db, 'accounts', id, { ram_limit: 1_000_000 })
const now = () => Math.floor(Date.now() / 1000)

interface Body {
  readonly id: string
  readonly access_token: string
  readonly error: string
  readonly error_description: string
}
const make = async (path: string, body: object, account: typeof ONE | typeof TWO = ONE) => {
  const made = await api.call('POST', `/1.0/${path}`, body, account)
  if (made.status > 202) throw new Error(JSON.stringify(made))
  return (made.body as Body).id
}
const server = (groups: readonly string[], account?: typeof TWO) =>
  make('servers', { image: 'img-deb12', ...(groups.length > 0 && { server_groups: groups }) }, account)
const put = (path: string, body: object) => api.call('PUT', `/1.0/${path}`, body)

/** An assertion of a server: what its hypervisor signs, but for the changes. */
async function assertionOf(sub: string, claims: object = {}, key = present): Promise<string> {
  const kid = await keyIdOf(key.publicKey)
  const own = { iss: ISSUER, sub, aud: ISSUER, iat: now(), nbf: now(), exp: now() + 600, jti: randomUUID() }
  return new SignJWT({ ...own, account: ONE, ...claims }).setProtectedHeader({ alg: 'ES256', kid }).sign(key.privateKey)
}

async function ask(body: Record<string, string>, remoteAddress = '192.0.2.1', headers = {}) {
  const form = new URLSearchParams({ grant_type: JWT_BEARER, ...body }).toString()
  const { statusCode: status, body: text } = await api.server.inject({
    ...{ method: 'POST', url: '/token', remoteAddress, payload: form },
    headers: { 'content-type': 'application/x-www-form-urlencoded', ...headers },
  })
  return { status, body: JSON.parse(text) as Body & { readonly expires_in: number } }
}
const exchange = async (client: string, sub: string, claims?: object, key?: typeof present) =>
  ask({ client_id: client, assertion: await assertionOf(sub, claims, key) })
const statusWith = async (token: string) => (await api.callWith(token, 'GET', '/1.0/account')).status

const group = await make('server_groups', { name: 'trusted' })
const client = await make('api_clients', { name: 'failover', trusted_servers: group })
const member = await server([group])
const outside = await server([])
const INVALID = { status: 400, body: { error: 'invalid_grant' } }

t.test('a server of the trusted group gets the rights of the client, and the audit names both', async (t) => {
  const { status, body } = await exchange(client, member)
  t.match({ status, body }, { status: 200, body: { token_type: 'Bearer', scope: 'infrastructure, orbit' } })
  t.ok(body.expires_in <= 600 && body.expires_in > 590, 'as long as the assertion')
  await api.callWith(body.access_token, 'POST', '/1.0/server_groups', { name: 'by a server' })
  t.match(api.audit.at(-1), { client, server: member, account: ONE, route: '/1.0/server_groups' })
  const narrow = await ask({ client_id: client, assertion: await assertionOf(member), scope: 'orbit' })
  t.match(narrow, { status: 200, body: { scope: 'orbit' } })
})

t.test('an assertion for the URL of the API, and one of another published key, are accepted', async (t) => {
  t.match(await exchange(client, member, { aud: BASE_URL }), { status: 200 })
  t.match(await exchange(client, member, {}, next), { status: 200 })
})

const WRONG: readonly (readonly [what: string, claims: () => object, error: RegExp])[] = [
  ['for another audience', () => ({ aud: 'https://vault.example.com' }), /aud/],
  ['of another issuer', () => ({ iss: 'https://id.example.com' }), /iss/],
  ['that has expired', () => ({ exp: now() - 60 }), /exp/],
  ['that expires now', () => ({ exp: now() - 2 }), /expired/],
  ['that is not valid yet', () => ({ nbf: now() + 60 }), /nbf/],
  ['from more than an hour ago', () => ({ iat: now() - 4_000, exp: now() + 1_000_000 }), /iat/],
  ['without an id', () => ({ jti: undefined }), /jti/],
  ['without an end', () => ({ exp: undefined }), /exp/],
  ['without a server', () => ({ sub: undefined }), /sub/],
]
for (const [what, claims, error] of WRONG)
  t.test(`an assertion ${what} is refused`, async (t) => {
    // a server of its own: failures count for it
    const sub = await server([group])
    t.match(await exchange(client, sub, claims()), { status: 400, body: { error: 'invalid_grant' } })
    t.match((await exchange(client, sub, claims())).body.error_description, error)
    t.match(await exchange(client, sub), { status: 200 })
  })

t.test('an assertion of an unpublished key, of another algorithm or with a changed claim is refused', async (t) => {
  const sub = await server([group])
  t.match(await exchange(client, sub, {}, strange), INVALID)
  const [head, , signature] = (await assertionOf(sub)).split('.')
  const encoded = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const changed = [head, (await assertionOf(sub, { account: TWO })).split('.')[1], signature].join('.')
  const unsigned = [encoded({ alg: 'none' }), (await assertionOf(sub)).split('.')[1], ''].join('.')
  const numbered = [encoded({ alg: 'none' }), encoded({ sub: 5 }), ''].join('.')
  for (const assertion of [changed, unsigned, numbered, 'x', 'x.y.z', '..'])
    t.match(await ask({ client_id: client, assertion }), INVALID, assertion)
})

t.test('an assertion is accepted once, also of two requests at once', async (t) => {
  const assertion = await assertionOf(member)
  const both = await Promise.all([1, 2].map(() => ask({ client_id: client, assertion })))
  t.strictSame(both.map(({ status }) => status).sort(), [200, 400])
  t.match(await ask({ client_id: client, assertion }), { ...INVALID, body: { error_description: /used before/ } })
})

t.test('at most 1,000 assertions of a server are remembered, and then no more are accepted', async (t) => {
  const sub = await server([group])
  const rows = Array.from({ length: 1_000 }, () => ({ server_id: sub, jti_sha256: Buffer.from(randomUUID()) }))
  await db.insertInto('used_assertions').values(rows).execute()
  t.match(await exchange(client, sub), INVALID)
  await db
    .updateTable('used_assertions')
    .set({ used_at: new Date(Date.now() - 7_300_000) })
    .execute()
  await api.auth.purge()
  t.match(await exchange(client, sub), { status: 200 }, 'those of two hours ago are deleted')
})

t.test('a server that the client does not trust now is refused', async (t) => {
  const untrusting = await make('api_clients', { name: 'no' })
  const revoked = await make('api_clients', { name: 'revoked', trusted_servers: group })
  await api.call('DELETE', `/1.0/api_clients/${revoked}`)
  const left = await server([group])
  await api.call('POST', `/1.0/server_groups/${group}/remove_servers`, { servers: [{ server: left }] })
  const deleted = await server([group])
  await api.call('DELETE', `/1.0/servers/${deleted}`)
  const leaving = await server([group])
  await setRow(db, 'servers', leaving, { status: 'deleting' })
  const foreign = await server([], TWO)
  await db.insertInto('server_group_members').values({ server_group_id: group, server_id: foreign }).execute()
  for (const [what, by, sub] of [
    ['a client that trusts none', untrusting, member],
    ['a revoked client', revoked, member],
    ['an unknown client', 'cli-none1', member],
    ['a server in no group', client, outside],
    ['a server that has left the group', client, left],
    ['a deleted server', client, deleted],
    ['a server that is being deleted', client, leaving],
    ['a server of another account', client, foreign],
    ['an unknown server', client, 'srv-none1'],
  ] as const)
    t.match(await exchange(by, sub), { ...INVALID, body: { error_description: /no API client .* that trusts/ } }, what)
})

t.test('a token ends when its server leaves the group, is deleted, or its client is changed or revoked', async (t) => {
  const other = await make('server_groups', { name: 'other' })
  const ends: readonly (readonly [what: string, end: (client: string, server: string) => Promise<unknown>])[] = [
    ['the server leaves', (_, id) => put(`servers/${id}`, { server_groups: [other] })],
    ['the server is deleted', (_, id) => api.call('DELETE', `/1.0/servers/${id}`)],
    ['the server is being deleted', (_, id) => setRow(db, 'servers', id, { status: 'deleting' })],
    ['the client trusts others', (id) => put(`api_clients/${id}`, { trusted_servers: other })],
    ['the client trusts none', (id) => put(`api_clients/${id}`, { trusted_servers: null })],
    ['the client is revoked', (id) => api.call('DELETE', `/1.0/api_clients/${id}`)],
    ['the client has expired', (id) => put(`api_clients/${id}`, { expires_at: new Date().toISOString() })],
  ]
  for (const [what, end] of ends) {
    const by = await make('api_clients', { name: what, trusted_servers: group })
    const sub = await server([group])
    const token = (await exchange(by, sub)).body.access_token
    t.equal(await statusWith(token), 200, what)
    await end(by, sub)
    await until(async () => (await statusWith(token)) === 401, what)
  }
})

t.test('a token has the present rights of its client', async (t) => {
  const by = await make('api_clients', { name: 'reader', trusted_servers: group, read_only: true })
  const { access_token: token } = (await exchange(by, member)).body
  t.match(await api.callWith(token, 'POST', '/1.0/server_groups', {}), { status: 403 })
  await put(`api_clients/${by}`, { allow_access: ['203.0.113.0/24'] })
  t.match(await exchange(by, member), { status: 401, body: { error: 'invalid_client' } })
})

t.test('wrong assertions count for the server and for the address, and others are not kept out', async (t) => {
  const [many, one] = [await server([group]), await server([group])]
  const from = async (sub: string, address: string, claims = {}) =>
    (await ask({ client_id: client, assertion: await assertionOf(sub, claims) }, address)).status
  for (let i = 0; i < 10; i++) t.equal(await from(many, '198.51.100.1', { aud: 'x' }), 400)
  t.equal(await from(many, '198.51.100.1'), 429, 'even a right one')
  t.equal(await from(one, '198.51.100.1'), 200)
  t.equal(await from(many, '198.51.100.2'), 200)
  const last = await server([group])
  const names = Array.from({ length: 200 }, (_, i) => `srv-none${i % 20}`) // the limit allows one more a second
  await Promise.all(names.map((name) => from(name, '198.51.100.4', { aud: 'x' })))
  t.equal(await from(last, '198.51.100.4'), 429, 'after 100 of the address')
})

t.test('a request with a secret, or without a client or an assertion, is invalid', async (t) => {
  const assertion = await assertionOf(member)
  const INVALID_REQUEST = { status: 400, body: { error: 'invalid_request' } }
  t.match(await ask({ assertion }), INVALID_REQUEST)
  t.match(await ask({ client_id: client }), INVALID_REQUEST)
  t.match(await ask({ client_id: client, client_secret: 'x', assertion }), INVALID_REQUEST)
  const basic = `Basic ${Buffer.from(`${client}:x`).toString('base64')}`
  t.match(await ask({ client_id: client, assertion }, undefined, { authorization: basic }), INVALID_REQUEST)
  t.match(await ask({ client_id: client, assertion }), { status: 200 }, 'the assertion is not used up')
})

t.test('each form of a client shows the group that it trusts, and an event says that it was changed', async (t) => {
  const id = await make('api_clients', { name: 'shown' })
  t.notMatch(Object.keys((await api.call('GET', `/1.0/api_clients/${id}`)).body as object), ['trusted_servers'])
  t.match(await put(`api_clients/${id}`, { trusted_servers: group }), { status: 200, body: { trusted_servers: group } })
  const { body: listed } = await api.call('GET', '/1.0/api_clients')
  t.match(
    (listed as Body[]).find((one) => one.id === id),
    { trusted_servers: group },
  )
  const { body: events } = await api.call('GET', '/1.0/events?nested=true')
  t.match((events as object[])[0], { fields: ['trusted_servers'], resource: { id, trusted_servers: group } })
  t.match(api.audit.at(-1), { id, set: ['trusted_servers'] })
})

t.test('a client can trust only a group of its account, and a deleted group is trusted no more', async (t) => {
  const [foreign, own] = [await make('server_groups', {}, TWO), await make('server_groups', {})]
  for (const trusted_servers of [foreign, 'grp-none1'])
    t.match(await put(`api_clients/${client}`, { trusted_servers }), {
      status: 422,
      body: { errors: [/^trusted_servers/] },
    })
  t.match(await api.call('POST', '/1.0/api_clients', { trusted_servers: foreign }), { status: 422 })
  const id = await make('api_clients', { trusted_servers: own })
  t.match(await api.call('DELETE', `/1.0/server_groups/${own}`), { status: 202 })
  const { body } = await api.call('GET', `/1.0/api_clients/${id}`)
  t.notMatch(Object.keys(body as object), ['trusted_servers'])
})

t.test('the discovery document names the grant; without an issuer there is none', async (t) => {
  const found = async (one: typeof api) =>
    (await one.server.inject('/.well-known/oauth-authorization-server')).json<{ grant_types_supported: string[] }>()
  t.ok((await found(api)).grant_types_supported.includes(JWT_BEARER))
  const without = await anApi(t)
  t.notOk((await found(without)).grant_types_supported.includes(JWT_BEARER))
})
