/**
 * How users sign in: the grants password and refresh_token of applications, one-time passwords, and families of tokens.
 */
import t from 'tap'
import { hashPassword } from '../../src/imds-api/auth/password.ts'
import { confirmSignIn } from '../../src/imds-api/changes/sign-ins.ts'
import { inTransaction } from '../../src/imds-api/database/transaction.ts'
import {
  ADA,
  APPLICATION,
  aRegion,
  CLIENT_OF,
  GRACE,
  ONE,
  secretOf,
  TOTP_SECRET,
  TWO,
} from '../support/fixtures/region.ts'
import { anApi, basic, rowOf, setRow } from '../support/programs/api.ts'
import { until } from '../support/programs/daemon.ts'
import { signInRequests, type From } from '../support/programs/token-requests.ts'

/** Ada has two-factor authentication, Grace has not, and Joan has no password. */
const [ada, grace] = aRegion().users
const JOAN = 'usr-joan3'
const OTHER_APPLICATION = 'app-othr2'
const DAY_MS = 86_400_000
const REFRESH_MS = 30 * DAY_MS

const clock = { nowMs: Date.parse('2026-11-22T12:00:00Z') }
const api = await anApi(t, {
  now: () => clock.nowMs,
  region: aRegion({
    users: [
      { ...ada!, totp_secret_file: 'ada.totp' },
      grace!,
      { id: JOAN, name: 'Joan', email_address: 'joan@example.com' },
    ],
    applications: [APPLICATION, OTHER_APPLICATION].map((id) => ({
      id,
      account: ONE,
      name: id,
      secret_file: `${id}.secret`,
    })),
  }),
})
const { db } = api.database

const { post, signIn, codeAt, freshCode } = signInRequests(api, clock)
const refresh = (token: unknown, from?: From, scope?: string) =>
  post({ grant_type: 'refresh_token', refresh_token: token, ...(scope !== undefined && { scope }) }, from)
const graceSignsIn = async (from?: From) =>
  (await signIn(GRACE, secretOf(GRACE), from)).body as { access_token: string; refresh_token: string }
const isValid = async (token: unknown) => (await api.callWith(String(token), 'GET', '/1.0/user')).status === 200

const WRONG = {
  error: 'invalid_client',
  error_description: 'the username or the password is wrong',
  error_name: 'unauthorized',
  errors: ['the username or the password is wrong'],
}

t.test('a user signs in by id or e-mail address in any case, and the token acts for the user', async (t) => {
  for (const name of [GRACE, 'grace@example.com', 'Grace@Example.COM']) {
    const {
      status,
      headers,
      body: { access_token, refresh_token, ...rest },
    } = await signIn(name, secretOf(GRACE))
    t.equal(status, 200, name)
    t.match([access_token, refresh_token], [/^[\w-]{43}$/, /^[\w-]{43}$/])
    t.strictSame(rest, { token_type: 'Bearer', scope: 'infrastructure, orbit', expires_in: 7200 })
    t.match(headers, { 'cache-control': 'no-store', 'x-oauth-scopes': 'infrastructure, orbit' })
    t.match(await api.callWith(String(access_token), 'GET', '/1.0/user'), { status: 200, body: { id: GRACE } })
    t.equal((await api.callWith(String(access_token), 'GET', `/1.0/servers?account_id=${TWO}`)).status, 200)
    t.equal((await api.callWith(String(access_token), 'GET', `/1.0/servers?account_id=${ONE}`)).status, 404)
  }
  t.strictSame(
    (await post({ grant_type: 'password', username: GRACE, password: secretOf(GRACE), scope: 'orbit' })).body['scope'],
    'orbit',
  )
})

t.test('a wrong user, password or client gets one and the same 401, with no hint at a one-time password', async (t) => {
  const rows = [
    [GRACE, 'wrong password'],
    [GRACE, ''],
    ['nobody@example.com', secretOf(GRACE)],
    ['', secretOf(GRACE)],
    [JOAN, secretOf(JOAN)],
    [JOAN, ''],
    [ADA, secretOf(GRACE)],
    [ADA, `wrong password+${freshCode()}`],
    [GRACE, secretOf(GRACE).toUpperCase()],
    ['x'.repeat(254), 'x'.repeat(10_000)],
  ] as const
  for (const [username, password] of rows) {
    const { status, headers, body } = await signIn(username, password)
    t.equal(status, 401, `${username} ${password}`)
    t.strictSame(body, WRONG)
    t.match(headers, { 'www-authenticate': 'Basic realm="imds-api"', 'cache-control': 'no-store' })
    t.notOk('x-service-otp' in headers || 'x-brightbox-otp' in headers)
  }
  const { status, body } = await signIn(GRACE, secretOf(GRACE), {
    headers: { authorization: basic(APPLICATION, 'wrong') },
  })
  t.match(
    { status, body },
    { status: 401, body: { error: 'invalid_client', errors: ["the client's id or secret is wrong"] } },
  )
})

t.test('the other mistakes of an application are 400 with the error of OAuth', async (t) => {
  const password = secretOf(GRACE)
  for (const [body, error, client = APPLICATION] of [
    [{ grant_type: 'password', username: GRACE }, 'invalid_request'],
    [{ grant_type: 'refresh_token' }, 'invalid_request'],
    [{ grant_type: 'password', username: 'a\0b', password }, 'invalid_request'],
    [{ grant_type: 'password', username: GRACE, password, scope: 'admin' }, 'invalid_scope'],
    [{ grant_type: 'refresh_token', refresh_token: 'x' }, 'invalid_grant'],
    [{ grant_type: 'client_credentials' }, 'unauthorized_client'],
    [{ grant_type: 'password', username: GRACE, password }, 'unauthorized_client', CLIENT_OF[ONE]],
  ] as const)
    t.match(
      await post(body, { client }),
      { status: 400, headers: { 'cache-control': 'no-store' }, body: { error, error_name: 'bad_request' } },
      JSON.stringify(body),
    )
})

t.test('a right password without a code, or with a wrong one, gets 401 that names the headers of codes', async (t) => {
  freshCode()
  const wrong = codeAt(clock.nowMs + 10 * DAY_MS)
  const answers = [
    await signIn(ADA, secretOf(ADA)),
    await signIn(ADA, `${secretOf(ADA)}+${wrong}`),
    await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': wrong } }),
    await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': 'x' } }),
    await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': '' } }),
  ]
  for (const answer of answers) {
    t.match(answer, {
      status: 401,
      headers: { 'x-service-otp': 'required', 'x-brightbox-otp': 'required', 'www-authenticate': /^Basic / },
      body: { error: 'invalid_client', error_name: 'unauthorized' },
    })
  }
})

t.test('a code is taken from either header, behind the password, or from both places', async (t) => {
  for (const name of ['X-Service-OTP', 'X-Brightbox-OTP', 'x-service-otp'])
    t.equal((await signIn('ada@example.com', secretOf(ADA), { headers: { [name]: freshCode() } })).status, 200, name)
  t.equal((await signIn(ADA, `${secretOf(ADA)}+${freshCode()}`)).status, 200)
  const code = freshCode()
  t.equal((await signIn(ADA, `${secretOf(ADA)}+${code}`, { headers: { 'X-Brightbox-OTP': code } })).status, 200)
})

t.test('a password that ends like a code is right without a code, and then a code is required', async (t) => {
  const { password_hash } = await rowOf(db, 'users', ADA)
  const password = 'correct horse+123456'
  await setRow(db, 'users', ADA, { password_hash: await hashPassword(password) })
  t.match(await signIn(ADA, password), {
    status: 401,
    headers: { 'x-service-otp': 'required' },
    body: { errors: ['a one-time password is required'] },
  })
  t.equal((await signIn(ADA, `${password}+${freshCode()}`)).status, 200)
  t.notOk('x-service-otp' in (await signIn(ADA, 'correct horse+654321')).headers)
  await setRow(db, 'users', ADA, { password_hash })
})

t.test('without two-factor authentication the whole password is used', async (t) => {
  t.equal((await signIn(GRACE, `${secretOf(GRACE)}+123456`)).status, 401)
  t.equal((await signIn(GRACE, secretOf(GRACE), { headers: { 'X-Service-OTP': '123456' } })).status, 200)
})

t.test('a code is accepted once, up to 30 s before or after its step, and no earlier one after it', async (t) => {
  freshCode()
  const begin = Math.floor(clock.nowMs / 30_000) * 30_000
  const [before, now, after, later] = [-30_000, 0, 30_000, 60_000].map((ms) => codeAt(begin + ms))
  clock.nowMs = begin
  const statusOf = async (code: string | undefined) =>
    (await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': code! } })).status
  t.equal(await statusOf(later), 401)
  t.strictSame([await statusOf(before), await statusOf(before)], [200, 401])
  t.strictSame([await statusOf(now), await statusOf(now)], [200, 401])
  t.strictSame([await statusOf(after), await statusOf(now), await statusOf(after)], [200, 401, 401])
  clock.nowMs += 30_000
  t.equal(await statusOf(later), 200)
  t.match(await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': now! } }), {
    body: { errors: ['the one-time password is wrong, was used before, or is older than one that was used'] },
  })
})

t.test('of requests in parallel with one code, exactly one succeeds', async (t) => {
  for (let round = 0; round < 5; round++) {
    const code = freshCode()
    const answers = await Promise.all(
      Array.from({ length: 8 }, () => signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': code } })),
    )
    t.strictSame(answers.map(({ status }) => status).sort(), [200, 401, 401, 401, 401, 401, 401, 401])
  }
})

t.test('a sign-in fails if the password or the second factor changes while it is checked', async (t) => {
  const { password_hash } = await rowOf(db, 'users', GRACE)
  const confirm = (user: object, step?: number) =>
    inTransaction(db, (tx) => confirmSignIn(tx, { id: GRACE, password_hash, totp_secret: null, ...user }, step))
  t.equal(await confirm({}), true)
  t.equal(await confirm({ password_hash: 'other' }), false)
  t.equal(await confirm({ totp_secret: TOTP_SECRET }, 1), false)
  await setRow(db, 'users', GRACE, { totp_secret: TOTP_SECRET })
  t.strictSame(
    [await confirm({}), await confirm({ totp_secret: TOTP_SECRET }, 1), await confirm({ totp_secret: TOTP_SECRET }, 1)],
    [false, true, false],
  )
  await setRow(db, 'users', GRACE, { totp_secret: null, totp_last_step: null })
})

t.test('a refresh gives an access token and a new refresh token, without a code', async (t) => {
  const first = (await signIn(ADA, secretOf(ADA), { headers: { 'X-Service-OTP': freshCode() } })).body
  const {
    status,
    headers,
    body: { access_token, refresh_token, ...rest },
  } = await refresh(first['refresh_token'])
  t.equal(status, 200)
  t.strictSame(rest, { token_type: 'Bearer', scope: 'infrastructure, orbit', expires_in: 7200 })
  t.match(headers, { 'cache-control': 'no-store', 'x-oauth-scopes': 'infrastructure, orbit' })
  t.not(refresh_token, first['refresh_token'])
  t.match(await api.callWith(String(access_token), 'GET', '/1.0/user'), { body: { id: ADA } }, 'of the same user')
  t.ok(await isValid(first['access_token']), 'the older access token is valid until it expires')
})

t.test('a used refresh token gives siblings for 30 s; later use ends the family with its access tokens', async (t) => {
  const others = await graceSignsIn()
  const first = await graceSignsIn()
  const usedAt = clock.nowMs
  const second = (await refresh(first.refresh_token)).body
  clock.nowMs = usedAt + 29_999
  const sibling = (await refresh(first.refresh_token)).body
  const third = (await refresh(second['refresh_token'])).body
  for (const { access_token } of [first, second, sibling, third]) t.ok(await isValid(access_token))
  clock.nowMs = usedAt + 30_000
  t.match(await refresh(first.refresh_token), {
    status: 400,
    body: { error: 'invalid_grant', error_name: 'bad_request' },
  })
  for (const { access_token } of [first, second, sibling, third])
    await until(async () => !(await isValid(access_token)), 'the access tokens to end', 5000)
  for (const token of [sibling['refresh_token'], third['refresh_token']])
    t.match(await refresh(token), { status: 400, body: { error: 'invalid_grant' } })
  t.ok(await isValid(others.access_token), 'what the user has signed in to elsewhere goes on')
  t.equal((await refresh(others.refresh_token)).status, 200)
})

t.test('a refresh token is valid for 30 days, and only for the application that got it', async (t) => {
  const { refresh_token } = await graceSignsIn()
  t.match(await refresh(refresh_token, { client: OTHER_APPLICATION }), {
    status: 400,
    body: { error: 'invalid_grant' },
  })
  clock.nowMs += REFRESH_MS - 1
  const { status, body } = await refresh(refresh_token)
  t.equal(status, 200)
  clock.nowMs += REFRESH_MS
  t.match(await refresh(body['refresh_token']), { status: 400, body: { error: 'invalid_grant' } })
})

t.test('a refresh may ask for fewer scopes than its token has, and not for others', async (t) => {
  const { refresh_token } = await graceSignsIn()
  t.match(await refresh(refresh_token, {}, 'orbit'), {
    status: 200,
    headers: { 'x-oauth-scopes': 'orbit' },
    body: { scope: 'orbit' },
  })
  t.match(await refresh(refresh_token), { body: { scope: 'infrastructure, orbit' } }, 'the family keeps its scopes')
  const orbit = (await post({ grant_type: 'password', username: GRACE, password: secretOf(GRACE), scope: 'orbit' }))
    .body
  for (const scope of ['infrastructure', 'orbit infrastructure', 'admin'])
    t.match(await refresh(orbit['refresh_token'], {}, scope), { status: 400, body: { error: 'invalid_scope' } }, scope)
  clock.nowMs += 60_000
  t.match(
    await refresh(orbit['refresh_token']),
    { status: 200, body: { scope: 'orbit' } },
    'a refused scope has not used the token',
  )
  t.equal((await api.callWith(String(orbit['access_token']), 'GET', '/1.0/user')).status, 403)
})

t.test('a refresh token that is used in parallel gives each request tokens that work', async (t) => {
  const { refresh_token } = await graceSignsIn()
  const answers = await Promise.all(Array.from({ length: 6 }, () => refresh(refresh_token)))
  t.strictSame(
    answers.map(({ status }) => status),
    [200, 200, 200, 200, 200, 200],
  )
  t.equal(new Set(answers.map(({ body }) => body['refresh_token'])).size, 6)
  for (const { body } of answers) t.equal((await refresh(body['refresh_token'])).status, 200)
})

t.test('the database has digests of tokens and secrets and a hash of passwords, and not the texts', async (t) => {
  const { access_token, refresh_token } = await graceSignsIn()
  const ofClient = await api.token(CLIENT_OF[ONE])
  const secrets = [GRACE, APPLICATION, CLIENT_OF[ONE]].map(secretOf)
  for (const table of [
    ...['access_tokens', 'refresh_tokens', 'token_families', 'users', 'applications', 'api_clients'],
  ] as const) {
    const rows = (
      await db
        .selectFrom(table as 'users')
        .selectAll()
        .execute()
    ).map((row) =>
      Object.values(row).map((value: unknown) => (Buffer.isBuffer(value) ? value.toString('latin1') : value)),
    )
    for (const text of [access_token, refresh_token, ofClient, ...secrets])
      t.notOk(JSON.stringify(rows).includes(text), table)
  }
})
