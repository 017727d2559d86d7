/** The token endpoint, and what access tokens allow: RFC 6749, the API, and what its clients send. */
import type { KyselyPlugin } from 'kysely'
import t from 'tap'
import { FailureLimit, type FailureSubject } from '../../src/limits/failure-limit.ts'
import { Grants } from '../../src/imds-api/auth/grants.ts'
import { Lookups } from '../../src/imds-api/auth/lookups.ts'
import { KnownAddresses } from '../../src/imds-api/auth/known-addresses.ts'
import { digest } from '../../src/imds-api/auth/secrets.ts'
import { TokenFamilies } from '../../src/imds-api/auth/token-families.ts'
import { AccessTokens } from '../../src/imds-api/auth/tokens.ts'
import { withoutDetails } from '../support/error-bodies.ts'
import {
  APPLICATION,
  aRegion,
  CLIENT_OF,
  GRACE,
  ONE,
  secretOf,
  STORAGE_CLIENT,
  TWO,
} from '../support/fixtures/region.ts'
import { anApi, basic, serveDatabase, type TestApi, setRow } from '../support/programs/api.ts'

const api = await anApi(t, {
  accessTokenSeconds: 3600,
  region: aRegion({
    applications: [{ id: APPLICATION, account: ONE, name: 'Dashboard', secret_file: `${APPLICATION}.secret` }],
  }),
})
const { db } = api.database
const JSON_TYPE = 'application/json'
const FORM_TYPE = 'application/x-www-form-urlencoded'
const GRANT = 'grant_type=client_credentials'

async function post(
  body: string,
  {
    type = FORM_TYPE,
    authorization = basic(CLIENT_OF[ONE]),
    url = '/token',
  }: { type?: string; authorization?: string | undefined; url?: string } = {},
) {
  const {
    statusCode: status,
    headers,
    body: text,
  } = await api.server.inject({
    method: 'POST',
    url,
    headers: { ...(type !== '' && { 'content-type': type }), ...(authorization !== '' && { authorization }) },
    payload: body,
  })
  return { status, headers, body: withoutDetails(JSON.parse(text)) as Record<string, unknown> }
}

async function read(authorization: string | undefined, url = '/1.0/account') {
  const {
    statusCode: status,
    headers,
    body,
  } = await api.server.inject({ url, headers: { ...(authorization !== undefined && { authorization }) } })
  return { status, headers, body: withoutDetails(JSON.parse(body)) as Record<string, unknown> }
}

t.test('a form and JSON get a token on /token and /token/, with the headers and fields of the API', async (t) => {
  for (const url of ['/token', '/token/', '/token?account_id=acc-one01']) {
    for (const [type, body] of [
      [FORM_TYPE, GRANT],
      [JSON_TYPE, '{"grant_type":"client_credentials"}'],
      [`${JSON_TYPE}; charset=utf-8`, '{"grant_type":"client_credentials","unknown":1}'],
    ] as const) {
      const {
        status,
        headers,
        body: { access_token, ...rest },
      } = await post(body, { type, url })
      t.equal(status, 200)
      t.match(access_token, /^[A-Za-z0-9_-]{43}$/)
      t.strictSame(rest, { token_type: 'Bearer', scope: 'infrastructure, orbit', expires_in: 3600 })
      t.match(headers, {
        'content-type': /^application\/json/,
        'cache-control': 'no-store',
        pragma: 'no-cache',
        'x-oauth-scopes': 'infrastructure, orbit',
      })
    }
  }
})

t.test('the id and secret of a client may be in the body, unless HTTP Basic has others', async (t) => {
  const [id, secret] = [CLIENT_OF[ONE], secretOf(CLIENT_OF[ONE])]
  const form = `${GRANT}&client_id=${id}&client_secret=`
  const json = JSON.stringify({ grant_type: 'client_credentials', client_id: id, client_secret: secret })
  const none = ''
  for (const [name, status, body, options] of [
    ['a form', 200, form + secret, { authorization: none }],
    ['JSON', 200, json, { authorization: none, type: JSON_TYPE }],
    ['a wrong secret', 401, `${form}wrong`, { authorization: none }],
    ['no secret', 401, `${GRANT}&client_id=${id}`, { authorization: none }],
    ['HTTP Basic beside it', 401, form + secret, { authorization: basic(id, 'wrong') }],
    ['two lines', 400, `${GRANT}&client_id=a%0Ab&client_secret=c`, { authorization: none }],
  ] as const)
    t.equal((await post(body, options)).status, status, name)
})

t.test('scopes: the requested ones that are allowed, separated by spaces or commas', async (t) => {
  const scopeOf = async (scope: string, client: string = CLIENT_OF[ONE]) => {
    const { status, body } = await post(`${GRANT}&scope=${encodeURIComponent(scope)}`, { authorization: basic(client) })
    return status === 200 ? body['scope'] : body['error']
  }
  t.equal(await scopeOf(''), 'infrastructure, orbit')
  t.equal(await scopeOf('infrastructure'), 'infrastructure')
  t.equal(await scopeOf('orbit,infrastructure'), 'infrastructure, orbit')
  t.equal(await scopeOf('orbit infrastructure', STORAGE_CLIENT), 'orbit')
  t.equal(await scopeOf('infrastructure', STORAGE_CLIENT), 'invalid_scope')
  t.equal(await scopeOf('admin'), 'invalid_scope')
})

t.test('wrong credentials get 401 invalid_client with a challenge, and never a hint at what is wrong', async (t) => {
  const id = CLIENT_OF[ONE]
  const bad = [
    basic(id, ''),
    basic(id, `${secretOf(id)}x`),
    basic(id, '%'),
    basic('cli-zzzzz'),
    basic(CLIENT_OF[TWO], secretOf(id)),
    basic(id.toUpperCase()),
  ]
  const answers = await Promise.all(bad.map((authorization) => post(GRANT, { authorization })))
  for (const [i, { status, headers, body }] of answers.entries()) {
    t.equal(status, 401, `${i}: ${bad[i]!}`)
    t.match(headers, { 'www-authenticate': 'Basic realm="imds-api"', 'cache-control': 'no-store' })
    t.strictSame(body, {
      error: 'invalid_client',
      error_description: "the client's id or secret is wrong",
      error_name: 'unauthorized',
      errors: ["the client's id or secret is wrong"],
    })
  }
})

t.test('a token request without the id and secret of a client gets 401 that says how to send them', async (t) => {
  for (const authorization of [
    '',
    'Basic',
    'Basic !',
    'Bearer abc',
    `Basic ${Buffer.from('no-colon').toString('base64')}`,
    basic(`${CLIENT_OF[ONE]}\0`),
  ]) {
    const { status, headers, body } = await post(GRANT, { authorization })
    t.match(
      { status, headers },
      { status: 401, headers: { 'www-authenticate': 'Basic realm="imds-api"' } },
      authorization,
    )
    t.match(
      body,
      {
        error: 'invalid_client',
        error_name: 'unauthorized',
        errors: ['the request has no credentials: send the id and secret of a client with HTTP Basic'],
      },
      authorization,
    )
  }
})

t.test('a secret is accepted as it is and form-encoded, and a wrong one counts as one failure', async (t) => {
  const [id, secret, address] = [CLIENT_OF[TWO], 'a/b+c=d%41&e', '10.8.0.1']
  await setRow(db, 'api_clients', id, { secret_sha256: digest(secret) })
  const statusOf = async (sent: string) =>
    (
      await api.server.inject({
        method: 'POST',
        url: '/token',
        remoteAddress: address,
        headers: { authorization: basic(id, sent) },
        payload: { grant_type: 'client_credentials' },
      })
    ).statusCode
  const statuses: number[] = []
  for (const sent of [secret, 'a%2Fb%2Bc%3Dd%2541%26e', ...Array.from({ length: 10 }, () => 'a%2Fb'), secret])
    statuses.push(await statusOf(sent))
  t.strictSame(statuses, [200, 200, ...Array.from({ length: 10 }, () => 401), 429])
  await setRow(db, 'api_clients', id, { secret_sha256: digest('a b') })
  t.match(await post(GRANT, { authorization: basic(id, 'a+b') }), { status: 200 })
  await setRow(db, 'api_clients', id, { secret_sha256: digest(secretOf(id)) })
})

t.test('while the database is unreachable a token request gets 503 with the error of OAuth', async (t) => {
  t.intercept(api.auth.grants, 'grant', {
    value: () => Promise.reject(Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })),
  })
  t.match(await post(GRANT), {
    status: 503,
    headers: { 'retry-after': '1', 'cache-control': 'no-store' },
    body: {
      error: 'temporarily_unavailable',
      error_description: 'the database is unreachable: try again',
      error_name: 'service_unavailable',
      errors: [/./],
    },
  })
})

t.test('every other mistake of a token request is 400 with the error of OAuth, and says what is wrong', async (t) => {
  const manyParameters = Array.from({ length: 100 }, (_, i) => `&x${i}=1`).join('')
  const types = 'the Content-Type of the body must be application/x-www-form-urlencoded or application/json'
  const rows: readonly (readonly [payload: string, type: string, error: string, description?: string])[] = [
    ['', FORM_TYPE, 'invalid_request'],
    ['', JSON_TYPE, 'invalid_request'],
    ['', '', 'invalid_request'],
    ['grant_type=magic', FORM_TYPE, 'unsupported_grant_type'],
    ['grant_type=authorization_code', FORM_TYPE, 'unsupported_grant_type'],
    ['grant_type=password&username=a&password=b', FORM_TYPE, 'unauthorized_client'],
    ['grant_type=refresh_token&refresh_token=x', FORM_TYPE, 'unauthorized_client'],
    ['{"grant_type":', JSON_TYPE, 'invalid_request'],
    ['{"__proto__":{}}', JSON_TYPE, 'invalid_request'],
    ['{"password":hunter2}', JSON_TYPE, 'invalid_request', 'the body is malformed: it is not JSON'],
    ['{"grant_type":1}', JSON_TYPE, 'invalid_request', 'grant_type must be a string'],
    ['[]', JSON_TYPE, 'invalid_request', 'the body must be a JSON object'],
    [GRANT, 'text/plain', 'invalid_request', types],
    [GRANT + manyParameters, FORM_TYPE, 'invalid_request', 'the form must have at most 100 parameters'],
    [`${GRANT}&x=${'1'.repeat(16_384)}`, FORM_TYPE, 'invalid_request', 'the body must be at most 16384 bytes'],
    [`${GRANT}&scope=orbit&scope=orbit`, FORM_TYPE, 'invalid_request', 'scope is given more than once'],
    [
      `grant_type=password&password=x&username=${'x'.repeat(255)}`,
      FORM_TYPE,
      'invalid_request',
      'username must have at most 254 characters',
    ],
    [
      'grant_type=password&password=x&username=a%0Ab',
      FORM_TYPE,
      'invalid_request',
      'username must be one line without control characters',
    ],
  ]
  for (const [payload, type, error, description = /./] of rows) {
    const { status, headers, body } = await post(payload, { type })
    const name = `${type} ${payload.slice(0, 60)}`
    t.equal(status, 400, name)
    t.match(headers, { 'content-type': /^application\/json/, 'cache-control': 'no-store' }, name)
    const expected = { error, error_description: description, error_name: 'bad_request', errors: [description] }
    t.match(body, expected, name)
  }
  t.match(await api.server.inject({ url: '/token' }), { statusCode: 405, headers: { allow: 'POST' } })
})

/**
 * Grants with a memory of their own, as those of another process. `queries`: how many of them were about known
 * addresses.
 */
function aProcess(Limit = FailureLimit) {
  const seen = { queries: 0, warnings: 0, nowMs: Date.now(), steadyMs: 1000 }
  const plugin: KyselyPlugin = {
    transformQuery: ({ node }) => {
      if (JSON.stringify(node).includes('known_addresses')) seen.queries++
      return node
    },
    transformResult: ({ result }) => Promise.resolve(result),
  }
  const [counting, now, steady] = [db.withPlugin(plugin), () => seen.nowMs, () => seen.steadyMs]
  const limit = new Limit(steady)
  const known = new KnownAddresses({
    db: counting,
    limit,
    now,
    steady,
    log: {
      warn: () => {
        seen.warnings++
      },
    },
  })
  const grants = new Grants({
    db: counting,
    tokens: api.auth.tokens,
    families: new TokenFamilies(db, 3600, Date.now),
    known,
    lookups: new Lookups(),
    seconds: 60,
    server: undefined,
    now,
  })
  const asked = async (credentials: { id: string; secret: string }, body: object, address = '192.0.2.1') =>
    grants.grant({ credentials, address, code: undefined, body }).then(
      () => 'granted',
      (error: unknown) => (error instanceof Error ? error.name : String(error)),
    )
  const lockOut = (subject: FailureSubject, isReal = true) => {
    for (let i = 0; i < 100; i++) limit.countFailure(subject, `192.0.2.${i % 10}`, isReal)
  }
  return { seen, limit, known, asked, lockOut }
}

t.test('failures of clients and users that exist are counted as real, those of made-up names are not', async (t) => {
  const counted: string[] = []
  class Counted extends FailureLimit {
    override countFailure(subject: FailureSubject, address: string, isReal: boolean): void {
      counted.push(`${subject.kind} ${subject.name} ${isReal ? 'real' : 'made-up'}`)
      super.countFailure(subject, address, isReal)
    }
  }
  const { asked } = aProcess(Counted)
  const application = { id: APPLICATION, secret: secretOf(APPLICATION) }
  for (const id of [CLIENT_OF[ONE], APPLICATION, 'cli-zzzzz', 'app-zzzzz', '']) await asked({ id, secret: 'wrong' }, {})
  for (const username of [GRACE, 'Grace@Example.com', 'nobody@example.com'])
    await asked(application, { grant_type: 'password', username, password: 'wrong' })
  t.strictSame(counted, [
    `client ${CLIENT_OF[ONE]} real`,
    `client ${APPLICATION} real`,
    'client cli-zzzzz made-up',
    'client app-zzzzz made-up',
    'client  made-up',
    `user ${GRACE} real`,
    `user ${GRACE} real`,
    'user nobody@example.com made-up',
  ])
})

t.test('a token works with the schemes Bearer and OAuth in any case, and its scopes are on every answer', async (t) => {
  const token = await api.token(CLIENT_OF[ONE])
  for (const scheme of ['Bearer', 'bearer', 'OAuth', 'oauth']) {
    const { status, headers, body } = await read(`${scheme} ${token}`)
    t.equal(status, 200, scheme)
    t.equal(headers['x-oauth-scopes'], 'infrastructure, orbit')
    t.equal(body['id'], ONE)
  }
  t.match((await read(`Bearer ${token}`, '/1.0/servers/srv-zzzzz')).headers, {
    'x-oauth-scopes': 'infrastructure, orbit',
  })
})

t.test('a missing, malformed or unknown token gets 401 with a challenge', async (t) => {
  const token = await api.token(CLIENT_OF[ONE])
  const otherScheme =
    'the scheme of the Authorization header must be Bearer: get an access token at /token with the id and secret of a client, and send it as Authorization: Bearer TOKEN'
  for (const authorization of [
    undefined,
    '',
    'Bearer',
    'Bearer  ',
    `Token ${token}`,
    basic(CLIENT_OF[ONE]),
    `Bearer ${token} x`,
  ]) {
    const { status, headers, body } = await read(authorization)
    t.equal(status, 401, String(authorization))
    t.equal(headers['www-authenticate'], 'Bearer realm="imds-api"')
    const errors = [
      /^(Token|Basic)/.test(authorization ?? '')
        ? otherScheme
        : 'the request has no access token: get one at /token, and send it as Authorization: Bearer TOKEN',
    ]
    t.strictSame(body, { error: 'invalid_request', error_description: errors[0], error_name: 'unauthorized', errors })
  }
  for (const unknown of ['abc', `${token}x`, token.slice(1), token.toUpperCase()]) {
    const { status, headers, body } = await read(`Bearer ${unknown}`)
    t.equal(status, 401)
    t.equal(headers['www-authenticate'], 'Bearer realm="imds-api", error="invalid_token"')
    t.match(body, { error: 'invalid_token', error_name: 'unauthorized', errors: ['the access token is not valid'] })
  }
})

t.test('an expired token gets 401 token_expired, and is deleted only after a day', async (t) => {
  const token = await api.token(CLIENT_OF[ONE])
  await db
    .updateTable('access_tokens')
    .set({ expires_at: new Date(Date.now() - 1) })
    .execute()
  const { status, headers, body } = await read(`Bearer ${token}`)
  t.equal(status, 401)
  t.equal(headers['www-authenticate'], 'Bearer realm="imds-api", error="token_expired"')
  t.match(body, { error: 'expired_token', error_name: 'unauthorized', errors: ['the access token has expired'] })
  await api.auth.purge()
  t.equal((await read(`Bearer ${token}`)).body['error'], 'expired_token')
  await db
    .updateTable('access_tokens')
    .set({ expires_at: new Date(Date.now() - 86_400_001) })
    .execute()
  await api.auth.purge()
  t.equal((await read(`Bearer ${token}`)).body['error'], 'invalid_token')
})

t.test('a token that was checked is remembered for one second from the beginning of its check', async (t) => {
  let [wallMs, steadyMs] = [Date.now(), 1000]
  const tokens = new AccessTokens(
    db,
    () => wallMs,
    () => steadyMs,
    new Lookups(),
  )
  const token = await api.token(CLIENT_OF[TWO])
  const revoke = (revoked_at: Date | null) =>
    db.updateTable('api_clients').set({ revoked_at }).where('id', '=', CLIENT_OF[TWO]).execute()
  const checking = tokens.check(token, '')
  steadyMs = 1500 // the query has taken half a second
  t.equal((await checking).kind, 'valid')
  await revoke(new Date())
  steadyMs = 2000
  wallMs -= 3_600_000 // the clock of the host is set back
  t.equal((await tokens.check(token, '')).kind, 'valid')
  steadyMs = 2001
  t.equal((await tokens.check(token, '')).kind, 'unknown')
  await revoke(null)
  t.equal((await tokens.check(token, '')).kind, 'valid', 'a refusal is not remembered')
  wallMs += 2 * 7_200_000
  t.equal((await tokens.check(token, '')).kind, 'expired', 'and a remembered token still expires')
})

t.test('after a restart, failures from many addresses lock a client out only where it never succeeded', async (t) => {
  const id = CLIENT_OF[ONE]
  let { server } = api as Pick<TestApi, 'server'>
  const statusFrom = async (remoteAddress: string, secret = secretOf(id)) => {
    const headers = { authorization: basic(id, secret) }
    const payload = { grant_type: 'client_credentials' }
    return (await server.inject({ method: 'POST', url: '/token', remoteAddress, headers, payload })).statusCode
  }
  for (const address of ['198.51.100.1', '2001:db8::1']) t.equal(await statusFrom(address), 200)
  ;({ server } = await serveDatabase(t, api.database)) // it knows what is in the database
  for (let i = 0; i < 100; i++) t.equal(await statusFrom(`192.0.2.${i % 10}`, 'wrong'), 401)
  t.strictSame(
    await Promise.all(
      ['203.0.113.1', '198.51.100.1', '2001:db8::2', '2001:db8:0:1::1'].map((address) => statusFrom(address)),
    ),
    [429, 200, 200, 429],
  )
  for (let i = 0; i < 10; i++) t.equal(await statusFrom('198.51.100.1', 'wrong'), 401)
  t.equal(await statusFrom('198.51.100.1'), 429, 'a known address has the limit of its pair')
})

t.test('a process reads the addresses of a user that it locks out, once a minute, and lets it in there', async (t) => {
  const application = { id: APPLICATION, secret: secretOf(APPLICATION) }
  const signIn = ({ asked }: ReturnType<typeof aProcess>, address: string, username: string = GRACE) =>
    asked(application, { grant_type: 'password', username, password: secretOf(GRACE) }, address)
  const [first, second] = [aProcess(), aProcess()]
  const subject: FailureSubject = { kind: 'user', name: GRACE }
  for (const queries of [2, 2]) {
    t.equal(await signIn(first, '198.51.100.1'), 'granted')
    t.equal(first.seen.queries, queries, 'the first success of the application and of the user, and no later one')
  }
  first.seen.steadyMs += 86_400_000
  t.equal(await signIn(first, '198.51.100.1'), 'granted')
  t.equal(first.seen.queries, 4, 'but one in each day')

  for (const address of ['203.0.113.1', '198.51.100.1']) await second.asked(application, {}, address)
  second.lockOut(subject)
  second.seen.queries = 0
  t.strictSame(
    new Set(await Promise.all(Array.from({ length: 20 }, () => signIn(second, '203.0.113.1')))),
    new Set(['too_many_requests']),
  )
  t.equal(second.seen.queries, 1)
  t.equal(await signIn(second, '198.51.100.1'), 'granted')
  t.equal(second.seen.queries, 2, 'its own success')
  second.seen.steadyMs += 60_001
  second.lockOut(subject)
  for (let i = 0; i < 3; i++) t.equal(await signIn(second, '203.0.113.1'), 'too_many_requests')
  t.equal(second.seen.queries, 3)
  second.lockOut({ kind: 'user', name: 'nobody' }, false)
  for (let i = 0; i < 3; i++) t.equal(await signIn(second, '203.0.113.1', 'nobody'), 'too_many_requests')
  t.equal(second.seen.queries, 4, 'a made-up name has the queries of a real one')
})

t.test('the database has the last 64 addresses of a client or user, and each for 90 days', async (t) => {
  const { seen, known, limit } = aProcess()
  await db.deleteFrom('known_addresses').execute()
  const subject: FailureSubject = { kind: 'client', name: CLIENT_OF[ONE] }
  for (let i = 0; i < 70; i++) {
    seen.nowMs += 1000
    await known.recordSuccess(subject, `198.51.100.${i}`)
  }
  const rows = await db.selectFrom('known_addresses').selectAll().orderBy('last_success').execute()
  t.strictSame(
    rows.map(({ source }) => source),
    Array.from({ length: 64 }, (_, i) => `198.51.100.${i + 6}`),
  )
  t.equal(seen.warnings, 0)
  const after = aProcess()
  after.lockOut(subject)
  for (const [i, seconds] of [
    [5, 60],
    [6, undefined],
    [69, undefined],
  ] as const)
    t.equal((await after.known.exceededQuota(subject, `198.51.100.${i}`))?.retrySeconds, seconds)
  t.equal(limit.waitSeconds(subject, '198.51.100.69'), undefined)
  seen.nowMs += 90 * 86_400_000 - 5000
  await known.purge()
  t.equal((await db.selectFrom('known_addresses').selectAll().execute()).length, 6)
})

t.test('an address that cannot be written fails no request, and a read that failed is made again', async (t) => {
  const { seen, known, asked, lockOut } = aProcess()
  const client = { id: CLIENT_OF[ONE], secret: secretOf(CLIENT_OF[ONE]) }
  const subject: FailureSubject = { kind: 'client', name: client.id }
  await aProcess().known.recordSuccess(subject, '198.51.100.1')
  await api.database.pool.query('alter table known_addresses rename to unreadable')
  t.equal(await asked(client, { grant_type: 'client_credentials' }, '198.51.100.2'), 'granted')
  t.equal(seen.warnings, 1)
  lockOut(subject)
  await t.rejects(known.exceededQuota(subject, '198.51.100.1'), /known_addresses/)
  await api.database.pool.query('alter table unreadable rename to known_addresses')
  t.equal(await known.exceededQuota(subject, '198.51.100.1'), undefined)
})
