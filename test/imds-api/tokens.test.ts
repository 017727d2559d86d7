/** The token endpoint, and what access tokens allow: RFC 6749, the API, and what its clients send. */
import t from 'tap'
import { FailureLimit, type FailureSubject } from '../../src/limits/failure-limit.ts'
import type { Quota } from '../../src/limits/rate-limit-headers.ts'
import { Grants } from '../../src/imds-api/auth/grants.ts'
import { Lookups } from '../../src/imds-api/auth/lookups.ts'
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
import { anApi, basic, setRow } from '../support/programs/api.ts'

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

t.test('failures of clients and users that exist are counted as real, those of made-up names are not', async (t) => {
  const counted: string[] = []
  class Counted extends FailureLimit {
    override countFailure(subject: FailureSubject, address: string, isReal: boolean): Quota {
      counted.push(`${subject.kind} ${subject.name} ${isReal ? 'real' : 'made-up'}`)
      return super.countFailure(subject, address, isReal)
    }
  }
  const grants = new Grants({
    db,
    tokens: api.auth.tokens,
    families: new TokenFamilies(db, 3600, Date.now),
    failures: new Counted(() => performance.now()),
    lookups: new Lookups(),
    seconds: 60,
    server: undefined,
    now: Date.now,
  })
  const asked = (credentials: { id: string; secret: string }, body: Readonly<Record<string, string>>) =>
    t.rejects(grants.grant({ credentials, address: '192.0.2.1', code: undefined, body }))
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
